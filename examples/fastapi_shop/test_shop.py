import pytest
from database import Order
from fastapi.testclient import TestClient
from jobs import charge, send_mail
from sqlalchemy import select
from sqlalchemy.orm import Session

from holdfast import Holdfast
from holdfast.testing import assert_enqueued, drain, refute_enqueued

ORDER = {"customer": "ada@example.org", "amount": 1500}


def test_an_order_is_stored_with_its_job(client: TestClient, session: Session) -> None:
    order = client.post("/orders", json=ORDER).json()["order"]
    assert session.get_one(Order, order).state == "new"
    assert_enqueued(charge, order_id=order, count=1)


def test_an_order_that_is_refused_leaves_no_job(client: TestClient, session: Session) -> None:
    assert client.post("/orders", json={**ORDER, "amount": 200_000}).status_code == 400
    assert session.scalars(select(Order)).all() == []
    refute_enqueued(charge)


def test_the_job_pays_the_order_and_sends_a_mail(client: TestClient, holdfast_app: Holdfast) -> None:
    order = client.post("/orders", json=ORDER).json()["order"]
    assert drain(holdfast_app).succeeded == 2
    assert client.get(f"/orders/{order}").json() == {"customer": "ada@example.org", "state": "paid"}
    (mail,) = assert_enqueued(send_mail, "ada@example.org", status="succeeded")
    assert mail.args["text"] == "paid 1500 for order 1"


def test_a_failed_payment_changes_nothing(
    client: TestClient, session: Session, holdfast_app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise ConnectionError("the payment service is down")

    monkeypatch.setattr("jobs.pay", refuse)
    order = client.post("/orders", json=ORDER).json()["order"]
    assert (drain(holdfast_app).failed, session.get_one(Order, order).state) == (1, "new")
    refute_enqueued(send_mail)


@pytest.mark.parametrize("_", range(2))
def test_each_test_begins_with_an_empty_database(client: TestClient, session: Session, _: int) -> None:
    assert client.post("/orders", json=ORDER).json()["order"] == 1
    assert len(session.scalars(select(Order)).all()) == 1

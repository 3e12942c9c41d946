from unittest.mock import patch

from django.db import connection
from django.test import TestCase, TransactionTestCase

from holdfast.testing import assert_enqueued, drain, on_connection, refute_enqueued

from .jobs import charge, jobs, send_mail
from .models import Order

ORDER = {"customer": "ada@example.org", "amount": 1500}


class OrderTests(TestCase):
    """Django's TestCase, on its database in memory: each test is rolled back, with its jobs."""

    def setUp(self) -> None:
        self.enterContext(on_connection(jobs, connection))

    def post(self, **changes: object) -> dict[str, int]:
        response = self.client.post("/orders/", {**ORDER, **changes}, content_type="application/json")
        return response.json()

    def test_an_order_is_stored_with_its_job(self) -> None:
        order = self.post()["order"]
        self.assertEqual(Order.objects.get(pk=order).state, "new")
        assert_enqueued(charge, order_id=order, count=1)

    def test_an_order_that_is_refused_leaves_no_job(self) -> None:
        self.assertIn("error", self.post(amount=200_000))
        self.assertEqual(Order.objects.count(), 0)
        refute_enqueued(charge)

    def test_the_job_pays_the_order_and_sends_a_mail(self) -> None:
        order = self.post()["order"]
        self.assertEqual(drain(jobs).succeeded, 2)
        self.assertEqual(self.client.get(f"/orders/{order}/").json()["state"], "paid")
        assert_enqueued(send_mail, "ada@example.org", status="succeeded", count=1)

    def test_a_failed_payment_changes_nothing(self) -> None:
        order = self.post()["order"]
        with patch("shop.jobs.pay", side_effect=ConnectionError):
            self.assertEqual(drain(jobs).failed, 1)
        self.assertEqual(Order.objects.get(pk=order).state, "new")
        refute_enqueued(send_mail)


class CommittingTests(TransactionTestCase):
    """A TransactionTestCase commits. The tables of the jobs are dropped at the end of on_connection."""

    def setUp(self) -> None:
        self.enterContext(on_connection(jobs, connection))

    def test_a_job_that_completes_on_djangos_connection(self) -> None:
        order = Order.objects.create(**ORDER)
        job = charge.enqueue(order.pk)
        self.assertEqual(drain(jobs).succeeded, 2)
        self.assertEqual(job.refresh().result, f"paid 1500 for order {order.pk}")

    def test_no_job_is_left_from_another_test(self) -> None:
        refute_enqueued(jobs)

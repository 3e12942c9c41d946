"""The shop's API. Run it with: uvicorn api:api"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from database import Base, Order, engine, get_session
from fastapi import Depends, FastAPI, HTTPException
from jobs import charge
from pydantic import BaseModel
from sqlalchemy.orm import Session


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    Base.metadata.create_all(engine)
    yield


api = FastAPI(lifespan=lifespan)
Db = Annotated[Session, Depends(get_session)]


class NewOrder(BaseModel):
    customer: str
    amount: int


@api.post("/orders", status_code=201)
def create_order(new: NewOrder, session: Db) -> dict[str, int]:
    order = Order(customer=new.customer, amount=new.amount)
    session.add(order)
    session.flush()  # gives it an id
    job = charge.using(conn=session).enqueue(order.id)
    if new.amount > 100_000:
        raise HTTPException(400, "too expensive")  # rolls back the order and its job
    session.commit()
    return {"order": order.id, "job": job.id}


@api.get("/orders/{order_id}")
def read_order(order_id: int, session: Db) -> dict[str, str]:
    order = session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "no such order")
    return {"customer": order.customer, "state": order.state}

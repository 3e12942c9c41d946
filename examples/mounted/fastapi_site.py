"""The web page inside a FastAPI site, behind a proxy that authenticates. Run it with: uvicorn fastapi_site:site"""

from fastapi import FastAPI
from jobs import app, send_mail

from holdfast.web import trusted_header

site = FastAPI()


@site.post("/mails", status_code=202)
def order_a_mail(to: str) -> dict[str, int]:
    return {"job": send_mail.enqueue(to).id}


# The proxy sets this header, and removes it from requests of clients: see docs/guides/web.md.
site.mount("/jobs", app.web(auth=trusted_header("x-user", role="operator")))

"""The app whose jobs the three sites show at /jobs. Its database is $HOLDFAST_URL, or shop.db here."""

import os

from holdfast import Holdfast

app = Holdfast(os.environ.get("HOLDFAST_URL", "shop.db"))


@app.task(queue="mail")
def send_mail(to: str) -> str:
    return f"sent to {to}"

"""The web page beside a Django site, for its staff. Run it with: uvicorn django_site:site

A project has its settings elsewhere: only `staff_only` and `site` belong into its asgi.py.
"""

import os
from types import SimpleNamespace

import django
from django.conf import settings

if not settings.configured:
    settings.configure(
        SECRET_KEY="change me",
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
        MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
        DATABASES={
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SITE_DB", "site.sqlite3")}
        },
    )
    django.setup()

from django.contrib.auth import get_user
from django.contrib.sessions.backends.db import SessionStore
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from jobs import app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from holdfast.web import Identity, identity


def home(request: HttpRequest) -> HttpResponse:
    return HttpResponse("This is Django. The jobs are at /jobs/")


urlpatterns = [path("", home)]


def staff_only(request: Request) -> Identity | None:
    """Find the user of Django's session. This runs in a thread, so the ORM may be used."""
    session = SessionStore(request.cookies.get(settings.SESSION_COOKIE_NAME))
    user = get_user(SimpleNamespace(session=session))
    if not (user.is_active and user.is_staff):
        return None
    return identity(user.get_username(), "admin" if user.is_superuser else "operator")


site = Starlette(routes=[Mount("/jobs", app.web(auth=staff_only)), Mount("/", get_asgi_application())])

"""The console in a Django project: below an address of its own, and in the admin site. Each story has a process of its
own, because Django is set up once in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = """
import sys
import django
from django.conf import settings

settings.configure(
    SECRET_KEY="x", DEBUG=True, ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, USE_TZ=True,
    INSTALLED_APPS=["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
                    "django.contrib.sessions", "django.contrib.messages", "retrysafe.web.django"],
    MIDDLEWARE=["retrysafe.web.django.IdempotencyMiddleware",
                "django.contrib.sessions.middleware.SessionMiddleware",
                "django.middleware.csrf.CsrfViewMiddleware",
                "django.contrib.auth.middleware.AuthenticationMiddleware",
                "django.contrib.messages.middleware.MessageMiddleware"],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
        "context_processors": ["django.template.context_processors.request",
                               "django.contrib.auth.context_processors.auth",
                               "django.contrib.messages.context_processors.messages"]}}],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "app.db"}},
    RETRYSAFE={"URL": "sqlite:///keys.db"}, DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()
sys.modules.setdefault("project", sys.modules[__name__])

from django.contrib import admin
from django.core.management import call_command
from django.test import Client
from django.urls import include, path

from retrysafe.console import Console
from retrysafe.console.on_django import build_urls, find_staff
from retrysafe.console.on_django_admin import add_console
from retrysafe.core.ops import Lookup
from retrysafe.testing.builders import claim
from retrysafe.web.django import conf

safe = conf.safe()
safe.migrate()
add_console(admin.site, actions=True)
console = Console(safe, authenticate=find_staff, actions=True)
urlpatterns = [path("admin/", admin.site.urls), path("ops/", include(build_urls(console)))]

call_command("check", fail_level="WARNING", verbosity=0)
call_command("migrate", verbosity=0)
assert call_command("makemigrations", "--check", "--dry-run", verbosity=0) is None
from django.contrib.auth.models import User
boss = User.objects.create_superuser("boss", password="x")
staff = User.objects.create_user("helper", password="x", is_staff=True)
guest = User.objects.create_user("guest", password="x")
record = safe.store.execute(claim("order-7", now=1)).record
page = f"/keys/{record.id.hex()}"
fields = {"because": "the bank says so", "attempt": "1", "began": str(record.started), "outcome": "did-not-happen"}


def visit(user):
    client = Client(enforce_csrf_checks=True)
    if user is not None:
        client.force_login(user)
    return client


def form(client, path):
    from urllib.parse import urlencode
    token = client.cookies["retrysafe_console_csrf"].value
    body = urlencode({**fields, "csrf": token})
    return client.generic("POST", path, body, "application/x-www-form-urlencoded", HTTP_ORIGIN="http://testserver")
"""

STORIES = {
    "outside": """
for user in (None, guest):
    client = visit(user)
    assert client.get("/ops/").status_code == 401
    assert client.get("/ops" + page).status_code == 401
    answer = client.get("/admin/retrysafe/console/keys")
    assert (answer.status_code, "/admin/login/" in answer["location"]) == (302, True)
""",
    "mounted": """
client = visit(staff)
answer = client.get("/ops/")
assert answer.status_code == 200 and b"Uncertain" in answer.content
assert b'href="/ops/keys' in answer.content
assert "default-src 'none'" in answer["content-security-policy"]
assert client.get("/ops/static/console.css")["content-type"].startswith("text/css")
done = form(client, f"/ops{page}/resolve")
assert done.status_code == 303, done.content
assert client.get(done["location"]).status_code == 200
assert safe.store.execute(Lookup(record.id)).record.state.value == "released"
""",
    "admin": """
client = visit(boss)
index = client.get("/admin/")
assert b'/admin/retrysafe/console/' in index.content
answer = client.get("/admin/retrysafe/console/")
assert answer.status_code == 200 and b"Uncertain" in answer.content, answer.content
assert b'href="/admin/retrysafe/console/keys"' in answer.content
assert b"order-7" in client.get("/admin/retrysafe/console/keys?state=uncertain").content
helper = visit(staff)
seen = helper.get("/admin/retrysafe/console" + page)
assert seen.status_code == 200 and b"<form" not in seen.content.partition(b"<main")[2], "staff look, superusers act"
assert form(helper, f"/admin/retrysafe/console{page}/resolve").status_code == 403
done = form(client, f"/admin/retrysafe/console{page}/resolve")
assert done.status_code == 303, done.content
assert safe.store.execute(Lookup(record.id)).record.state.value == "released"
""",
    "forged": """
client = visit(boss)
client.get("/ops/")
token = client.cookies["retrysafe_console_csrf"].value
body = f"because=x&attempt=1&outcome=happened&csrf={token}"
answer = client.generic("POST", f"/ops{page}/resolve", body, "application/x-www-form-urlencoded", HTTP_ORIGIN="http://evil.test")
assert answer.status_code == 403
large = client.generic("POST", f"/ops{page}/resolve", "x" * 600_000, "application/x-www-form-urlencoded", HTTP_ORIGIN="http://testserver")
assert large.status_code == 413
assert large["x-frame-options"] == "DENY" and "default-src 'none'" in large["content-security-policy"]
for length, status in (("x", 400), ("-1", 400), ("600000", 413)):
    body = f"because=x&attempt=1&began={record.started}&outcome=did-not-happen&csrf={token}"
    short = client.generic(
        "POST", f"/ops{page}/resolve", body, "application/x-www-form-urlencoded", HTTP_ORIGIN="http://testserver",
        CONTENT_LENGTH=length,
    )
    assert short.status_code == status, (length, short.content)
from io import BytesIO
from django.core.handlers.wsgi import WSGIRequest
from retrysafe.console.on_django import find_bad_body
environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "CONTENT_LENGTH": "999", "wsgi.input": BytesIO(body.encode())}
assert find_bad_body(WSGIRequest(environ)).status == 400, "it was cut"
environ |= {"CONTENT_LENGTH": str(len(body)), "wsgi.input": BytesIO(body.encode())}
assert find_bad_body(WSGIRequest(environ)) is None
assert safe.store.execute(Lookup(record.id)).record == record
""",
}


@pytest.mark.parametrize("story", STORIES)
def test_in_a_django_project(tmp_path: Path, story: str) -> None:
    (tmp_path / "project.py").write_text(PROJECT + STORIES[story])
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "project.py"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]

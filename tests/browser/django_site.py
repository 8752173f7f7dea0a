"""A Django project with the middlewares that `startproject` writes, and the console below /ops/ and in the admin site;
below /look/ it is read-only.
It is served by gunicorn or uvicorn, as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.servers.ports import free_port
from tests.waiting import until

PROJECT = """
from pathlib import Path

import django
from django.conf import settings

HERE = Path(__file__).parent
settings.configure(
    SECRET_KEY="only for a test", DEBUG=True, ALLOWED_HOSTS=["127.0.0.1"], ROOT_URLCONF="site_urls", USE_TZ=True,
    INSTALLED_APPS=["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
                    "django.contrib.sessions", "django.contrib.messages", "django.contrib.staticfiles",
                    "retrysafe.web.django"],
    MIDDLEWARE=["retrysafe.web.django.IdempotencyMiddleware",
                "django.middleware.security.SecurityMiddleware",
                "django.contrib.sessions.middleware.SessionMiddleware",
                "django.middleware.common.CommonMiddleware",
                "django.middleware.csrf.CsrfViewMiddleware",
                "django.contrib.auth.middleware.AuthenticationMiddleware",
                "django.contrib.messages.middleware.MessageMiddleware",
                "django.middleware.clickjacking.XFrameOptionsMiddleware"],
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True, "OPTIONS": {
        "context_processors": ["django.template.context_processors.request",
                               "django.contrib.auth.context_processors.auth",
                               "django.contrib.messages.context_processors.messages"]}}],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": HERE / "site.db"}},
    RETRYSAFE={"URL": f"sqlite:///{HERE}/keys.db"}, DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    STATIC_URL="static/", LOGIN_URL="/admin/login/",
)
django.setup()
"""

URLS = """
from django.contrib import admin
from django.urls import include, path

from retrysafe.console import Console
from retrysafe.console.on_django import build_urls, find_staff
from retrysafe.console.on_django_admin import add_console
from retrysafe.web.django import conf

add_console(admin.site, actions=True)
console = Console(conf.safe(), authenticate=find_staff, actions=True, login_url="/admin/login/?next=/ops/")
reading = Console(conf.safe(), authenticate=find_staff)
urlpatterns = [
    path("admin/", admin.site.urls), path("ops/", include(build_urls(console))),
    path("look/", include(build_urls(reading))),
]
"""

SERVED = """
import site_settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler, StaticFilesHandler
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application

wsgi, asgi = StaticFilesHandler(get_wsgi_application()), ASGIStaticFilesHandler(get_asgi_application())
"""

PREPARE = """
import site_settings
from django.core.management import call_command
from retrysafe.web.django import conf

call_command("migrate", verbosity=0)
conf.safe().migrate()
from django.contrib.auth.models import User
User.objects.create_superuser("boss", password="secret")
User.objects.create_user("helper", password="secret", is_staff=True)
User.objects.create_user("guest", password="secret")
"""

COMMANDS = {
    "gunicorn": ("gunicorn", "--workers", "2", "--bind", "127.0.0.1:{port}", "site_served:wsgi"),
    "uvicorn": ("uvicorn", "--port", "{port}", "site_served:asgi"),
}
START_SECONDS = 60.0


@contextmanager
def serve_django(folder: Path, server: str) -> Iterator[str]:
    """The address of the project. Its keys are in `keys.db` of the folder."""
    for name, text in (("settings", PROJECT), ("urls", URLS), ("served", SERVED)):
        (folder / f"site_{name}.py").write_text(text)
    env = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    subprocess.run([sys.executable, "-c", PREPARE], cwd=folder, env=env, check=True, timeout=120)
    port = free_port()
    command = [each.format(port=port) for each in COMMANDS[server]]
    with (folder / "server.log").open("wb") as log, subprocess.Popen(
        [sys.executable, "-m", *command], cwd=folder, env=env, stdout=log, stderr=log
    ) as process:  # fmt: skip
        address = f"http://127.0.0.1:{port}"
        try:
            until(lambda: process.poll() is not None or _answers(address), START_SECONDS, f"{server} with Django")
            assert process.poll() is None, (folder / "server.log").read_text()
            yield address
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/admin/login/", timeout=START_SECONDS).status_code == 200
    except httpx.TransportError:
        return False

"""The settings of a small project. The keys live in its own database; `manage.py migrate` makes their tables."""

from __future__ import annotations

import os
from pathlib import Path

SECRET_KEY = os.environ.get("SECRET_KEY", "only for the example")
DEBUG = False
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
ROOT_URLCONF = "examples.django_payments.urls"
WSGI_APPLICATION = "examples.django_payments.wsgi.application"
USE_TZ = True

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "rest_framework",
    "retrysafe.web.django",
]

MIDDLEWARE = [
    "retrysafe.web.django.IdempotencyMiddleware",  # first: what it stores is what goes out
    "django.middleware.common.CommonMiddleware",
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": Path(os.environ.get("PAYMENTS_DB", "payments.sqlite3")),
    }
}

RETRYSAFE = {
    "SCOPE": "examples.django_payments.accounts.account_of",
    "POLICY": {"failures": "release", "retention": 3 * 24 * 3600},
}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["examples.django_payments.accounts.Bearer"],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "UNAUTHENTICATED_USER": None,
}

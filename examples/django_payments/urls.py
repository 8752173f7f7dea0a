"""Where things are."""

from __future__ import annotations

from django.urls import include, path

from examples.django_payments import views
from examples.django_payments.operators import console
from retrysafe.console.on_django import build_urls

urlpatterns = [
    path("payments", views.payments),
    path("api/payments", views.Payments.as_view()),
    path("provider/charges", views.provider_charges),
    path("console/", include(build_urls(console))),
]

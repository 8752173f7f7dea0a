"""Where things are."""

from __future__ import annotations

from django.urls import path

from examples.django_payments import views

urlpatterns = [
    path("payments", views.payments),
    path("api/payments", views.Payments.as_view()),
    path("provider/charges", views.provider_charges),
]

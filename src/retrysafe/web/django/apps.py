"""The Django application `retrysafe`: migrations and checks. Django looks for this file by its name."""

from __future__ import annotations

from django.apps import AppConfig  # type: ignore[import-untyped]  # Django ships no types


class RetrySafeConfig(AppConfig):  # type: ignore[misc]  # untyped base
    name = "retrysafe.web.django"
    label = "retrysafe"
    verbose_name = "Idempotency keys"

    def ready(self) -> None:
        from retrysafe.web.django.checks import register

        register()

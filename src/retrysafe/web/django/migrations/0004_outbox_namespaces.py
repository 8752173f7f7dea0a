"""Whose a staged job is, how often it was delivered, and the indexes the worker goes by."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations  # type: ignore[import-untyped]  # Django ships no types

from retrysafe.web.django.schema import StoreVersion


class Migration(migrations.Migration):  # type: ignore[misc]  # untyped base
    dependencies: ClassVar[list[Any]] = [("retrysafe", "0003_late_copies")]
    operations: ClassVar[list[Any]] = [StoreVersion(4)]

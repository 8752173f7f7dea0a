"""The index of dead letters."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations  # type: ignore[import-untyped]  # Django ships no types

from retrysafe.web.django.schema import StoreVersion


class Migration(migrations.Migration):  # type: ignore[misc]  # untyped base
    dependencies: ClassVar[list[Any]] = [("retrysafe", "0005_receipts")]
    operations: ClassVar[list[Any]] = [StoreVersion(6)]

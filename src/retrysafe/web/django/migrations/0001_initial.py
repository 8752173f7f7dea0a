"""The tables of the keys."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations  # type: ignore[import-untyped]  # Django ships no types

from retrysafe.web.django.schema import StoreVersion


class Migration(migrations.Migration):  # type: ignore[misc]  # untyped base
    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [StoreVersion(1)]

"""Jobs that wait to be published, and what local steps leave behind."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations  # type: ignore[import-untyped]  # Django ships no types

from retrysafe.web.django.schema import StoreVersion


class Migration(migrations.Migration):  # type: ignore[misc]  # untyped base
    dependencies: ClassVar[list[Any]] = [("retrysafe", "0001_initial")]
    operations: ClassVar[list[Any]] = [StoreVersion(2)]

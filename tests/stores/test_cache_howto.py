"""The cache of docs/howto/postgres.md, on a real PostgreSQL and a real Redis."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Install, List
from retrysafe.stores.caches import name_place
from retrysafe.stores.redis.cache import RedisCache
from tests.opening import unique, with_option

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "postgres.md"
CODE = re.compile(r'^```python title="cached.py"\n(.*?)^```', re.MULTILINE | re.DOTALL)


@pytest.mark.store("postgres", "redis")
def test_an_answer_that_was_replayed_is_in_redis(
    postgres_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = with_option(postgres_url, "table", unique())
    monkeypatch.setenv("DATABASE_URL", database)
    monkeypatch.setenv("REDIS_URL", redis_url)
    (code,) = CODE.findall(PAGE.read_text())
    page: dict[str, Any] = {"__name__": "cached"}
    exec(compile(code, str(PAGE), "exec"), page)
    safe = page["safe"]
    assert isinstance(safe, RetrySafe)
    cached = RedisCache(redis_url, place=name_place(database))
    cached.use_for(safe.execute(Install()))
    (record,) = safe.execute(List()).records
    found = cached.get(record.id)
    assert found is not None
    assert found.record.answer == record.answer
    safe.close()

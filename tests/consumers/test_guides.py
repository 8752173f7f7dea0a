"""The consumer that each broker's guide shows, as it stands on the page, on its broker: only names are replaced."""

from __future__ import annotations

import re
import sqlite3
import types
from pathlib import Path
from typing import Any

import pytest

from tests.consumers.brokers import Broker, Sent, running
from tests.consumers.test_brokers import until

pytestmark = pytest.mark.timeout(600)

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
PAGES = {"rabbitmq": "rabbitmq", "nats": "nats", "redis": "redis-streams", "kafka": "kafka"}
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def load(broker: Broker) -> Any:
    """The first block of the guide as a module, with this test's queue instead of `orders`."""
    code = BLOCK.findall((HOWTO / f"{PAGES[broker.kind]}.md").read_text())[0]
    names = {
        '"orders"': f'"{broker.name}"',
        '"orders.created"': f'"{broker.name}.new"',
        '"ORDERS"': f'"{broker.name}"',
        '"DEAD"': f'"{broker.name}dead"',
        '"dead.billing"': f'"{broker.name}.dead"',
    }
    assert any(name in code for name in names)
    for name, ours in names.items():
        code = code.replace(name, ours)
    page = types.ModuleType(f"guide_{broker.kind}")
    exec(compile(code, f"{broker.kind}.md", "exec"), page.__dict__)
    return page


async def test_the_consumer_of_the_guide_handles_a_message_once(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = load(broker)
    db = sqlite3.connect("billing.db")
    with db:
        db.execute("CREATE TABLE invoices (order_id TEXT, cents INTEGER)")

    def entered() -> list[str]:
        return sorted(order for (order,) in db.execute("SELECT order_id FROM invoices"))

    await broker.make()
    first = Sent("o-7-created", b'{"id": "o-7", "cents": 500}')
    await broker.send([first, first, Sent("o-8-created", b'{"id": "o-8", "cents": 700}')])
    try:
        async with running(page.main(broker.url)) as task:
            await until(lambda: set(entered()) == {"o-7", "o-8"} or task.done(), "the messages")
            if task.done():
                await task
        assert entered() == ["o-7", "o-8"]
    finally:
        db.close()
        await page.safe.aclose()
        page.safe.close()

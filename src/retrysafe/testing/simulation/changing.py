"""Operations whose code changes while they run: a deployment between two attempts goes on rightly, or is refused
and shown (rule 16, I35). Each is in two versions; `AppHost.version` says which one a host runs.
"""

from __future__ import annotations

from collections.abc import Callable

from retrysafe.core.records import Answer
from retrysafe.testing.simulation.application import AppHost, Handler
from retrysafe.testing.simulation.replies import answer_charge, buy_with


def deploy_new_field(node: AppHost) -> Handler:
    """Version 2 has one more argument, with a default."""
    order = node.safe.operation("field")

    @order.foreign(timeout=20, key_life=node.provider.key_life)
    async def charge(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key)

    async def place(purchase: str) -> Answer:
        return answer_charge(await charge(purchase))

    async def place_with_gift(purchase: str, gift: bool = False) -> Answer:
        return answer_charge(await charge(purchase))

    order.body(place if node.version == 1 else place_with_gift)
    return buy_with(order)


def deploy_new_first_step(node: AppHost) -> Handler:
    """Version 2 has one more step, before the charge."""
    order = node.safe.operation("before")

    @order.foreign(timeout=20, key_life=node.provider.key_life)
    async def screen(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key, kind="screening")

    @order.foreign(timeout=20, key_life=node.provider.key_life)
    async def charge(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key)

    @order.body
    async def place(purchase: str) -> Answer:
        if node.version == 2:
            await screen(purchase)
        return answer_charge(await charge(purchase))

    return buy_with(order)


def deploy_new_last_step(node: AppHost) -> Handler:
    """Version 2 has one more step, after the charge."""
    order = node.safe.operation("after")

    @order.foreign(timeout=20, key_life=node.provider.key_life)
    async def charge(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key)

    @order.foreign(timeout=20, key_life=node.provider.key_life)
    async def thank(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key, kind="letter")

    @order.body
    async def place(purchase: str) -> Answer:
        charged = await charge(purchase)
        if node.version == 2:
            await thank(purchase)
        return answer_charge(charged)

    return buy_with(order)


def deploy_renamed_step(node: AppHost) -> Handler:
    """Version 2 has another name for the step: its key would be another one."""
    order = node.safe.operation("renamed")

    async def charge(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key)

    async def charge_card(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key)

    step = order.foreign(timeout=20, key_life=node.provider.key_life)(charge if node.version == 1 else charge_card)

    @order.body
    async def place(purchase: str) -> Answer:
        return answer_charge(await step(purchase))

    return buy_with(order)


CHANGING: dict[str, Callable[[AppHost], Handler]] = {
    "new field": deploy_new_field,
    "new first step": deploy_new_first_step,
    "new last step": deploy_new_last_step,
    "renamed step": deploy_renamed_step,
}

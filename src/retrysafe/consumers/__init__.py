"""Message consumers: a message that is delivered again is not handled again.

    billing = consumers.Inbox(safe, "billing", tx=pool)

    @billing.handler
    async def on_order(message: consumers.Message, tx) -> None: ...

Then feed the inbox from a broker with `consume` of retrysafe.consumers.rabbitmq, .nats, .redis or .kafka, or put it
into FastStream (`retrysafe.consumers.faststream`), or call `billing.process(message)` from a loop of your own and
follow the verdict that it returns.
"""

from __future__ import annotations

from retrysafe.consumers.inbox import Inbox
from retrysafe.consumers.message import Message
from retrysafe.consumers.verdicts import Dead, Done, Later, Reject, Verdict

__all__ = ["Dead", "Done", "Inbox", "Later", "Message", "Reject", "Verdict"]

"""How long each sender retries, as data. An event must be stored longer than that: a retry taken for a new event could
be a second payment.

The figures are the senders' own, from the documents named in `source`. A sender may change them;
`Receiver(retention=…)` replaces the retention that follows from them.
"""

from __future__ import annotations

from dataclasses import dataclass

MINUTE = 60.0
HOUR = 60 * MINUTE
DAY = 24 * HOUR

MIN_RETENTION_SECONDS = 7 * DAY
"""The minimum, whatever the sender says: after an outage over a long weekend, events are sent again by hand."""

MARGIN_SECONDS = DAY
"""Added after the last retry, for queues at the sender and for clock differences."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a sender retries. `delays`: seconds between one try and the next, as far as they are published. `horizon`:
    seconds from the first try to the last. `by_hand`: for how many seconds somebody at the sender can send an event
    again. `answer_within`: how many seconds the sender waits for the answer; 0 if it does not say."""

    delays: tuple[float, ...]
    horizon: float
    by_hand: float
    answer_within: float
    source: str

    @property
    def retention(self) -> float:
        """How long an event is stored, in seconds."""
        return max(MIN_RETENTION_SECONDS, self.horizon + MARGIN_SECONDS, self.by_hand + MARGIN_SECONDS)


_STANDARD_DELAYS_SECONDS = (
    5.0,
    5 * MINUTE,
    30 * MINUTE,
    2 * HOUR,
    5 * HOUR,
    10 * HOUR,
    14 * HOUR,
    20 * HOUR,
    24 * HOUR,
)
_SVIX_DELAYS_SECONDS = (5.0, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 10 * HOUR)
_SHOPIFY_DELAYS_SECONDS = (MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, 72 * MINUTE, 2 * HOUR)
_STRIPE_DELAYS_SECONDS = tuple(min(5 * MINUTE * 3**n, 12 * HOUR) for n in range(10))

STANDARD = Schedule(
    _STANDARD_DELAYS_SECONDS, sum(_STANDARD_DELAYS_SECONDS), 0.0, 15.0,
    "Standard Webhooks specification 1.0: the example schedule of ten tries over 75 h 35 min, time-outs of 15 to 30 s",
)  # fmt: skip
SVIX = Schedule(
    _SVIX_DELAYS_SECONDS, sum(_SVIX_DELAYS_SECONDS), 0.0, 15.0,
    "Svix documentation, retry schedule: eight tries over 27 h 35 min, 15 s for an answer",
)  # fmt: skip
STRIPE = Schedule(
    _STRIPE_DELAYS_SECONDS, 3 * DAY, 30 * DAY, 0.0,
    "Stripe documentation, webhooks: up to three days with exponential back-off in live mode (the delays are not "
    "published: those here are a model of it); events can be sent again by hand for 15 days in the dashboard and for "
    "30 days with the command line",
)  # fmt: skip
GITHUB = Schedule(
    (), 0.0, 3 * DAY, 10.0,
    "GitHub documentation, webhooks: no automatic redelivery; deliveries of the past three days can be redelivered by "
    "hand or through the API; 10 s for an answer",
)  # fmt: skip
SHOPIFY = Schedule(
    _SHOPIFY_DELAYS_SECONDS, 4 * HOUR, 0.0, 5.0,
    "Shopify documentation, webhooks: eight tries over four hours (the delays are not published: those here are a "
    "model of it), 5 s for an answer, then the subscription is removed",
)  # fmt: skip
SLACK = Schedule(
    (0.0, MINUTE, 5 * MINUTE), DAY, 0.0, 3.0,
    "Slack documentation, Events API: three retries, at once, after one minute and after five; where delayed events "
    "are switched on hourly for 24 hours; 3 s for an answer",
)  # fmt: skip
UNKNOWN = Schedule(
    (), 30 * DAY - MARGIN_SECONDS, 0.0, 0.0,
    "no document: thirty days are longer than any schedule known to us",
)  # fmt: skip

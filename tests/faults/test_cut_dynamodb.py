"""The answer is lost, or the request, or the server fails: each operation, sync and async, reports what happened (I11).

The SDK sends a request again by itself if no answer came. The second attempt then meets the result of the first. Our
token shows that it is not the result of another caller.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.testing import Do
from retrysafe.testing.builders import claim, complete, lookup, record_of
from tests.faults.dynamodb_proxy import DynamoProxy, How
from tests.faults.story import CASES, Case, asked, check_truth, sent
from tests.opening import open_do, open_migrated, unique, with_option

pytestmark = pytest.mark.store("dynamodb")

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
both_colours = pytest.mark.parametrize("colour", ["sync", "async"])


@pytest.fixture(scope="module")
def proxy(dynamodb_url: str) -> Iterator[DynamoProxy]:
    """A proxy in front of a table for this module only."""
    proxy = DynamoProxy(with_option(dynamodb_url, "table", unique("cut_")))
    yield proxy
    proxy.close()


@pytest.fixture(scope="module")
def healthy(dynamodb_url: str, proxy: DynamoProxy) -> Iterator[Do]:
    do = open_migrated(proxy.url.replace(proxy_endpoint(proxy), proxy.endpoint), "sync")
    yield do
    do.close()


def proxy_endpoint(proxy: DynamoProxy) -> str:
    from tests.servers.dynamodb import endpoint_of

    return endpoint_of(proxy.url)


@pytest.fixture(scope="module")
def through(proxy: DynamoProxy, healthy: Do) -> Iterator[dict[tuple[str, int], Do]]:
    """Stores behind the proxy, by sync or async and by the number of SDK attempts."""
    opened = {
        (colour, attempts): open_do(with_option(proxy.url, "attempts", str(attempts)), colour)
        for colour in ("sync", "async")
        for attempts in (1, 2)
    }
    yield opened
    for do in opened.values():
        do.close()


Through = dict[tuple[str, int], Do]


@every_case
@both_colours
def test_the_sdks_own_retry_is_recognised(
    proxy: DynamoProxy, healthy: Do, through: Through, case: Case, colour: str
) -> None:
    """The first attempt was carried out and its answer lost. The caller does not notice."""
    op = case.make(healthy, unique())
    proxy.lose("swallow")
    reply, how = sent(through[colour, 2], op, healthy)
    assert how == "told"
    assert proxy.lost == 1
    check_truth(healthy, case, op, reply)


@pytest.mark.parametrize("how", ["swallow", "fail", "before"])
@every_case
@both_colours
def test_a_lost_answer_is_unclear_and_sending_again_tells(
    proxy: DynamoProxy, healthy: Do, through: Through, case: Case, colour: str, how: How
) -> None:
    op = case.make(healthy, unique())
    proxy.lose(how)
    reply, told = sent(through[colour, 1], op, healthy)
    assert told == "unclear"
    check_truth(healthy, case, op, reply)


@both_colours
def test_a_refusal_after_a_lost_answer_is_not_the_whole_truth(
    proxy: DynamoProxy, healthy: Do, through: Through, colour: str
) -> None:
    """The first attempt was carried out, its answer lost, and the second attempt throttled. "Nothing was done" would be
    wrong."""
    op = asked(unique())
    proxy.lose("swallow", 1)
    both = Throttled(proxy)
    with pytest.raises(StoreUnclear):
        through[colour, 2](op)
    both.end()
    assert record_of(healthy(lookup(op, now=None))).token == op.token
    assert through[colour, 2](op).granted


class Throttled:
    """After the first lost answer, every request is throttled."""

    def __init__(self, proxy: DynamoProxy) -> None:
        self._proxy, self._fate = proxy, proxy.fate
        proxy.fate = self.fate  # type: ignore[method-assign]  # for the length of one test

    def fate(self, operation: str) -> How:
        return self._fate(operation) or "throttle"

    def end(self) -> None:
        self._proxy.fate = self._fate  # type: ignore[method-assign]


@both_colours
def test_throttled_means_nothing_was_done(proxy: DynamoProxy, healthy: Do, through: Through, colour: str) -> None:
    op = asked(unique())
    proxy.lose("throttle", 1)
    with pytest.raises(StoreUnavailable, match="throttles this caller") as told:
        through[colour, 1](op)
    assert not isinstance(told.value, StoreUnclear)
    assert healthy(lookup(op, now=None)).record is None


@both_colours
def test_a_rival_between_the_loss_and_the_sending_again(
    proxy: DynamoProxy, healthy: Do, through: Through, colour: str
) -> None:
    """The first attempt never arrived, and another caller took the key. The second attempt learns that."""
    key = unique()
    op = asked(key)
    proxy.lose("before", 1)
    with pytest.raises(StoreUnclear):
        through[colour, 1](op)
    rival = healthy(asked(key))
    assert rival.granted
    reply = through[colour, 1](op)
    assert (reply.granted, record_of(reply).token) == (False, record_of(rival).token)


@both_colours
def test_a_takeover_whose_answer_was_lost_is_recognised(
    proxy: DynamoProxy, healthy: Do, through: Through, colour: str
) -> None:
    key = unique()
    healthy(claim(key, lease=5, on_lapse="rerun", now=0))
    op = claim(key, lease=5, on_lapse="rerun", now=6)
    proxy.lose("swallow", 2)  # the Put, whose condition fails, and the takeover
    with pytest.raises(StoreUnclear):
        through[colour, 1](op)
    with pytest.raises(StoreUnclear):
        through[colour, 1](op)
    reply = through[colour, 1](op)
    assert reply.granted
    assert record_of(reply).attempt == 2
    assert healthy(complete(reply, b"once", now=7)) is True


@both_colours
def test_a_server_that_is_not_there_was_not_sent_anything(dynamodb_url: str, colour: str) -> None:
    from tests.servers.ports import free_port

    do = open_do(f"dynamodb://a:b@local-1/nowhere?endpoint=http://127.0.0.1:{free_port()}&attempts=2", colour)
    try:
        with pytest.raises(StoreUnavailable, match="nothing was done") as told:
            do(asked("k"))
        assert not isinstance(told.value, StoreUnclear)
    finally:
        do.close()

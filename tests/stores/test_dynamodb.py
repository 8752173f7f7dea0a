"""Features of the DynamoDB store: URLs, errors, items, requests of an operation, the clock, the table, the doctor."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError

from retrysafe.core.jobs import Stage
from retrysafe.core.moves import build_new_record
from retrysafe.core.ops import Op
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.core.times import FOREVER_MICROS, SECOND_MICROS, duration_to_micros
from retrysafe.errors import (
    BadName,
    CorruptRecord,
    SchemaMissing,
    StoreError,
    StoreUnavailable,
    StoreUnclear,
    StoreUnreachable,
    StoreURLError,
    UsageError,
)
from retrysafe.stores.base import Store
from retrysafe.stores.diagnosis import diagnose
from retrysafe.stores.dynamodb import doctor
from retrysafe.stores.dynamodb.dispatch import combine_results
from retrysafe.stores.dynamodb.errors import translate_error
from retrysafe.stores.dynamodb.items import (
    DEFLATED,
    MAX_ITEM_BYTES,
    RAW,
    decode_packed,
    encode_packed,
    from_item,
    size_of,
    to_item,
)
from retrysafe.stores.dynamodb.requests import ConditionFailed, TransactionConflict
from retrysafe.stores.dynamodb.sdk import ServerFailed
from retrysafe.stores.dynamodb.table import build_definition
from retrysafe.stores.dynamodb.urls import parse_url
from retrysafe.stores.registry import find_backend, open_store
from retrysafe.testing.builders import (
    advance,
    answer,
    claim,
    complete,
    listing,
    lookup,
    reap,
    record_of,
    release,
    renew,
    resolve,
    suspect,
    withdraw,
)
from tests.faults.dynamodb_proxy import DynamoProxy
from tests.opening import unique, with_option
from tests.servers.dynamodb import client_of

pytestmark = pytest.mark.store("dynamodb")


@pytest.fixture
def url(dynamodb_url: str) -> str:
    return with_option(dynamodb_url, "table", unique("t_"))


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url)
    store.migrate()
    yield store
    store.close()


# Addresses ----------------------------------------------------------------------------------------


def test_an_address_in_full() -> None:
    at = parse_url(
        "dynamodb://AK%2FIA:s%2Fe@eu-west-1/keys?endpoint=http://127.0.0.1:8000"
        "&skew=0.5&attempts=7&timeout=2&ttl=off&backups=on"
    )
    assert (at.region, at.table, at.endpoint) == ("eu-west-1", "keys", "http://127.0.0.1:8000")
    assert (at.access, at.skew, at.attempts, at.timeout) == (("AK/IA", "s/e"), SECOND_MICROS // 2, 7, 2.0)
    assert (at.ttl, at.backups) == (False, True)
    assert "s%2Fe" not in at.url


def test_a_short_address() -> None:
    at = parse_url("dynamodb://eu-west-1")
    assert (at.table, at.endpoint, at.access, at.skew, at.attempts) == ("retrysafe", None, None, SECOND_MICROS, 3)
    assert (at.ttl, at.backups) == (True, False)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("dynamodb:///table", "names no region"),
        ("dynamodb://EU West/table", "names no region"),
        ("dynamodb://eu-west-1/keys?colour=red", "colour=red"),
        ("dynamodb://eu-west-1/keys?endpoint=localhost:8000", "no address"),
        ("dynamodb://eu-west-1/keys?skew=soon", "skew=soon"),
        ("dynamodb://eu-west-1/keys?timeout=-1", "timeout=-1"),
        ("dynamodb://eu-west-1/keys?ttl=maybe", "neither on nor off"),
    ],
)
def test_a_wrong_address_is_told(url: str, says: str) -> None:
    with pytest.raises(StoreURLError, match=re.escape(says)):
        parse_url(url)


def test_a_table_that_cannot_be_one() -> None:
    with pytest.raises(BadName, match="'ab'"):
        parse_url("dynamodb://eu-west-1/ab")


# Errors -------------------------------------------------------------------------------------------


def client_error(code: str, status: int = 400, message: str = "said so", **more: Any) -> ClientError:
    response = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}, **more}
    return ClientError(response, "PutItem")  # type: ignore[arg-type]  # as the SDK makes it


@pytest.mark.parametrize(
    ("error", "attempt_errors", "kind"),
    [
        (client_error("ThrottlingException"), [], StoreUnavailable),
        (
            client_error("ProvisionedThroughputExceededException"),
            [ConnectTimeoutError(endpoint_url="x")],
            StoreUnavailable,
        ),
        (client_error("ProvisionedThroughputExceededException"), [ReadTimeoutError(endpoint_url="x")], StoreUnclear),
        (client_error("ThrottlingException"), [ServerFailed()], StoreUnclear),
        (client_error("InternalServerError", 500), [], StoreUnclear),
        (client_error("AccessDeniedException"), [], StoreUnavailable),
        (client_error("ResourceNotFoundException"), [], SchemaMissing),
        (client_error("TransactionConflictException"), [], TransactionConflict),
        (
            client_error("ValidationException", message="Item size has exceeded the maximum allowed size"),
            [],
            StoreError,
        ),
        (client_error("SomethingNew"), [], StoreError),
        (EndpointConnectionError(endpoint_url="x"), [EndpointConnectionError(endpoint_url="x")], StoreUnreachable),
        (EndpointConnectionError(endpoint_url="x"), [ReadTimeoutError(endpoint_url="x")], StoreUnclear),
        (ReadTimeoutError(endpoint_url="x"), [], StoreUnclear),
        (KeyError("a bug of ours"), [], KeyError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or (str(value)[:40] if isinstance(value, Exception) else None),
)
def test_what_an_error_means(error: Exception, attempt_errors: list[BaseException], kind: type[Exception]) -> None:
    assert type(translate_error(error, attempt_errors, "dynamodb://eu-west-1/t")) is kind


def test_a_failed_condition_is_no_error_even_after_a_lost_answer() -> None:
    """A failed condition returns the record, and the record shows what happened."""
    item = {"id": {"B": b"x"}}
    found = translate_error(
        client_error("ConditionalCheckFailedException", Item=item), [ServerFailed()], "dynamodb://eu-west-1/t"
    )
    assert found == ConditionFailed(item)


def test_a_batch_says_the_most_doubtful_thing() -> None:
    assert combine_results([1, 2]) == [1, 2]
    with pytest.raises(StoreUnclear, match="a part of the batch"):
        combine_results([True, StoreUnavailable("busy")])
    with pytest.raises(StoreUnavailable, match="busy") as caught:
        combine_results([StoreUnavailable("busy"), StoreUnavailable("busy")])
    assert not isinstance(caught.value, StoreUnclear)
    with pytest.raises(StoreUnclear, match="lost"):
        combine_results([StoreUnavailable("busy"), StoreUnclear("lost")])


# Items --------------------------------------------------------------------------------------------


def full_record() -> Record:
    """A record with something in every field."""
    made = build_new_record(claim("k", input=b"in", now=5), 5 * SECOND_MICROS)
    return made._replace(
        state=State.COMPLETED, point="p", progress=b"\x00", answer=answer(b"a"), note="n", completed=6, expires=7
    )


def test_a_record_comes_back_as_it_was() -> None:
    for record in (full_record(), build_new_record(claim("k", now=0), 0)):
        assert from_item(to_item(record, 3)) == record


def test_what_compresses_is_compressed_and_the_rest_is_not() -> None:
    text, noise = b"abc" * 1000, secrets.token_bytes(3000)
    for value, kind in ((text, DEFLATED), (noise, RAW), (b"small", RAW)):
        attribute = encode_packed(value)
        assert attribute is not None
        assert attribute["B"][:1] == kind
        assert decode_packed(attribute["B"]) == value
    assert encode_packed(b"") is None


def test_the_size_of_an_item_is_that_of_names_and_values() -> None:
    assert size_of({"id": {"B": b"12345"}, "ä": {"S": "ü"}, "n": {"N": "10"}, "gone": None}) == 7 + 4 + 3


@pytest.mark.parametrize("name", ["state", "rev", "fp"])
def test_an_item_that_is_not_ours_is_told(name: str) -> None:
    item = to_item(full_record(), 0)
    item[name] = {"S": "nonsense"} if name != "rev" else {"N": "1"}
    if name == "rev":
        del item["expires"]
    with pytest.raises(CorruptRecord, match="not one of ours"):
        from_item(item)


def test_an_answer_that_is_too_large_is_refused_before_it_is_sent(dynamodb_url: str) -> None:
    proxy = DynamoProxy(with_option(dynamodb_url, "table", unique("t_")))
    store = open_store(proxy.url)
    store.migrate()
    held = store.execute(claim("k"))
    proxy.lose("")
    with pytest.raises(StoreError, match="max_answer") as caught:
        store.execute(complete(held, secrets.token_bytes(MAX_ITEM_BYTES)))
    with pytest.raises(StoreError, match="max_answer"):
        store.execute(claim("other", input=secrets.token_bytes(MAX_ITEM_BYTES + 1)))
    assert proxy.seen == []
    assert not isinstance(caught.value, StoreUnavailable)
    assert store.execute(complete(held, secrets.token_bytes(MAX_ITEM_BYTES - 2000))) is True
    store.close()
    proxy.close()


def test_a_record_that_grows_too_large_is_refused_by_the_server_with_the_same_words(store: Store) -> None:
    held = store.execute(claim("k", input=secrets.token_bytes(MAX_ITEM_BYTES // 2)))
    with pytest.raises(StoreError, match="max_answer"):
        store.execute(complete(held, secrets.token_bytes(MAX_ITEM_BYTES // 2)))
    assert store.execute(complete(held, Answer(200, b"", gone="too_large"))) is True


# What an operation costs --------------------------------------------------------------------------


@pytest.fixture
def counted(dynamodb_url: str) -> Iterator[tuple[Store, DynamoProxy]]:
    proxy = DynamoProxy(with_option(dynamodb_url, "table", unique("t_")))
    store = open_store(proxy.url)
    store.migrate()
    yield store, proxy
    store.close()
    proxy.close()


def test_the_usual_operations_are_one_request_each(counted: tuple[Store, DynamoProxy]) -> None:
    store, proxy = counted

    def cost(op: Op[Any]) -> list[str]:
        proxy.lose("")
        reply = store.execute(op)
        assert reply is True or reply.record is not None
        return proxy.seen

    def held(**more: Any) -> Any:
        return store.execute(claim(unique(), now=0, **more))

    assert cost(claim("k", now=0)) == ["PutItem"]
    assert cost(claim("k", now=1)) == ["PutItem"], "a refusal brings the record with it"
    assert cost(renew(held(), now=1)) == ["UpdateItem"]
    assert cost(advance(held(), now=1)) == ["UpdateItem"]
    assert cost(complete(held(), b"x", now=1)) == ["UpdateItem"]
    assert cost(release(held(), now=1)) == ["UpdateItem"]
    assert cost(suspect(held(), now=1)) == ["UpdateItem"]
    assert cost(lookup("k")) == ["GetItem"]
    done = held(retention=1)
    assert cost(complete(done, b"x", now=1)) == ["UpdateItem"] * 2, "it is settled in its last hour"
    assert cost(complete(done, b"x", now=2)) == ["UpdateItem"], "its own answer is recognised"
    lost = claim(unique(), lease=1, on_lapse="rerun", now=0)
    store.execute(lost)
    assert cost(replace(lost, token=b"t" * 16, now=duration_to_micros(5))) == ["PutItem", "UpdateItem"], "a takeover"
    doubted = held()
    store.execute(suspect(doubted, now=1))
    assert cost(resolve(doubted, b"yes", now=2)) == ["GetItem", "UpdateItem"]


# Time ---------------------------------------------------------------------------------------------


def test_a_lease_is_not_taken_before_the_clocks_must_agree(url: str) -> None:
    """By the owner's own clock its lease may still be valid. DynamoDB has no clock that could decide."""
    careful, careless = open_store(with_option(url, "skew", "3600")), open_store(with_option(url, "skew", "0"))
    careful.migrate()
    for key in ("a", "b"):
        assert careful.execute(claim(key, lease=0, on_lapse="rerun", now=None)).granted
    assert not careful.execute(claim("a", on_lapse="rerun", now=None)).granted
    assert careless.execute(claim("a", on_lapse="rerun", now=None)).granted
    swept = careful.execute(claim("c", lease=0, on_lapse="uncertain", now=None))
    assert careful.execute(suspect(swept, lapsed_only=True, now=None)) is False
    assert careless.execute(suspect(swept, lapsed_only=True, now=None)) is True
    careful.close()
    careless.close()


def test_what_was_withdrawn_is_open_at_once_whatever_the_clocks_say(url: str) -> None:
    """The next request may reach another machine. Its clock may be behind by the skew, and it subtracts the skew
    again."""
    store = open_store(with_option(url, "skew", "600"))
    store.migrate()
    held = store.execute(claim("k", now=None))
    assert store.execute(withdraw(held, now=None)) is True
    behind = round(time.time()) - 600 - 600 + 1  # behind by the skew, minus the skew
    assert store.execute(reap(now=None)) == 0
    following = store.execute(claim("k", body=b"another request", now=behind))
    assert following.granted
    assert record_of(following).attempt == 1
    store.close()


def test_only_settled_records_have_a_time_to_live(store: Store, url: str) -> None:
    """I13: DynamoDB itself never deletes a record that is unfinished or kept for ever, and others an hour late."""
    client = client_of(url)

    def ttl(key: Any) -> str | None:
        item = client.get_item(TableName=parse_url(url).table, Key={"id": {"B": lookup(key).id}})["Item"]
        found: str | None = item.get("ttl", {}).get("N")
        return found

    held = store.execute(claim("k", retention=86_400, now=0))
    assert ttl("k") is None
    assert store.execute(release(held, now=1)) is True
    assert ttl("k") == str(86_400 + 3600)
    again = store.execute(claim("k", now=2))
    assert ttl("k") is None
    assert store.execute(advance(again, now=3)) is True
    assert store.execute(release(again, now=4)) is True
    assert ttl("k") is None, "at a recovery point it is unfinished"
    last = store.execute(claim("k", now=5))
    assert store.execute(complete(last, b"x", now=90_000)) is True
    assert ttl("k") == str(90_000 + 2 * 3600), "an hour for whoever asks, and an hour more"
    for_ever = store.execute(claim("e", retention=float("inf"), now=0))
    assert store.execute(complete(for_ever, b"x", now=1)) is True
    assert ttl("e") is None
    assert record_of(store.execute(lookup("e"))).expires == FOREVER_MICROS
    withdrawn = store.execute(claim("w", now=0))
    assert store.execute(withdraw(withdrawn, now=7)) is True
    assert ttl("w") == str(7 + 3600), "for late copies to find"
    client.close()


# The table ----------------------------------------------------------------------------------------


def test_without_a_table_the_command_is_named(url: str) -> None:
    store = open_store(url)
    with pytest.raises(SchemaMissing, match="retrysafe migrate"):
        store.execute(lookup("k"))
    store.close()


def test_migrating_makes_the_table_its_time_to_live_and_nothing_twice(url: str) -> None:
    store = open_store(url.replace("ttl=off", "ttl=on"))
    assert store.migrate() == [f"table {parse_url(url).table}", "time to live"]
    assert store.migrate() == []
    client = client_of(url)
    found = client.describe_time_to_live(TableName=parse_url(url).table)["TimeToLiveDescription"]
    assert found == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}
    client.close()
    store.close()


def test_a_table_made_by_hand_from_what_is_printed_serves(url: str) -> None:
    import json

    client = client_of(url)
    client.create_table(**json.loads(find_backend(url).schema(url)))
    store = open_store(url)
    assert store.migrate() == []
    assert store.execute(claim("k")).granted
    store.close()
    client.close()


def test_many_that_migrate_at_once_make_one_table(url: str) -> None:
    stores = [open_store(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        applied = list(pool.map(lambda store: store.migrate(), stores))
    assert [name for names in applied for name in names] == [f"table {parse_url(url).table}"]
    for store in stores:
        store.close()


@pytest.mark.parametrize("wrong", ["key", "index"])
def test_somebody_elses_table_is_left_alone(url: str, wrong: str) -> None:
    made = build_definition(parse_url(url).table)
    if wrong == "key":
        made["KeySchema"] = [{"AttributeName": "shelf", "KeyType": "HASH"}]
        made["AttributeDefinitions"] = made["AttributeDefinitions"][1:]
    else:
        del made["GlobalSecondaryIndexes"]
        made["AttributeDefinitions"] = made["AttributeDefinitions"][:1]
    client = client_of(url)
    client.create_table(**made)
    store = open_store(url)
    with pytest.raises(StoreError, match="not one of ours" if wrong == "key" else "has no index"):
        store.migrate()
    store.close()
    client.close()


def test_what_it_has_not_is_told(store: Store) -> None:
    with pytest.raises(UsageError, match="no outbox"):
        store.execute(Stage(()))
    with pytest.raises(UsageError, match="cursor"):
        store.execute(listing(cursor="not-hex"))


def test_a_page_that_is_not_full_goes_on(store: Store) -> None:
    """Records that do not match are skipped in bounded steps. The cursor continues behind them."""
    store.execute_many([claim(f"k{number}", scope="many", now=0) for number in range(60)])
    store.execute(claim("needle", scope="one", now=0))
    found, cursor, pages = [], "", 0
    while True:
        page = store.execute(listing(scope="one", state=State.CLAIMED, limit=1, cursor=cursor))
        found += [record.key for record in page.records]
        cursor, pages = page.cursor, pages + 1
        if not cursor:
            break
    assert found == ["needle"]
    assert pages < 10


def test_reaping_asks_the_record_itself(store: Store) -> None:
    """The index may be out of date: a record that was claimed anew since is not deleted."""
    held = store.execute(claim("k", retention=1, now=0))
    assert store.execute(complete(held, b"x", now=0)) is True
    assert store.execute(reap(now=3599)) == 0
    assert store.execute(reap(now=3600)) == 1


# The doctor ---------------------------------------------------------------------------------------

REAL: dict[str, Any] = {
    "at": parse_url("dynamodb://eu-west-1/keys"),
    "server": "",
    "table": {**build_definition("keys"), "TableStatus": "ACTIVE"},
    "ahead": 0.2,
    "ttl": "ttl",
    "backups": True,
}


def wrong(**changed: Any) -> dict[str, str]:
    return {one.setting: one.limit for one in doctor.check_settings({**REAL, **changed}) if not one.fine}


def test_the_real_thing_as_we_make_it_is_fine() -> None:
    assert wrong() == {}
    assert wrong(ttl=None, backups=None, ahead=None) == {}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"server": "Dynoxide/1"}, {"emulator": "best-effort"}),
        ({"table": None}, {"table": "best-effort"}),
        ({"ttl": "created"}, {"time to live": "best-effort"}),
        ({"ahead": 3.0}, {"clock": "best-effort"}),
        ({"ahead": -3.0}, {"clock": "best-effort"}),
        (
            {"table": {**REAL["table"], "Replicas": [{"RegionName": "us-east-1"}]}},
            {"replicas": "at-most-once-until-failover"},
        ),
        ({"table": {**REAL["table"], "Replicas": [{}], "MultiRegionConsistency": "STRONG"}}, {}),
        ({"table": {**REAL["table"], "GlobalSecondaryIndexes": []}}, {"table": "best-effort"}),
        ({"table": {**REAL["table"], "KeySchema": []}}, {"table": "best-effort"}),
    ],
)
def test_what_takes_something_off_the_promise(changed: dict[str, Any], found: dict[str, str]) -> None:
    assert wrong(**changed) == found


def test_how_far_the_clock_is_ahead() -> None:
    """The Date header has whole seconds, so a difference below a second is not visible."""
    date = "Thu, 01 Jan 1970 00:01:40 GMT"
    assert doctor.clock_skew(date, 100.2, 100.3) == 0
    assert doctor.clock_skew(date, 103.0, 103.1) == pytest.approx(2.0)
    assert doctor.clock_skew(date, 90.0, 90.5) == pytest.approx(-9.5)
    assert doctor.clock_skew(None, 1, 2) is None


def test_the_doctor_on_a_running_server(store: Store, url: str) -> None:
    found = diagnose(url)
    assert found.store.startswith("Dynoxide/1.2.1 (local-1, table t_")
    assert {one.setting for one in found.findings if not one.fine} <= {"emulator", "clock"}
    assert found.label == "best-effort"
    nowhere = with_option(url, "table", unique("none_"))
    assert [one.fix for one in diagnose(nowhere).findings] == [f"retrysafe migrate {parse_url(nowhere).url}"]


def test_the_page_runs_on_a_real_server(url: str) -> None:
    page = Path(__file__).parents[2] / "docs" / "howto" / "dynamodb.md"
    text = page.read_text()
    blocks = re.findall(r"^<!-- no-run -->\n```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    client, orders = client_of(url), unique("orders_")
    client.create_table(
        TableName=orders,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    names: dict[str, Any] = {"__name__": "page"}
    try:
        code = "\n".join(blocks).replace("dynamodb://eu-west-1/retrysafe", url).replace('"orders"', f'"{orders}"')
        exec(compile(code, str(page), "exec"), names)
        assert len(client.scan(TableName=orders)["Items"]) == 1
    finally:
        client.delete_table(TableName=orders)
        client.close()
        names["safe"].close()

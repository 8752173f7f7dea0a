"""Which errors say that no connection could be made: only after these are new claims refused (engine/circuit.py)."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pymysql
import pytest
import redis
from botocore.exceptions import EndpointConnectionError, NoCredentialsError
from psycopg_pool import PoolTimeout

from retrysafe.errors import StoreUnavailable, StoreUnreachable
from retrysafe.stores.batching.queue import fail_all
from retrysafe.stores.batching.sync import SyncPending
from retrysafe.stores.dynamodb import errors as dynamodb
from retrysafe.stores.mysql import errors as mysql
from retrysafe.stores.postgres.errors import ConnectFailures, translate_error
from retrysafe.stores.redis import failures
from retrysafe.testing.builders import claim
from retrysafe_mssql import errors as mssql


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (pymysql.err.OperationalError(2003, "Can't connect to MySQL server"), StoreUnreachable),
        (OSError("no route to host"), StoreUnreachable),
        (pymysql.err.OperationalError(1040, "Too many connections"), StoreUnavailable),
        (pymysql.err.OperationalError(1045, "Access denied"), StoreUnavailable),
    ],
)
def test_mysql(error: Exception, kind: type[Exception]) -> None:
    assert type(mysql.unreachable_error(error)) is kind


def test_sql_server() -> None:
    assert type(mssql.unreachable_error(OSError("no route to host"))) is StoreUnreachable


def test_redis() -> None:
    assert type(failures.unreachable_error(redis.ConnectionError("Error 111 connecting"), "it")) is StoreUnreachable
    assert type(failures.unreachable_error(redis.ConnectionError("No connection available."), "it")) is StoreUnavailable
    assert type(failures.unreachable_error(redis.AuthenticationError("WRONGPASS no"), "it")) is StoreUnavailable


def test_dynamodb() -> None:
    away = EndpointConnectionError(endpoint_url="http://127.0.0.1:1")
    assert type(dynamodb.translate_error(away, [], "dynamodb://t")) is StoreUnreachable
    assert type(dynamodb.translate_error(NoCredentialsError(), [], "dynamodb://t")) is StoreUnavailable


def test_postgres_asks_its_pool() -> None:
    """A timeout is both: it counts where connections have failed since it was last asked."""
    connecting, failed = ConnectFailures(), 0

    def told() -> type[Exception]:
        pool = SimpleNamespace(get_stats=lambda: {"connections_errors": failed}, connection_class=None)
        return type(translate_error(connecting.refine_error(PoolTimeout("5 s"), pool), "url"))  # type: ignore[arg-type]

    assert told() is StoreUnavailable
    failed = 2
    assert told() is StoreUnreachable
    assert told() is StoreUnavailable


def test_it_stays_what_it_is_in_a_batch_and_on_its_way() -> None:
    waiting = SyncPending(claim("k"))
    fail_all([waiting], StoreUnreachable("not there", node="a:1"))
    own = waiting.result
    assert isinstance(own, StoreUnreachable)
    assert (own.node, str(own)) == ("a:1", "not there")
    copied = pickle.loads(pickle.dumps(own))
    assert (type(copied), copied.node, str(copied)) == (StoreUnreachable, "a:1", "not there")

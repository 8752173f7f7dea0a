"""The doctor: real settings of real servers, and a verdict for every one that can be wrong (I10)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from retrysafe.cli.main import main
from retrysafe.errors import StoreUnavailable, UsageError
from retrysafe.stores import diagnosis, registry
from retrysafe.stores.diagnosis import LABELS, Diagnosis, bad, diagnose, good, worst_label
from retrysafe.stores.filesystems import find_mount_kind
from retrysafe.stores.mysql import doctor as mysql
from retrysafe.stores.postgres import doctor as postgres
from retrysafe.stores.redis import doctor as redis_doctor
from retrysafe.stores.registry import open_store
from retrysafe.stores.sqlite import doctor as sqlite
from tests.servers.lazy import started
from tests.servers.ports import free_port
from tests.servers.valkey import ValkeyServer

PG: dict[str, Any] = {
    "version": "18.1", "version_number": 180001, "fsync": "on", "full_page_writes": "on", "synchronous_commit": "on",
    "synchronous_standby_names": "", "isolation": "read committed", "read_only": "off", "standby": False, "standbys": 0,
    "synchronous": 0, "shown": 0,
    "port": 5432, "asked_port": 5432, "persistence": "p",
}  # fmt: skip

REDIS: dict[str, Any] = {
    "appendonly": "yes", "appendfsync": "always", "maxmemory": "1000000", "maxmemory-policy": "noeviction",
    "role": "master", "connected_slaves": 0, "buckets": 1,
}  # fmt: skip

MYSQL: dict[str, Any] = {
    "version": "9.7.4", "product": "MySQL", "innodb_flush_log_at_trx_commit": "1", "sync_binlog": "1", "log_bin": "ON",
    "replicas": 0, "semi_sync": False, "innodb_doublewrite": "ON", "read_only": "OFF", "super_read_only": "OFF",
    "transaction_isolation": "REPEATABLE-READ", "engine": "InnoDB", "collation": "utf8mb4_0900_bin",
    "max_allowed_packet": "67108864",
}  # fmt: skip
MARIADB = {**MYSQL, "version": "10.11.18-MariaDB", "product": "MariaDB", "collation": "utf8mb4_nopad_bin"}

SQLITE: dict[str, Any] = {"journal_mode": "wal", "synchronous": 2, "filesystem": "ext4"}


def label(judge: Any, settings: dict[str, Any]) -> str:
    return Diagnosis("x", tuple(judge(settings))).label


@pytest.mark.parametrize(
    ("judge", "settings"),
    [
        (postgres.check_settings, PG),
        (redis_doctor.check_settings, REDIS),
        (sqlite.check_settings, SQLITE),
        (mysql.check_settings, MYSQL),
        (mysql.check_settings, MARIADB),
    ],
)
def test_what_is_right_is_called_so(judge: Any, settings: dict[str, Any]) -> None:
    found = tuple(judge(settings))
    assert [one.setting for one in found if not one.fine] == []
    assert label(judge, settings) == "exactly-once-capable"


WRONG = [
    (postgres.check_settings, PG, {"fsync": "off"}, "fsync", "best-effort"),
    (postgres.check_settings, PG, {"full_page_writes": "off"}, "full_page_writes", "best-effort"),
    (postgres.check_settings, PG, {"synchronous_commit": "off"}, "synchronous_commit", "best-effort"),
    (postgres.check_settings, PG, {"version_number": 130010, "version": "13.10"}, "version", "best-effort"),
    (postgres.check_settings, PG, {"standby": True}, "role", "best-effort"),
    (postgres.check_settings, PG, {"read_only": "on"}, "role", "best-effort"),
    (postgres.check_settings, PG, {"standbys": 1}, "standbys", "at-most-once-until-failover"),
    (
        postgres.check_settings,
        PG,
        {"standbys": 1, "synchronous_standby_names": "*", "synchronous_commit": "local"},
        "standbys",
        "at-most-once-until-failover",
    ),
    (postgres.check_settings, PG, {"persistence": None}, "table", "best-effort"),
    (postgres.check_settings, PG, {"persistence": "u"}, "table", "best-effort"),
    (mysql.check_settings, MYSQL, {"version": "5.7.44"}, "version", "best-effort"),
    (mysql.check_settings, MARIADB, {"version": "10.5.1-MariaDB"}, "version", "best-effort"),
    (
        mysql.check_settings,
        MYSQL,
        {"innodb_flush_log_at_trx_commit": "2"},
        "innodb_flush_log_at_trx_commit",
        "best-effort",
    ),
    (
        mysql.check_settings,
        MARIADB,
        {"innodb_flush_log_at_trx_commit": "0"},
        "innodb_flush_log_at_trx_commit",
        "best-effort",
    ),
    (mysql.check_settings, MYSQL, {"sync_binlog": "0"}, "sync_binlog", "at-most-once-until-failover"),
    (mysql.check_settings, MYSQL, {"replicas": 1}, "replicas", "at-most-once-until-failover"),
    (mysql.check_settings, MYSQL, {"innodb_doublewrite": "OFF"}, "innodb_doublewrite", "best-effort"),
    (mysql.check_settings, MYSQL, {"super_read_only": "ON"}, "role", "best-effort"),
    (mysql.check_settings, MARIADB, {"read_only": "ON"}, "role", "best-effort"),
    (mysql.check_settings, MYSQL, {"engine": None, "collation": None}, "table", "best-effort"),
    (mysql.check_settings, MYSQL, {"engine": "MyISAM"}, "table", "best-effort"),
    (mysql.check_settings, MYSQL, {"collation": "utf8mb4_general_ci"}, "collation", "exactly-once-capable"),
    (mysql.check_settings, MYSQL, {"max_allowed_packet": "1048576"}, "max_allowed_packet", "exactly-once-capable"),
    (redis_doctor.check_settings, REDIS, {"appendonly": "no"}, "persistence", "best-effort"),
    (redis_doctor.check_settings, REDIS, {"appendfsync": "everysec"}, "persistence", "best-effort"),
    (redis_doctor.check_settings, REDIS, {"appendfsync": "unknown"}, "persistence", "best-effort"),
    (redis_doctor.check_settings, REDIS, {"maxmemory-policy": "volatile-ttl"}, "maxmemory-policy", "best-effort"),
    (redis_doctor.check_settings, REDIS, {"maxmemory-policy": "unknown"}, "maxmemory-policy", "best-effort"),
    (redis_doctor.check_settings, REDIS, {"role": "slave"}, "role", "best-effort"),
    (redis_doctor.check_settings, REDIS, {"connected_slaves": 1}, "replicas", "at-most-once-until-failover"),
    (redis_doctor.check_settings, REDIS, {"connected_slaves": 2, "wait": 1}, "replicas", "at-most-once-until-failover"),
    (redis_doctor.check_settings, REDIS, {"connected_slaves": 0, "wait": 1}, "replicas", "exactly-once-capable"),
    (
        redis_doctor.check_settings,
        REDIS,
        {"cluster_enabled": 1, "cluster_state": "fail"},
        "cluster",
        "exactly-once-capable",
    ),
    (sqlite.check_settings, SQLITE, {"journal_mode": "off"}, "journal_mode", "best-effort"),
    (sqlite.check_settings, SQLITE, {"synchronous": 1}, "synchronous", "best-effort"),
    (sqlite.check_settings, SQLITE, {"filesystem": "nfs4"}, "filesystem", "best-effort"),
    (sqlite.check_settings, SQLITE, {"filesystem": "tmpfs"}, "filesystem", "best-effort"),
]


@pytest.mark.parametrize(("judge", "right", "change", "setting", "limit"), WRONG)
def test_one_wrong_setting_is_named_limits_and_can_be_mended(
    judge: Any, right: dict[str, Any], change: dict[str, Any], setting: str, limit: str
) -> None:
    found = tuple(judge({**right, **change}))
    [wrong] = [one for one in found if not one.fine]
    assert (wrong.setting, wrong.limit) == (setting, limit)
    assert wrong.fix
    assert wrong.why
    assert Diagnosis("x", found).label == limit


WAITED_FOR = {**PG, "synchronous_standby_names": "ANY 1 (*)"}


@pytest.mark.parametrize(
    ("standbys", "limit"),
    [
        ({"standbys": 1, "synchronous": 1, "shown": 1}, "exactly-once-capable"),
        ({"standbys": 2, "synchronous": 1, "shown": 2}, "exactly-once-capable"),
        ({"standbys": 1, "synchronous": 0, "shown": 0}, "exactly-once-capable"),
        ({"standbys": 1, "synchronous": 0, "shown": 1}, "at-most-once-until-failover"),
    ],
    ids=["all", "one of two", "not shown to this role", "another one is waited for"],
)
def test_a_standby_loses_nothing_if_it_is_a_synchronous_one(standbys: dict[str, int], limit: str) -> None:
    assert label(postgres.check_settings, {**WAITED_FOR, **standbys}) == limit


def test_replicas_that_are_all_waited_for_lose_nothing() -> None:
    assert label(redis_doctor.check_settings, {**REDIS, "connected_slaves": 2, "wait": 2}) == "exactly-once-capable"


def test_the_worst_node_of_a_cluster_counts_and_is_named() -> None:
    fine, bare = REDIS, {**REDIS, "appendonly": "no"}
    verdicts = [
        (("h", port), tuple(redis_doctor.check_settings(each))) for port, each in enumerate((fine, bare, fine), 1)
    ]
    found = Diagnosis("x", tuple(redis_doctor._merge_findings(verdicts)))
    assert found.label == "best-effort"
    assert {one.setting: one.value for one in found.findings if not one.fine} == {
        "persistence": "no append-only file (h:2)"
    }


def test_a_policy_that_never_evicts_for_want_of_a_limit_is_fine() -> None:
    assert label(redis_doctor.check_settings, {**REDIS, "maxmemory": "0", "maxmemory-policy": "allkeys-lru"}) == (
        "exactly-once-capable"
    )


def test_a_cluster_is_told_how_its_keys_are_spread() -> None:
    found = {one.setting: one for one in redis_doctor.check_settings({**REDIS, "cluster_enabled": 1, "buckets": 16})}
    assert found["cluster"].value == "16 buckets"


def test_the_worst_counts() -> None:
    assert worst_label(["exactly-once-capable", "best-effort", "at-most-once-until-failover"]) == "best-effort"
    assert worst_label([]) == "exactly-once-capable"
    assert next(iter(LABELS)) == "exactly-once-capable"


MOUNTS = [
    "/dev/sda1 / ext4 rw 0 0",
    "server:/export /srv nfs4 rw 0 0",
    "/dev/sdb1 /srv/local xfs rw 0 0",
    r"//host/share /mnt/my\040share cifs rw 0 0",
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/app.db", "ext4"), ("/srv/app.db", "nfs4"), ("/srv/local/app.db", "xfs"), ("/mnt/my share/app.db", "cifs")],
)
def test_the_deepest_mount_says_where_a_file_is(path: str, kind: str) -> None:
    assert find_mount_kind(Path(path), MOUNTS) == kind


def test_without_mounts_nobody_knows() -> None:
    assert find_mount_kind(Path("/app.db"), []) == "unknown"


# Real servers ------------------------------------------------------------------------------------


def values(found: Diagnosis) -> dict[str, str]:
    return {one.setting: one.value for one in found.findings}


def test_postgres_before_and_after_the_tables_are_made(postgres_url: str) -> None:
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}table=doctored"
    before = diagnose(url)
    assert before.store.startswith("PostgreSQL ")
    assert values(before)["table"] == "missing"
    store = open_store(url)
    store.migrate()
    store.close()
    assert values(diagnose(url)) | {"table": "logged", "role": "primary"} == values(diagnose(url))
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute('ALTER TABLE "doctored_keys" SET UNLOGGED')
    assert diagnose(url).label == "best-effort"


@pytest.mark.parametrize(("store", "product"), [("mysql", "MySQL "), ("mariadb", "MariaDB ")])
def test_mysql_before_and_after_the_tables_are_made(request: pytest.FixtureRequest, store: str, product: str) -> None:
    url = f"{request.getfixturevalue(f'{store}_url')}?table=doctored"
    before = diagnose(url)
    assert before.store.startswith(product)
    assert values(before)["table"] == "missing"
    made = open_store(url)
    made.migrate()
    made.close()
    found = values(diagnose(url))
    assert (found["table"], found["role"]) == ("InnoDB", "writable")
    assert found["collation"].endswith("_bin")
    assert "collation" not in [one.setting for one in diagnose(url).findings if not one.fine]


def test_redis_as_it_is_and_as_it_must_not_be() -> None:
    """On a server of its own: what is set here everybody else would see."""
    server = started(ValkeyServer())
    try:
        assert values(diagnose(server.url))["persistence"] == "appendfsync always"
        with server.client() as client:
            client.config_set("appendfsync", "everysec")
        assert diagnose(server.url).label == "best-effort"
    finally:
        server.stop()


def test_sqlite_is_opened_as_the_store_opens_it(tmp_path: Path) -> None:
    found = values(diagnose(f"sqlite:///{tmp_path}/app.db"))
    assert (found["journal_mode"], found["synchronous"]) == ("wal", "FULL")


def test_memory_is_best_effort() -> None:
    assert diagnose("memory://").label == "best-effort"


def test_a_server_that_does_not_answer() -> None:
    for scheme in ("postgresql", "redis", "mysql"):
        with pytest.raises(StoreUnavailable):
            diagnose(f"{scheme}://127.0.0.1:{free_port()}/0")


def test_a_store_without_a_doctor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain:
        capabilities = registry.find_backend("memory://").capabilities

    monkeypatch.setattr(diagnosis, "find_backend", lambda url: Plain())
    with pytest.raises(UsageError, match="diagnose"):
        diagnose("plain://")


# The command -------------------------------------------------------------------------------------


def test_the_table_names_every_setting_and_the_command_that_mends_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["doctor", "memory://"]) == 1
    told = capsys.readouterr().out
    assert "best-effort" in told
    assert "WRONG  durability" in told
    assert "fix:  use sqlite:///app.db" in told
    assert main(["doctor", "memory://", "--require", "best-effort"]) == 0


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "memory://", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["label"] == "best-effort"
    assert told["findings"][0]["fine"] is False


@pytest.mark.parametrize(("limit", "required", "code"), [
    ("exactly-once-capable", "exactly-once-capable", 0),
    ("at-most-once-until-failover", "exactly-once-capable", 1),
    ("at-most-once-until-failover", "at-most-once-until-failover", 0),
    ("best-effort", "at-most-once-until-failover", 1),
])  # fmt: skip
def test_the_exit_code_says_if_it_is_enough(
    monkeypatch: pytest.MonkeyPatch, limit: diagnosis.Label, required: str, code: int
) -> None:
    findings = (good("a", 1, "b"), bad("c", 2, limit, "d", "e"))
    monkeypatch.setattr("retrysafe.operators.store_doctor.diagnose", lambda url: Diagnosis("x 1", findings))
    assert main(["doctor", "memory://", "--require", required]) == code

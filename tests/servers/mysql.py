"""MySQL and MariaDB out of Debian packages. A commit is on disk before it is acknowledged, as they come.

The root of both has no password and may come in over the loopback address only.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pymysql

from retrysafe.stores.mysql.doctor import query_processlist
from tests.servers.base import Server, ServerUnavailable, give_away, nobody
from tests.servers.debian import PLACE, Prefix, alone, package

MADE_WITHIN = 120
PATIENCE = 60
"""Seconds until a server that has answered before answers again: the machine may stand still meanwhile."""


NO_TLS = {"auto-generate-certs": "OFF", "caching-sha2-password-auto-generate-rsa-keys": "OFF"}
"""On the loopback address it would only cost time, most of it at the first start."""


class MySQLFamilyServer(Server):
    """What the two have in common: the wire, the settings, and most of the options."""

    program: str
    scheme: str
    settings: dict[str, str]

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.settings = {"innodb-buffer-pool-size": "32M", "max-connections": "400", **settings}

    @property
    def url(self) -> str:
        return f"{self.scheme}://root@127.0.0.1:{self.port}/test"

    def version(self) -> str:
        return mysql_version(self.url)

    def ping(self) -> None:
        pymysql.connect(host="127.0.0.1", port=self.port, user="root", connect_timeout=5).close()

    def prepare(self, folder: Path) -> None:
        give_away(folder)
        (folder / "log").touch()
        self.prefix()  # fetched now, if it has to be
        empty = PLACE / f"{self.name}-empty"
        with alone(f"{self.name}-empty"):
            if not empty.exists():
                (folder / "data").mkdir()
                give_away(folder / "data")
                self.initialize(folder)
                copied(folder / "data", empty)
                return
        copied(empty, folder / "data")

    def initialize(self, folder: Path) -> None:
        raise NotImplementedError

    def prefix(self) -> Prefix:
        raise NotImplementedError

    def command(self, folder: Path) -> list[str]:
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        where = ["--bind-address=127.0.0.1", f"--port={self.port}", f"--socket={folder / 's'}"]
        return [*self.base(folder), *where, f"--pid-file={folder / 'pid'}", *settings]

    def base(self, folder: Path) -> list[str]:
        usr = self.prefix().usr
        places = [f"--basedir={usr}", f"--datadir={folder / 'data'}", f"--plugin-dir={self.plugins()}"]
        share = self.share()
        messages = [f"--lc-messages-dir={share}", f"--character-sets-dir={share / 'charsets'}"]
        return [*self.prefix().command(self.program), "--no-defaults", *places, *messages, f"--tmpdir={folder}"]

    def share(self) -> Path:
        return self.prefix().usr / "share" / "mysql"

    def plugins(self) -> Path:
        return self.prefix().usr / "lib" / "mysql" / "plugin"

    def resume(self) -> None:
        super().resume()
        connection = pymysql.connect(host="127.0.0.1", port=self.port, user="root", connect_timeout=PATIENCE)
        with connection, connection.cursor() as cursor:
            cursor.execute("SHOW DATABASES LIKE 'test'")
            if not cursor.fetchall():
                cursor.execute("CREATE DATABASE test")

    def stop(self) -> None:
        """SIGINT means nothing to them, and an orderly end takes seconds: what is thrown away may be killed."""
        self.kill()
        super().stop()

    def as_user(self) -> dict[str, Any]:
        return nobody()


class MySQLServer(MySQLFamilyServer):
    name = "mysql"
    program = "usr/sbin/mysqld"
    scheme = "mysql"

    def __init__(self, **settings: str) -> None:
        super().__init__(**{"mysqlx": "OFF", "skip-log-bin": "1", "performance-schema": "OFF", **NO_TLS, **settings})

    def prefix(self) -> Prefix:
        return package("sid", "mysql-server-core")

    def base(self, folder: Path) -> list[str]:
        return [*super().base(folder), "--secure-file-priv="]

    def initialize(self, folder: Path) -> None:
        quick = [
            "--innodb-buffer-pool-size=32M",
            "--skip-log-bin",
            *(f"--{name}={value}" for name, value in NO_TLS.items()),
        ]
        command = [*self.base(folder), "--initialize-insecure", *quick]
        made(subprocess.run(command, cwd=folder, capture_output=True, timeout=MADE_WITHIN, check=False, **nobody()))


class MariaDBServer(MySQLFamilyServer):
    name = "mariadb"
    program = "usr/sbin/mariadbd"
    scheme = "mariadb"

    def prefix(self) -> Prefix:
        return package("bookworm", "mariadb-server-core")

    def initialize(self, folder: Path) -> None:
        share = self.share()
        # Newer packages call the files mariadb_*.
        parts = ("*_system_tables", "*_performance_tables", "*_system_tables_data", "maria_add_gis_sp_bootstrap")
        files = [file for part in (*parts, "*_sys_schema") for file in sorted(share.glob(f"{part}.sql"))]
        texts = ["create database if not exists mysql;\nuse mysql;\nSET @auth_root_socket=NULL;\n"]
        texts.extend(file.read_text() for file in files)
        command = [*self.base(folder), "--bootstrap", "--skip-log-error"]
        given = "\n".join(texts).encode()
        made(
            subprocess.run(
                command, input=given, cwd=folder, capture_output=True, timeout=MADE_WITHIN, check=False, **nobody()
            )
        )


def copied(source: Path, target: Path) -> None:
    """Owner and all. Making a data folder takes seconds of work, copying one does not. Whole or not at all."""
    part = target.with_name(f"{target.name}.part{os.getpid()}")
    subprocess.run(["cp", "-a", "--reflink=auto", str(source), str(part)], check=True, capture_output=True)
    part.rename(target)


def made(done: subprocess.CompletedProcess[bytes]) -> None:
    if done.returncode != 0:
        tail = (done.stdout + done.stderr).decode(errors="replace").strip()[-2000:]
        raise ServerUnavailable(f"making its data folder ended with code {done.returncode}: {tail}")


def mysql_version(url: str) -> str:
    """`MySQL 9.7.4` or `MariaDB 10.11.18`."""
    from retrysafe.stores.mysql.dialect import parse_url

    connection = pymysql.connect(**parse_url(url).connect, connect_timeout=PATIENCE)
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT version()")
        (told,) = cursor.fetchone() or ("",)
    number = told.partition("-")[0]
    return f"MariaDB {number}" if "mariadb" in told.lower() else f"MySQL {number}"


def sessions(cursor: Any, where: str, values: Sequence[Any] | None = None) -> set[int]:
    """The connections of a server for which this holds, whatever other tests are saying to it meanwhile."""
    query_processlist(cursor, f"SELECT id FROM information_schema.processlist WHERE {where}", values)
    return {int(number) for (number,) in cursor.fetchall()}

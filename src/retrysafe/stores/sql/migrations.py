"""Schemas, versioned: `migrations/NNNN_name.sql` of a store, applied in order. The caller holds a lock on the
installation, so running it twice, or twice at once, does each step once; and opens a transaction, where the database
can roll a CREATE back.
"""

from __future__ import annotations

import re
import secrets
from importlib.resources import files
from typing import NamedTuple

from retrysafe.stores.base import Plan
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import Names

_TABLE = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\S+)")
_ALTERED = re.compile(r"ALTER (?:/\*.*?\*/ )?TABLE (\S+)")
_INDEX = re.compile(r"CREATE INDEX (?:IF NOT EXISTS )?(\S+) ON (\S+)")
_KEY = re.compile(r"ADD KEY (\S+)")
_COLUMN = re.compile(r"ADD COLUMN (?:IF NOT EXISTS )?(\w+)")


class Migration(NamedTuple):
    version: int
    name: str
    statements: tuple[str, ...]


def load(dialect: Dialect, names: Names) -> list[Migration]:
    """All migrations of a dialect, oldest first."""
    folder = files(dialect.package).joinpath("migrations")
    found = []
    for item in sorted(folder.iterdir(), key=lambda each: each.name):
        if item.name.endswith(".sql"):
            name = item.name.removesuffix(".sql")
            text = dialect.fill(item.read_text(), names)
            statements = tuple(part.strip() for part in text.split(";") if part.strip())
            found.append(Migration(int(name.partition("_")[0]), name, statements))
    return found


def latest(dialect: Dialect, names: Names) -> int:
    return load(dialect, names)[-1].version


# As texts -----------------------------------------------------------------------------------------


def script(dialect: Dialect, names: Names) -> str:
    """The whole schema as SQL, for those who apply it themselves (`retrysafe migrate --sql`)."""
    parts = []
    for migration in load(dialect, names):
        parts.append(f"-- {migration.name}")
        parts.extend(f"{text};" for text in forwards(dialect, names, migration.version))
    return "\n\n".join(parts) + "\n"


def forwards(dialect: Dialect, names: Names, version: int) -> list[str]:
    """From the version before to this one."""
    meta = [dialect.fill(dialect.create_meta, names)] if version == 1 else []
    return [*meta, *_one(dialect, names, version).statements, _put(dialect, names, version)]


def backwards(dialect: Dialect, names: Names, version: int) -> list[str]:
    """From this version to the one before: what it made is dropped, and with it what is remembered there."""
    dropped = without_indexes(dialect, names, version)
    dropped += [f"ALTER TABLE {table} DROP COLUMN {column}" for table, column in columns(dialect, names, version)]
    dropped += [f"DROP TABLE IF EXISTS {table}" for table in reversed(tables(dialect, names, version))]
    return [*dropped, _put(dialect, names, version - 1)] if version > 1 else dropped


def without_indexes(dialect: Dialect, names: Names, version: int) -> list[str]:
    """Those one version made on tables of earlier ones go before the columns they are on."""
    made = tables(dialect, names, version)
    dropped = []
    for text in _one(dialect, names, version).statements:
        altered, index = _ALTERED.match(text), _INDEX.match(text)
        if altered:
            dropped += [f"ALTER TABLE {altered.group(1)} DROP KEY {key}" for key in _KEY.findall(text)]
        elif index and index.group(2) not in made:
            schema = index.group(2).rpartition(".")[0]
            dropped.append(f"DROP INDEX IF EXISTS {schema + '.' if schema else ''}{index.group(1)}")
    return dropped


def columns(dialect: Dialect, names: Names, version: int) -> list[tuple[str, str]]:
    """What one version adds to tables of earlier ones: the table, in quotes, and the column."""
    found = []
    for text in _one(dialect, names, version).statements:
        altered = _ALTERED.match(text)
        if altered:
            found += [(altered.group(1), column) for column in _COLUMN.findall(text)]
    return found


def tables(dialect: Dialect, names: Names, version: int) -> list[str]:
    """What one version makes, in quotes."""
    made = [dialect.fill(dialect.create_meta, names)] if version == 1 else []
    found = (_TABLE.match(text) for text in (*made, *_one(dialect, names, version).statements))
    return [match.group(1) for match in found if match]


def _one(dialect: Dialect, names: Names, version: int) -> Migration:
    return next(migration for migration in load(dialect, names) if migration.version == version)


def _put(dialect: Dialect, names: Names, version: int) -> str:
    return dialect.fill(dialect.put_version, names).replace("{version}", str(version))


# Applied ------------------------------------------------------------------------------------------


def upgrade(dialect: Dialect, names: Names, to: int | None = None) -> Plan[Statement, list[str]]:
    """Apply what is missing, up to a version if one is given; the reply names what was applied."""
    yield Statement(dialect.fill(dialect.create_meta, names), {})
    return (yield from missing(dialect, names, to))


def missing(dialect: Dialect, names: Names, to: int | None = None) -> Plan[Statement, list[str]]:
    """The same where it is known that there is a table for the version."""
    at = yield Statement(dialect.fill("SELECT value FROM {meta} WHERE name = 'version'", names), {})
    version = int(at[0][0]) if at else 0
    applied = []
    for migration in load(dialect, names):
        if migration.version <= version or (to is not None and migration.version > to):
            continue
        # Written down after each: where a CREATE commits by itself, who is interrupted goes on where it stopped.
        for text in (*migration.statements, _put(dialect, names, migration.version)):
            yield Statement(text, {})
        applied.append(migration.name)
    # Minted once: how a user's connection is recognised as being to this very database.
    yield Statement(dialect.load(names)["install_put"], {"value": secrets.token_hex(16)})
    return applied

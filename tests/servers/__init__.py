"""Real servers for the tests: on the loopback address, on free ports, with data in temporary folders.

`PostgresServer`, `ValkeyServer` and `MongoServer` come from wheels, `MySQLServer` and `MariaDBServer` from
Debian's packages (debian.py), so nothing is installed by hand. Each starts, stops,
dies (`kill`) and comes back (`restart`) on the same port with the same data. `session.py` decides which servers
a test run uses; tests that need to hurt a server start their own.
"""

from tests.servers.base import Server, ServerUnavailable
from tests.servers.mongodb import MongoServer
from tests.servers.mysql import MariaDBServer, MySQLServer
from tests.servers.postgres import PostgresServer
from tests.servers.valkey import ValkeyServer

__all__ = [
    "MariaDBServer",
    "MongoServer",
    "MySQLServer",
    "PostgresServer",
    "Server",
    "ServerUnavailable",
    "ValkeyServer",
]

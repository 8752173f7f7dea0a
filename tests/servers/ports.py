"""Free ports on the loopback address."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port nobody listens on now. If another program is quicker than the server, starting it says so."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

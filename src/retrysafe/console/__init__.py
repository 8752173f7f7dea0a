"""A web console for operators: what is stuck, why, what happens by itself, and the one action that is right.

    console = Console(safe, authenticate=who_is_it)
    app.mount("/retrysafe", console.asgi)          # FastAPI, Starlette
    app.wsgi_app = console.mount_wsgi(app.wsgi_app, "/retrysafe")   # Flask

`Console.handle(Request) -> Response` knows no framework; asgi.py, wsgi.py and on_django.py are shells around it. What
it does is done by retrysafe.operators, as for the command line. docs/howto/console.md says how to mount and secure it.
"""

from __future__ import annotations

from retrysafe.core.extras import needs_extra

with needs_extra("console", "retrysafe.console"):
    from retrysafe.console.access import Operator
    from retrysafe.console.console import Console
    from retrysafe.console.messages import ConsoleRequest, ConsoleResponse

__all__ = ["Console", "ConsoleRequest", "ConsoleResponse", "Operator"]

"""Alias of `retrysafe.web.fastapi`: this is the import that people try first."""

from retrysafe.core.extras import needs_extra

with needs_extra("fastapi", "retrysafe.fastapi"):
    from retrysafe.web.fastapi import *  # noqa: F403
    from retrysafe.web.fastapi import __all__, __getattr__  # noqa: F401

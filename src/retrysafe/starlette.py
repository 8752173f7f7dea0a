"""Alias of `retrysafe.web.starlette`: this is the import that people try first."""

from retrysafe.core.extras import needs_extra

with needs_extra("starlette", "retrysafe.starlette"):
    from retrysafe.web.starlette import *  # noqa: F403
    from retrysafe.web.starlette import __all__  # noqa: F401

"""Alias of `retrysafe.web.litestar`: this is the import that people try first."""

from retrysafe.core.extras import needs_extra

with needs_extra("litestar", "retrysafe.litestar"):
    from retrysafe.web.litestar import *  # noqa: F403
    from retrysafe.web.litestar import __all__  # noqa: F401

"""Alias of `retrysafe.web.quart`: this is the import that people try first."""

from retrysafe.core.extras import needs_extra

with needs_extra("quart", "retrysafe.quart"):
    from retrysafe.web.quart import *  # noqa: F403
    from retrysafe.web.quart import __all__  # noqa: F401

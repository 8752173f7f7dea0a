"""Alias of `retrysafe.web.quart`: this is the import that people try first."""

from retrysafe.web.quart import *  # noqa: F403
from retrysafe.web.quart import __all__  # noqa: F401

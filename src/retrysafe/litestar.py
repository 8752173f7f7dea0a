"""Alias of `retrysafe.web.litestar`: this is the import that people try first."""

from retrysafe.web.litestar import *  # noqa: F403
from retrysafe.web.litestar import __all__  # noqa: F401

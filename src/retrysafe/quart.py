"""`retrysafe.web.quart` under the name that people try first."""

from retrysafe.web.quart import *  # noqa: F403
from retrysafe.web.quart import __all__  # noqa: F401

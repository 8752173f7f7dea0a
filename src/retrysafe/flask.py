"""`retrysafe.web.flask` under the name that people try first."""

from retrysafe.web.flask import *  # noqa: F403

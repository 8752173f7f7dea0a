"""Alias of `retrysafe.web.flask`: this is the import that people try first."""

from retrysafe.core.extras import needs_extra

with needs_extra("flask", "retrysafe.flask"):
    from retrysafe.web.flask import *  # noqa: F403

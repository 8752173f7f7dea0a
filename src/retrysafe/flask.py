"""Alias of `retrysafe.web.flask`: this is the import that people try first."""

from retrysafe.web.flask import *  # noqa: F403

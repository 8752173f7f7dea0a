"""Alias of `retrysafe.web.django`: the import that people try first. INSTALLED_APPS needs `retrysafe.web.django`."""

from retrysafe.core.extras import needs_extra

with needs_extra("django", "retrysafe.django"):
    from retrysafe.web.django import *  # noqa: F403
    from retrysafe.web.django import __all__  # noqa: F401

"""`retrysafe.web.django` under the name that people try first. In INSTALLED_APPS write `retrysafe.web.django`."""

from retrysafe.web.django import *  # noqa: F403
from retrysafe.web.django import __all__  # noqa: F401

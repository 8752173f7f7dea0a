from retrysafe.testing.contract.backlog import *  # noqa: F403

from retrysafe.testing.contract.identity import *  # noqa: F403

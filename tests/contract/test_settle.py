from retrysafe.testing.contract.settle import *  # noqa: F403

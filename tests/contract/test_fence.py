from retrysafe.testing.contract.fence import *  # noqa: F403

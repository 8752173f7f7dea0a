from retrysafe.testing.contract.resume import *  # noqa: F403

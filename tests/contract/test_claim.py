from retrysafe.testing.contract.claim import *  # noqa: F403

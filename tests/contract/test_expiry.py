from retrysafe.testing.contract.expiry import *  # noqa: F403

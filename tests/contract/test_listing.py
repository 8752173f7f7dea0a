from retrysafe.testing.contract.listing import *  # noqa: F403

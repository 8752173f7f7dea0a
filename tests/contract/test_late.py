from retrysafe.testing.contract.late import *  # noqa: F403

from retrysafe.testing.contract.many import *  # noqa: F403

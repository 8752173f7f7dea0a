from retrysafe.testing.contract.forget import *  # noqa: F403

"""What is served while it is measured: each a program of its own, in whichever environment has what it needs."""

TUNED = "RETRYSAFE_BENCH_TUNED"
"""Set to 1 in the environment, the FastAPI application tunes Python's garbage collector (`tune_collector`)."""

"""The pure heart: no I/O, no clock, no randomness, no third-party import.

If something here wants the time it takes `now`; if it wants I/O it returns an operation.
"""

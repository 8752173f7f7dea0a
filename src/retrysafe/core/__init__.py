"""The pure core: no I/O, no clock, no randomness, no third-party import.

A function that needs the time takes `now`; a function that needs I/O returns an operation.
"""

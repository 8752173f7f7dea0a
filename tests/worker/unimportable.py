"""A module that cannot be imported: the command line must say so."""

RESULT = 1 / 0

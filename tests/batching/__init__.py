"""Natural batching: the same answers as without, and what happens when something breaks in the middle."""

"""What is served while it is measured: each a program of its own, in whichever environment has what it needs."""

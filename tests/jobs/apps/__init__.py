"""One small application per queue, run by drive.py: the same two tasks, and the command that starts a worker."""

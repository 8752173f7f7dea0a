"""One small application per queue, run by drive.py: the same two tasks, and how a worker is started."""

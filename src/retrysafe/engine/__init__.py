"""The engine: flows that decide, the loops that drive them, the performers that do the I/O, and RetrySafe."""

"""The engine: flows that yield operations and calls, the two loops that drive them, and RetrySafe itself."""

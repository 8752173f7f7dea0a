"""Stores: where records live. Each is opened by URL (`open_store`) or made from your own client."""

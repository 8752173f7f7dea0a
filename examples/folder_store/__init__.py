"""A whole third-party store in two hundred lines: a record is a file in a folder. See docs/howto/write-a-store.md."""

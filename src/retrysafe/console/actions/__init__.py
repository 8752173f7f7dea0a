"""The routes that change something, one file each. A console without `actions=True` has none of them."""

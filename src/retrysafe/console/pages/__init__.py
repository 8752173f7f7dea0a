"""The pages that show, one file each. Each takes a Visit and returns a Response."""

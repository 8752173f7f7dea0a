"""Recipes: one small program for each pattern, run by tests/recipes."""

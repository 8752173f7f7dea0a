"""Django's management commands."""

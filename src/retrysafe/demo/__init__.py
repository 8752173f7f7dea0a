"""The demo: a payments API one can double-click on."""

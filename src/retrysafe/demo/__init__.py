"""The demo of `make demo`: a payments API and a page to try retries on."""

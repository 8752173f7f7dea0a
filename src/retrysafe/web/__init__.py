"""HTTP: the parts that know no framework, and two middlewares on top of them, `web.asgi` and `web.wsgi`.

view.py       what callables see of a request          keyheader.py  the Idempotency-Key header
routes.py     which policy a request falls under       problems.py   answers of our own (RFC 9457)
capture.py    an answer on its way in and out          load.py       durations, waiters, quotas
paths.py      its one spelling, and its safe name      census.py     who sends keys
fingerprints.py  what counts as the same request       telling.py    our errors as the log may have them
exchange.py   one request from claim to settlement     status.py     the status URL of `busy="accepted"`
settings.py   every option of a middleware             asgi.py · wsgi.py
"""

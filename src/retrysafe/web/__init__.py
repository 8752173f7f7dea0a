"""HTTP: two middlewares, `web.asgi` and `web.wsgi`, on parts that know no framework, and one adapter per framework.

settings.py      every option of a middleware          routes.py           which policy a request falls under
view.py          what the user's callables see         key_header.py       the Idempotency-Key header
paths.py         normalized paths, safe names          fingerprints.py     what counts as the same request
exchange.py      one request, from claim to settling   sync_async.py       the exchange for WSGI and for ASGI
claim_flows.py   claiming: interrupted, waiting        exchange_context.py the exchange of the current request
asgi.py          the ASGI middleware                   wsgi.py             the WSGI middleware
asgi_answer.py   holds the answer back until stored    wsgi_answer.py      the same for WSGI
capture.py       answers into the store and out        wsgi_body.py        request bodies of WSGI
problems.py      our own answers (RFC 9457), log text  status.py           the status URL of `busy="accepted"`
transaction_flow.py, transaction_io.py                 `strength="transaction"`: the answer commits with the work
endpoint_entry.py  was an endpoint entered?            observe.py          `mode="observe"`
traffic.py       durations, waiting requests, quotas   key_usage.py        which clients send keys
asgi_adapter.py  what the framework adapters share     openapi.py          the OpenAPI document
"""

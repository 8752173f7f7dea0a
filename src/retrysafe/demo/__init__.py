"""The demo of `make demo`: a shop, a payment provider, and a page that clicks, cuts the network and kills the server.

shop.py               the application: the code that you would write. The page shows this file.
provider.py           the payment provider, a process of its own: its charges survive the shop
provider_webhooks.py  how the provider reports its charges
child.py              runs either of them as a process
supervisor.py         starts both, kills the shop, restarts it
network.py            carries requests from the browser to the shop and from the shop to the provider, or loses them
bus.py                what happened, as events for the page
key_view.py           one key as the page shows it
front.py              the page, and everything above behind one port
"""

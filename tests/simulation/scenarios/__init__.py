"""Applications and actors that our ablations need beside the shop: each shows one kind of defect quickly.

A scenario breaks no rule by itself (`test_scenarios.py`). The actors here have no host of their own: they are tasks of
an application's process, started by `deploy`, and named so that the check for leaks leaves them alone.
"""

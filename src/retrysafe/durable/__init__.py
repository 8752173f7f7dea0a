"""Keys for people who have a durable runtime: an id for the workflow a request starts, and a key for each of its steps.

`retrysafe.durable.dbos` and `retrysafe.durable.temporal` need their runtime installed; this file needs none.
"""

from __future__ import annotations

from retrysafe.durable.ids import workflow_id

__all__ = ["workflow_id"]

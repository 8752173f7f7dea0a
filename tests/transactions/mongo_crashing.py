"""One payment in a MongoDB transaction, by a process that kills itself at a given point. Run by test_mongo.py.

Points are before and after each command (ours and the user's) and before and after the commit. Point 0 is never
reached: it runs to the end and says how many there were.
"""

from __future__ import annotations

from typing import Any

from pymongo import MongoClient

from retrysafe import Answer, RetrySafe
from retrysafe.stores.mongo.settings import parse_url
from retrysafe.transactions import run
from tests.opening import with_option
from tests.transactions.crashing import ANSWER, TASK, PointedSource, Points

COLLECTIONS = ("orders", "charges")


def pay(url: str, appname: str, die_at: int) -> int:
    safe, point = RetrySafe(url), Points(die_at)

    def body(session: Any) -> Answer:
        for name in COLLECTIONS:
            collection = session.client.get_default_database()[name]
            point.around(lambda into=collection: into.insert_one({"value": 7}, session=session))
        return ANSWER

    with MongoClient[Any](with_option(parse_url(url).url, "appname", appname)) as client:
        ended = run(safe, TASK, PointedSource(client, point), body)
    point()
    safe.close()
    assert ended.answer == ANSWER
    return point.passed

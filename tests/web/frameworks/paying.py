"""What a protected `POST /v1/pay/7` and `POST /v1/orders` do in any framework; an adapter's tests subclass it.

The application signs in `Bearer alice` and `Bearer bob`, refuses accounts in `revoked`, counts its runs in the
answer, and reports in `/v1/orders` that the key `busy` is in progress.
"""

from __future__ import annotations

from typing import Any, ClassVar

from retrysafe import Key, RetrySafe
from retrysafe.core.ops import Lookup
from tests.web.frameworks.calling import ALICE, BOB, calling, is_problem, is_replay, keyed


class Paying:
    app: ClassVar[Any]
    safe: ClassVar[RetrySafe]
    revoked: ClassVar[set[str]]
    target: ClassVar[str]
    """The route template of `/v1/pay/7` in the framework."""

    async def test_it_runs_once_and_is_replayed(self) -> None:
        sent = keyed("k1")
        async with calling(self.app) as http:
            first, again = [await http.post("/v1/pay/7", headers=sent, json={"a": 1}) for _ in range(2)]
            other = await http.post("/v1/pay/7", headers=sent, json={"a": 2})
        assert first.status_code == 201, first.text
        assert first.json() == {"run": 1, "key": "k1", "sent": {"a": 1}}
        assert is_replay(first, again)
        assert is_problem(other, 422, "mismatch")
        found = await self.safe.aexecute(Lookup(Key("k1", "alice").id(self.safe.namespace)))
        assert found.record is not None
        assert found.record.target == self.target

    async def test_a_replay_never_answers_someone_who_could_not_have_asked(self) -> None:
        sent = keyed()
        async with calling(self.app) as http:
            await http.post("/v1/pay/7", headers=sent, json={})
            nobody = await http.post("/v1/pay/7", headers={"Idempotency-Key": sent["Idempotency-Key"]}, json={})
            bob = await http.post("/v1/pay/7", headers={**sent, **BOB}, json={})
            self.revoked.add("alice")
            revoked = await http.post("/v1/pay/7", headers=sent, json={})
        assert (nobody.status_code, revoked.status_code) == (401, 403)
        assert "run" not in nobody.text + revoked.text
        assert bob.json()["run"] == 2

    async def test_missing_and_malformed_keys(self) -> None:
        async with calling(self.app) as http:
            assert is_problem(await http.post("/v1/pay/7", headers=ALICE, json={}), 400, "missing-key")
            assert is_problem(await http.post("/v1/pay/7", headers=keyed("a, b"), json={}), 400, "malformed-key")
            assert (await http.get("/v1/pay", headers=ALICE)).json() == {"runs": 0}

    async def test_an_operation_claims_its_own_record_and_its_answer_is_sent_as_it_is(self) -> None:
        async with calling(self.app) as http:
            told = await http.post("/v1/orders", headers=keyed("o1"))
            busy = await http.post("/v1/orders", headers=keyed("busy"))
        assert (told.status_code, told.content) == (201, b'{"order":"o1"}')
        assert told.headers.get_list("link") == ["</a>", "</b>"]
        assert is_problem(busy, 409, "in-progress")

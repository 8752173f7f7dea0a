"""AsyncExchange (ASGI) and SyncExchange (WSGI). The steps are the same and decide nothing; only the waiting differs."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from retrysafe.core.keys import Key
from retrysafe.engine.drive import FirstReply
from retrysafe.engine.effects import Flow
from retrysafe.engine.guard import Task
from retrysafe.engine.heartbeat import adopt_lease, disown_lease
from retrysafe.errors import RetrySafeError, StoreError
from retrysafe.policy import Policy
from retrysafe.web import observe
from retrysafe.web.capture import HeaderPairs, Response
from retrysafe.web.exchange import BodyRefused, Exchange, scope_from_principal
from retrysafe.web.exchange_context import ResponseReady
from retrysafe.web.settlement import GrantedClaim


class AsyncBody(Protocol):
    async def read_all(self, limit: int, seconds: float, *, keep: bool = False) -> list[bytes]: ...
    async def drain_refused(self, seconds: float) -> None: ...


class SyncBody(Protocol):
    def read_all(self, limit: int, seconds: float, *, keep: bool = False) -> list[bytes]: ...
    def drain_refused(self, seconds: float) -> None: ...


class AsyncSettler(Protocol):
    async def settle(self, flow: Flow[Response | None]) -> Response | None: ...


class SyncSettler(Protocol):
    def settle(self, flow: Flow[Response | None]) -> Response | None: ...


class AsyncExchange(Exchange):
    """The exchange of an ASGI request. The work has a task of its own, so what is set in its context ends with it."""

    body: AsyncBody
    transaction: AsyncSettler | None = None
    """The user's transaction, if the route has `strength="transaction"`: then the open transaction is the claim."""

    async def claim(self, principal: Any, policy: Policy | None = None, *, target: str | None = None) -> Key | None:
        """Claim this request's key for the principal. None: the request runs unprotected, as its mode allows.

        Raises ResponseReady when the application must not run.
        """
        key = await self.claim_without_adopting(principal, policy, target=target)
        if self.grant is not None:
            if not self.grant.lease.fits(0.0):
                await self.check_late_start(self.grant)
            adopt_lease(self.grant.lease)
        elif self.response is not None:
            raise ResponseReady("the answer is stored")
        return key

    async def claim_without_adopting(
        self, principal: Any, policy: Policy | None = None, *, target: str | None = None
    ) -> Key | None:
        """`claim` outside the context of the work. The code that runs the work checks the lease and adopts it. A replay
        is left in `response`, and None is returned: most answers of our own are replays, and an exception costs
        more."""
        policy = self.begin(policy, target)
        scope = principal if isinstance(principal, str) else scope_from_principal(principal)
        if policy.mode == "observe":
            await self._observe(scope, policy)
            return None
        key = self.read_key(scope, policy)
        if key is None:
            return None
        task = self.build_task(key, policy, await self._read_body(policy))
        grant = await self._send_claim(task)
        if grant is None:
            return None
        self.settings.safe.akeep(grant.lease, policy.lease)
        return self.record_grant(grant)

    async def _send_claim(self, task: Task) -> GrantedClaim | None:
        """Send the claim without a flow. The flow decides about every reply that is not plain, and about errors."""
        safe, claim = self.settings.safe, task.build_claim()
        if self.settings.quotas.limited:
            return await safe.arun(self.claim_flow(task, claim))
        try:
            reply = await safe.async_performer().execute_through_cancel(claim)
        except BaseException as error:
            first = FirstReply(error=error)
        else:
            grant = self.take_plain_reply(task, claim, reply)
            if grant is not None or self.response is not None:
                return grant
            first = FirstReply(reply)
        return await safe.arun(self.claim_flow(task, claim), first)

    async def check_late_start(self, grant: GrantedClaim) -> None:
        """The process was paused after it sent the claim, and the lease has ended: run the application only if no other
        owner has taken the record over (I33)."""
        reason: RetrySafeError = grant.lease.lease_lost_error()
        try:
            if await self.settings.safe.async_performer().ensure_lease(grant.lease):
                return
        except StoreError as error:
            reason = error
        except BaseException:  # cancelled: nothing ran, and nobody has to be asked
            await self.settings.safe.arun(self.release_unstarted())
            raise
        await self.settings.safe.arun(self.release_unstarted())
        raise self.refusal_error(reason)

    async def identify(
        self, principal: Any, policy: Policy | None = None, *, target: str | None = None, keep: bool = False
    ) -> Task | None:
        """Read key and fingerprint without a claim, for operations and transactions, which make their own record.
        `keep` the body if the application may have to run again."""
        policy = self.begin(policy, target)
        key = self.read_key(scope_from_principal(principal), policy)
        return None if key is None else self.build_task(key, policy, await self._read_body(policy, keep))

    def settle(self, flow: Flow[Response | None]) -> Awaitable[Response | None]:
        if self.transaction is not None:
            return self.transaction.settle(flow)
        return self.settings.safe.arun(flow)

    async def settle_answer(self, code: int, headers: HeaderPairs, body: bytes) -> Response | None:
        """Settle the application's answer. The answer is stored without a flow where nothing else is to be done."""
        if self.transaction is not None:
            return await self.transaction.settle(self.settle_answered(code, headers, body))
        safe, answer = self.settings.safe, self.build_final_answer(code, headers, body)
        if answer is None:
            return await safe.arun(self.give_back_flow(f"it answered {code}"))
        sent = self.build_completion(answer)
        try:
            stored = await safe.async_performer().execute_through_cancel(sent.op, sent.until)
        except BaseException as error:
            first = FirstReply(error=error)
        else:
            if stored and self.end_plain_completion(answer):
                return None
            first = FirstReply(stored)
        return await safe.arun(self.complete_flow(answer), first)

    async def end_observation(self) -> None:
        if self.observation_lease is not None:
            await self.settings.safe.arun(observe.end_observation(self))

    async def _read_body(self, policy: Policy, keep: bool = False) -> list[bytes]:
        try:
            return await self.body.read_all(policy.max_body, self.settings.read_timeout, keep=keep)
        except BodyRefused as error:
            await self.body.drain_refused(self.settings.read_timeout)
            raise self.refusal_error(error.problem) from None

    async def _observe(self, scope: str, policy: Policy) -> None:
        key = observe.read_observed_key(self, scope)
        if key is not None:
            try:
                chunks = await self.body.read_all(policy.max_body, self.settings.read_timeout)
            except BodyRefused:
                self.count_usage("would_refuse", scope)
            else:
                await self.settings.safe.arun(observe.begin_observation(self, self.build_task(key, policy, chunks)))


class SyncExchange(Exchange):
    """The exchange of a WSGI request: the same steps in the request's own thread."""

    body: SyncBody
    transaction: SyncSettler | None = None

    def claim(self, principal: Any, policy: Policy | None = None, *, target: str | None = None) -> Key | None:
        """Claim this request's key for the principal. None: the request runs unprotected, as its mode allows.

        Raises ResponseReady when the application must not run.
        """
        policy = self.begin(policy, target)
        if policy.mode == "observe":
            self._observe(scope_from_principal(principal), policy)
            return None
        key = self.read_key(scope_from_principal(principal), policy)
        if key is None:
            return None
        task = self.build_task(key, policy, self._read_body(policy))
        grant = self._send_claim(task)
        if grant is None:
            raise ResponseReady("the answer is stored")
        token = adopt_lease(grant.lease)
        self.settings.safe.keep(grant.lease, policy.lease)
        key = self.record_grant(grant, lambda: disown_lease(token))
        if not grant.lease.fits(0.0):
            self._check_late_start(grant)
        return key

    def _send_claim(self, task: Task) -> GrantedClaim | None:
        safe, claim = self.settings.safe, task.build_claim()
        if self.settings.quotas.limited:
            return safe.run(self.claim_flow(task, claim))
        try:
            reply = safe.performer().execute(claim)
        except BaseException as error:
            first = FirstReply(error=error)
        else:
            grant = self.take_plain_reply(task, claim, reply)
            if grant is not None or self.response is not None:
                return grant
            first = FirstReply(reply)
        return safe.run(self.claim_flow(task, claim), first)

    def _check_late_start(self, grant: GrantedClaim) -> None:
        reason: RetrySafeError = grant.lease.lease_lost_error()
        try:
            if self.settings.safe.performer().ensure_lease(grant.lease):
                return
        except StoreError as error:
            reason = error
        except BaseException:
            self.settings.safe.run(self.release_unstarted())
            raise
        self.settings.safe.run(self.release_unstarted())
        raise self.refusal_error(reason)

    def identify(
        self, principal: Any, policy: Policy | None = None, *, target: str | None = None, keep: bool = False
    ) -> Task | None:
        """Read key and fingerprint without a claim, for operations and transactions, which make their own record.
        `keep` the body if the application may have to run again."""
        policy = self.begin(policy, target)
        key = self.read_key(scope_from_principal(principal), policy)
        return None if key is None else self.build_task(key, policy, self._read_body(policy, keep))

    def settle(self, flow: Flow[Response | None]) -> Response | None:
        if self.transaction is not None:
            return self.transaction.settle(flow)
        return self.settings.safe.run(flow)

    def settle_answer(self, code: int, headers: HeaderPairs, body: bytes) -> Response | None:
        """Settle the application's answer. The answer is stored without a flow where nothing else is to be done."""
        if self.transaction is not None:
            return self.transaction.settle(self.settle_answered(code, headers, body))
        safe, answer = self.settings.safe, self.build_final_answer(code, headers, body)
        if answer is None:
            return safe.run(self.give_back_flow(f"it answered {code}"))
        sent = self.build_completion(answer)
        try:
            stored = safe.performer().execute(sent.op, sent.until)
        except BaseException as error:
            first = FirstReply(error=error)
        else:
            if stored and self.end_plain_completion(answer):
                return None
            first = FirstReply(stored)
        return safe.run(self.complete_flow(answer), first)

    def end_observation(self) -> None:
        if self.observation_lease is not None:
            self.settings.safe.run(observe.end_observation(self))

    def _read_body(self, policy: Policy, keep: bool = False) -> list[bytes]:
        try:
            return self.body.read_all(policy.max_body, self.settings.read_timeout, keep=keep)
        except BodyRefused as error:
            self.body.drain_refused(self.settings.read_timeout)
            raise self.refusal_error(error.problem) from None

    def _observe(self, scope: str, policy: Policy) -> None:
        key = observe.read_observed_key(self, scope)
        if key is not None:
            try:
                chunks = self.body.read_all(policy.max_body, self.settings.read_timeout)
            except BodyRefused:
                self.count_usage("would_refuse", scope)
            else:
                self.settings.safe.run(observe.begin_observation(self, self.build_task(key, policy, chunks)))

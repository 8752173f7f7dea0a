"""An exchange in its two colours. Nothing is decided here: the steps are the same, only the waiting differs."""

from __future__ import annotations

from typing import Any, Protocol

from retrysafe.core.keys import Key
from retrysafe.engine.effects import Flow
from retrysafe.engine.guard import Task
from retrysafe.engine.heartbeat import adopt_lease, disown_lease
from retrysafe.errors import RetrySafeError, StoreError
from retrysafe.policy import Policy
from retrysafe.web import observe
from retrysafe.web.capture import Response
from retrysafe.web.exchange import BodyRefused, Exchange, GrantedClaim, scope_from_principal


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
    """The colour of ASGI. It lives in a task of its own, so what it puts into the context ends with it."""

    body: AsyncBody
    transaction: AsyncSettler | None = None
    """The user's transaction that this claim is, where the route has that strength."""

    async def claim(self, principal: Any, policy: Policy | None = None, *, target: str | None = None) -> Key | None:
        """Claim this request's key for the principal. None: it runs unprotected, as its mode allows.

        Raises ResponseReady when the application must not run.
        """
        key = await self.claim_without_adopting(principal, policy, target=target)
        if self.grant is not None:
            adopt_lease(self.grant.lease)
        return key

    async def claim_without_adopting(
        self, principal: Any, policy: Policy | None = None, *, target: str | None = None
    ) -> Key | None:
        """`claim` in a context that is not the work's: whoever runs that adopts its lease."""
        policy = self.begin(policy, target)
        if policy.mode == "observe":
            await self._observe(scope_from_principal(principal), policy)
            return None
        key = self.read_key(scope_from_principal(principal), policy)
        if key is None:
            return None
        task = self.build_task(key, policy, await self._read_body(policy))
        held = await self.settings.safe.arun(self.claim_flow(task))
        key = self.record_grant(held, self.settings.safe.akeep(held.lease, policy.lease))
        if not held.lease.fits(0.0):
            await self._check_late_start(held)
        return key

    async def _check_late_start(self, held: GrantedClaim) -> None:
        """The process stood still since the claim was sent, and its lease is over: the application runs only if nobody
        else has it by now (I33)."""
        why: RetrySafeError = held.lease.lease_lost_error()
        try:
            if await self.settings.safe.async_performer().ensure_lease(held.lease):
                return
        except StoreError as error:
            why = error
        await self.settings.safe.arun(self.release_unstarted())
        raise self.refusal_error(why)

    async def identify(
        self, principal: Any, policy: Policy | None = None, *, target: str | None = None, keep: bool = False
    ) -> Task | None:
        """The key and the fingerprint without a claim, for a strength that makes its own record. `keep` the body where
        the application may have to be called again."""
        policy = self.begin(policy, target)
        key = self.read_key(scope_from_principal(principal), policy)
        return None if key is None else self.build_task(key, policy, await self._read_body(policy, keep))

    async def settle(self, flow: Flow[Response | None]) -> Response | None:
        if self.transaction is not None:
            return await self.transaction.settle(flow)
        return await self.settings.safe.arun(flow)

    async def end_observation(self) -> None:
        if self.observed is not None:
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
    """The colour of WSGI: the same steps in the request's own thread."""

    body: SyncBody
    transaction: SyncSettler | None = None

    def claim(self, principal: Any, policy: Policy | None = None, *, target: str | None = None) -> Key | None:
        """Claim this request's key for the principal. None: it runs unprotected, as its mode allows.

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
        held = self.settings.safe.run(self.claim_flow(task))
        token = adopt_lease(held.lease)
        key = self.record_grant(held, self.settings.safe.keep(held.lease, policy.lease), lambda: disown_lease(token))
        if not held.lease.fits(0.0):
            self._check_late_start(held)
        return key

    def _check_late_start(self, held: GrantedClaim) -> None:
        why: RetrySafeError = held.lease.lease_lost_error()
        try:
            if self.settings.safe.performer().ensure_lease(held.lease):
                return
        except StoreError as error:
            why = error
        self.settings.safe.run(self.release_unstarted())
        raise self.refusal_error(why)

    def identify(
        self, principal: Any, policy: Policy | None = None, *, target: str | None = None, keep: bool = False
    ) -> Task | None:
        """The key and the fingerprint without a claim, for a strength that makes its own record. `keep` the body where
        the application may have to be called again."""
        policy = self.begin(policy, target)
        key = self.read_key(scope_from_principal(principal), policy)
        return None if key is None else self.build_task(key, policy, self._read_body(policy, keep))

    def settle(self, flow: Flow[Response | None]) -> Response | None:
        if self.transaction is not None:
            return self.transaction.settle(flow)
        return self.settings.safe.run(flow)

    def end_observation(self) -> None:
        if self.observed is not None:
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

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
from retrysafe.web.exchange import BodyRefused, Exchange, Held, as_scope


class AsyncBody(Protocol):
    async def drain(self, limit: int, seconds: float, *, keep: bool = False) -> list[bytes]: ...
    async def linger(self, seconds: float) -> None: ...


class SyncBody(Protocol):
    def drain(self, limit: int, seconds: float, *, keep: bool = False) -> list[bytes]: ...
    def linger(self, seconds: float) -> None: ...


class AsyncJoint(Protocol):
    async def settle(self, flow: Flow[Response | None]) -> Response | None: ...


class SyncJoint(Protocol):
    def settle(self, flow: Flow[Response | None]) -> Response | None: ...


class AsyncExchange(Exchange):
    """The colour of ASGI. It lives in a task of its own, so what it puts into the context ends with it."""

    body: AsyncBody
    joint: AsyncJoint | None = None
    """The user's transaction that this claim is, where the route has that strength."""

    async def claim(self, principal: Any, policy: Policy | None = None, *, target: str | None = None) -> Key | None:
        """Claim this request's key for the principal. None: it runs unprotected, as its mode allows.

        Raises Shortcut when the application must not run.
        """
        key = await self.take(principal, policy, target=target)
        if self.held is not None:
            adopt_lease(self.held.lease)
        return key

    async def take(self, principal: Any, policy: Policy | None = None, *, target: str | None = None) -> Key | None:
        """`claim` in a context that is not the work's: whoever runs that adopts its lease."""
        policy = self.asks(policy, target)
        if policy.mode == "observe":
            await self._observe(as_scope(principal), policy)
            return None
        key = self.identified(as_scope(principal), policy)
        if key is None:
            return None
        task = self.task(key, policy, await self._drained(policy))
        held = await self.settings.safe.arun(self.opening(task))
        key = self.hold(held, self.settings.safe.akeep(held.lease, policy.lease))
        if not held.lease.fits(0.0):
            await self._begin_late(held)
        return key

    async def _begin_late(self, held: Held) -> None:
        """The process stood still since the claim was sent, and its lease is over: the application runs only if nobody
        else has it by now (I33)."""
        why: RetrySafeError = held.lease.lost_to_another()
        try:
            if await self.settings.safe.async_performer().kept(held.lease):
                return
        except StoreError as error:
            why = error
        await self.settings.safe.arun(self.not_begun())
        raise self.refused(why)

    async def identify(
        self, principal: Any, policy: Policy | None = None, *, target: str | None = None, keep: bool = False
    ) -> Task | None:
        """The key and the fingerprint without a claim, for a strength that makes its own record. `keep` the body where
        the application may have to be called again."""
        policy = self.asks(policy, target)
        key = self.identified(as_scope(principal), policy)
        return None if key is None else self.task(key, policy, await self._drained(policy, keep))

    async def settle(self, flow: Flow[Response | None]) -> Response | None:
        if self.joint is not None:
            return await self.joint.settle(flow)
        return await self.settings.safe.arun(flow)

    async def observed_end(self) -> None:
        if self.observed is not None:
            await self.settings.safe.arun(observe.ended(self))

    async def _drained(self, policy: Policy, keep: bool = False) -> list[bytes]:
        try:
            return await self.body.drain(policy.max_body, self.settings.read_timeout, keep=keep)
        except BodyRefused as error:
            await self.body.linger(self.settings.read_timeout)
            raise self.refused(error.problem) from None

    async def _observe(self, scope: str, policy: Policy) -> None:
        key = observe.sent_key(self, scope)
        if key is not None:
            try:
                chunks = await self.body.drain(policy.max_body, self.settings.read_timeout)
            except BodyRefused:
                self.count("would_refuse", scope)
            else:
                await self.settings.safe.arun(observe.began(self, self.task(key, policy, chunks)))


class SyncExchange(Exchange):
    """The colour of WSGI: the same steps in the request's own thread."""

    body: SyncBody
    joint: SyncJoint | None = None

    def claim(self, principal: Any, policy: Policy | None = None, *, target: str | None = None) -> Key | None:
        """Claim this request's key for the principal. None: it runs unprotected, as its mode allows.

        Raises Shortcut when the application must not run.
        """
        policy = self.asks(policy, target)
        if policy.mode == "observe":
            self._observe(as_scope(principal), policy)
            return None
        key = self.identified(as_scope(principal), policy)
        if key is None:
            return None
        task = self.task(key, policy, self._drained(policy))
        held = self.settings.safe.run(self.opening(task))
        token = adopt_lease(held.lease)
        key = self.hold(held, self.settings.safe.keep(held.lease, policy.lease), lambda: disown_lease(token))
        if not held.lease.fits(0.0):
            self._begin_late(held)
        return key

    def _begin_late(self, held: Held) -> None:
        why: RetrySafeError = held.lease.lost_to_another()
        try:
            if self.settings.safe.performer().kept(held.lease):
                return
        except StoreError as error:
            why = error
        self.settings.safe.run(self.not_begun())
        raise self.refused(why)

    def identify(
        self, principal: Any, policy: Policy | None = None, *, target: str | None = None, keep: bool = False
    ) -> Task | None:
        """The key and the fingerprint without a claim, for a strength that makes its own record. `keep` the body where
        the application may have to be called again."""
        policy = self.asks(policy, target)
        key = self.identified(as_scope(principal), policy)
        return None if key is None else self.task(key, policy, self._drained(policy, keep))

    def settle(self, flow: Flow[Response | None]) -> Response | None:
        if self.joint is not None:
            return self.joint.settle(flow)
        return self.settings.safe.run(flow)

    def observed_end(self) -> None:
        if self.observed is not None:
            self.settings.safe.run(observe.ended(self))

    def _drained(self, policy: Policy, keep: bool = False) -> list[bytes]:
        try:
            return self.body.drain(policy.max_body, self.settings.read_timeout, keep=keep)
        except BodyRefused as error:
            self.body.linger(self.settings.read_timeout)
            raise self.refused(error.problem) from None

    def _observe(self, scope: str, policy: Policy) -> None:
        key = observe.sent_key(self, scope)
        if key is not None:
            try:
                chunks = self.body.drain(policy.max_body, self.settings.read_timeout)
            except BodyRefused:
                self.count("would_refuse", scope)
            else:
                self.settings.safe.run(observe.began(self, self.task(key, policy, chunks)))

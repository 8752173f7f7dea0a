"""Encryption of what is stored: answers, inputs, progress, staged jobs. The sealer encrypts the fields of an operation
before it goes to the store. So it works for every store, and no store knows of it.

AES-256-GCM with a random 96-bit nonce. The associated data is the record's id, the field and the status, so a
ciphertext moved to another row, field or status does not open (S11). The key ring has one active key and any
number of older ones that still open; rotating is adding a key and making it active.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from retrysafe.core.keys import frame
from retrysafe.core.ops import Advance, Claim, ClaimReply, Complete, LookupReply, Op, Page, Resolve
from retrysafe.core.records import Answer, Fingerprint, Record
from retrysafe.errors import CorruptRecord, MissingDriver, UsageError

if TYPE_CHECKING:
    from retrysafe.core.jobs import Job, StagedJob

R = TypeVar("R")

MAGIC = b"rs1"
SEALED_HEADERS = (("retrysafe-sealed", "1"),)
"""Stored as the headers of a sealed answer, so that a reader without the ring does not take it for a plain body."""
NONCE_BYTES = 12
KEY_BYTES = 32


class KeyRing:
    """Keys by name. `KeyRing({"2026-11": key, "2026-05": old}, active="2026-11")`; each key is 32 random bytes.

    `accept_plain` also reads what was stored before there was a ring: set it for one retention after that.

    `keyed_fingerprints` makes fingerprints with the active key too, so that a reader of the store cannot guess a short
    body from its digest (S12). The release before this one does not know keyed fingerprints and would see another
    request: switch it on when all its processes are gone. Records of both forms are always compared correctly.
    """

    def __init__(
        self,
        keys: Mapping[str, bytes],
        active: str | None = None,
        *,
        accept_plain: bool = False,
        keyed_fingerprints: bool = False,
    ) -> None:
        self.accept_plain = accept_plain
        self.keyed_fingerprints = keyed_fingerprints
        if not keys:
            raise UsageError("KeyRing({}) has no key: give at least one, made with secrets.token_bytes(32)")
        for name, key in keys.items():
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                size = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
                raise UsageError(
                    f"key {name!r} of the key ring is {size}; give {KEY_BYTES} random bytes: "
                    f"secrets.token_bytes({KEY_BYTES})"
                )
            if not name or len(name.encode()) > 255:
                raise UsageError(f"key name {name!r} must have 1 to 255 bytes")
        self.active = active if active is not None else next(iter(keys))
        if self.active not in keys:
            raise UsageError(f"the active key {self.active!r} is not in the ring; it holds {', '.join(keys)}")
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise MissingDriver("encryption", "cryptography", "encryption", "a key ring") from error
        self._ciphers = {name: AESGCM(key) for name, key in keys.items()}
        self._hash_keys = {name: _derive_hash_key(key) for name, key in keys.items()}

    def key_fingerprint(self, name: str, plain: Fingerprint) -> Fingerprint:
        """A request's fingerprint under one key of the ring."""
        framed = frame(plain.algorithm, plain.digest, str(plain.length))
        keyed = hmac.digest(self._hash_keys[name], framed, "sha256")
        return Fingerprint(f"{plain.algorithm}+{quote(name, safe='')}", keyed, plain.length)

    def fingerprint_forms(self, plain: Sequence[Fingerprint]) -> tuple[Fingerprint, ...]:
        """Every form in which a request may be stored, the one to write first. `plain` are its forms without a key."""
        names = sorted(self._hash_keys, key=lambda name: name != self.active)
        keyed = tuple(self.key_fingerprint(name, form) for form in plain for name in names)
        return (*keyed, *plain) if self.keyed_fingerprints else (*plain, *keyed)

    def encrypt(self, data: bytes, bound_to: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        name = self.active.encode()
        sealed = self._ciphers[self.active].encrypt(nonce, data, bound_to)
        return MAGIC + bytes([len(name)]) + name + nonce + sealed

    def decrypt(self, data: bytes, bound_to: bytes) -> bytes:
        """Raises ValueError with the reason if the data cannot be decrypted."""
        if not data.startswith(MAGIC):
            if self.accept_plain:
                return data
            raise ValueError(
                "it is not encrypted, but a key ring is set; if it is older than that: KeyRing(accept_plain=True)"
            )
        size = int.from_bytes(data[len(MAGIC) : len(MAGIC) + 1], "big")  # 0, not an IndexError, when cut off here
        start = len(MAGIC) + 1 + size
        name = data[len(MAGIC) + 1 : start].decode("utf-8", "replace")
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise ValueError(f"it was encrypted with key {name!r}, which is not in the ring; add it as an old key")
        from cryptography.exceptions import InvalidTag

        try:
            return cipher.decrypt(data[start : start + NONCE_BYTES], data[start + NONCE_BYTES :], bound_to)
        except InvalidTag:
            raise ValueError(f"key {name!r} does not open it: it was changed or moved") from None


def _derive_hash_key(key: bytes) -> bytes:
    """A second key, for fingerprints: the key that encrypts must not be used to hash."""
    return hmac.digest(key, b"retrysafe fingerprints", "sha256")


class Sealer:
    """Encrypts operations on their way to the store, and decrypts replies on their way back."""

    def __init__(self, ring: KeyRing | None) -> None:
        self._ring = ring
        self.active = ring is not None
        """Whether a key ring is set. Then no text of the user's may be stored in the clear."""

    def fingerprint_forms(self, plain: Sequence[Fingerprint]) -> tuple[Fingerprint, ...]:
        """Every form in which a request's fingerprint may be stored, the one to write first."""
        return tuple(plain) if self._ring is None else self._ring.fingerprint_forms(plain)

    def seal(self, op: Op[R]) -> Op[R]:
        if self._ring is None:
            return op
        sealed: Any = self._seal_op(self._ring, op)
        return sealed  # type: ignore[no-any-return]  # an operation is sealed into one of its own type

    @staticmethod
    def _seal_op(ring: KeyRing, op: Op[Any]) -> Op[Any]:
        if isinstance(op, Claim) and op.input:
            return replace(op, input=ring.encrypt(op.input, _associated_data(op.id, "input")))
        if isinstance(op, Advance) and op.progress:
            return replace(op, progress=ring.encrypt(op.progress, _associated_data(op.id, "progress")))
        from retrysafe.core.jobs import Stage  # not above: only an encrypted outbox needs it

        if isinstance(op, Stage):
            return replace(op, jobs=tuple(job._replace(payload=_seal_payload(ring, job)) for job in op.jobs))
        if isinstance(op, Complete | Resolve) and op.answer is not None and not op.answer.gone:
            return replace(op, answer=_seal_answer(ring, op.id, op.answer))
        return op

    def seal_text(self, text: str, *bound_to: bytes | str) -> str:
        """Encrypt a text for a text column. `bound_to` is its place: moved elsewhere, it cannot be decrypted."""
        if self._ring is None:
            return text
        return base64.b64encode(self._ring.encrypt(text.encode(), frame("text", *bound_to))).decode()

    def open_text(self, text: str, *bound_to: bytes | str) -> str:
        """Decrypt such a text. Raises ValueError with the reason if it cannot be decrypted."""
        if self._ring is None:
            return text
        return self._ring.decrypt(base64.b64decode(text), frame("text", *bound_to)).decode()

    def unseal(self, reply: R) -> R:
        if self._ring is None:
            # Nothing is decrypted; but a sealed answer must not be passed on as it is.
            record = reply.record if isinstance(reply, _WITH_RECORD) else None
            if record is not None and record.answer is not None and record.answer.headers == SEALED_HEADERS:
                raise CorruptRecord(record.id, "it is encrypted, and no key ring is set; pass keyring= to RetrySafe")
            return reply
        from retrysafe.core.jobs import StagedJob

        opened: Any = reply
        if isinstance(reply, ClaimReply | LookupReply) and reply.record is not None:
            opened = reply._replace(record=_open_record(self._ring, reply.record))
        elif isinstance(reply, Page):
            opened = _open_page(self._ring, reply)
        elif isinstance(reply, tuple) and reply and isinstance(reply[0], StagedJob):
            opened = tuple(_open_job(self._ring, each) for each in reply)
        return opened  # type: ignore[no-any-return]


_WITH_RECORD = (ClaimReply, LookupReply)  # a tuple, not a union: isinstance runs for every operation


def is_sealed(record: Record) -> bool:
    """Whether a stored record shows that its application has a key ring. A record without input, progress and answer
    shows it only if fingerprints are keyed."""
    answer = record.answer is not None and record.answer.headers == SEALED_HEADERS
    fields = any(each.startswith(MAGIC) for each in (record.input, record.progress))
    return answer or fields or bool(record.fingerprint.key)


def _associated_data(record_id: bytes, field: str, status: int = 0) -> bytes:
    return frame(record_id, field, str(status))


def _seal_payload(ring: KeyRing, job: Job) -> bytes:
    return ring.encrypt(job.payload, frame("job", job.id, job.topic))


def _open_job(ring: KeyRing, staged: StagedJob) -> StagedJob:
    """Decrypt a job. A job that cannot be decrypted carries the reason, and does not hold up the others."""
    job = staged.job
    try:
        return staged._replace(job=job._replace(payload=ring.decrypt(job.payload, frame("job", job.id, job.topic))))
    except ValueError as error:
        return staged._replace(unreadable=str(error))


def _seal_answer(ring: KeyRing, record_id: bytes, answer: Answer) -> Answer:
    """Encrypt body and headers: a Location can be a secret."""
    plain = frame(json.dumps(answer.headers).encode(), answer.body)
    return Answer(
        answer.status, ring.encrypt(plain, _associated_data(record_id, "answer", answer.status)), SEALED_HEADERS
    )


def _open_page(ring: KeyRing, page: Page) -> Page:
    """Decrypt a page. A record that cannot be decrypted is listed as unreadable and does not hide the others."""
    opened, unreadable = [], list(page.unreadable)
    for record in page.records:
        try:
            opened.append(_open_record(ring, record))
        except CorruptRecord:
            unreadable.append(record.id)
    return page._replace(records=tuple(opened), unreadable=tuple(unreadable))


def _open_record(ring: KeyRing, record: Record) -> Record:
    try:
        return record._replace(
            input=ring.decrypt(record.input, _associated_data(record.id, "input")) if record.input else b"",
            progress=ring.decrypt(record.progress, _associated_data(record.id, "progress")) if record.progress else b"",
            answer=_open_answer(ring, record.id, record.answer) if record.answer is not None else None,
        )
    except ValueError as error:
        raise CorruptRecord(record.id, str(error)) from error


def _open_answer(ring: KeyRing, record_id: bytes, answer: Answer) -> Answer:
    if answer.gone or (ring.accept_plain and answer.headers != SEALED_HEADERS):
        return answer
    plain = ring.decrypt(answer.body, _associated_data(record_id, "answer", answer.status))
    size = int.from_bytes(plain[:4], "big")
    headers = json.loads(plain[4 : 4 + size])
    return Answer(answer.status, plain[8 + size :], [(name, value) for name, value in headers])

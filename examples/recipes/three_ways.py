"""A row here and a message there: split transaction, outbox, key passed downstream. Only the first loses messages."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from retrysafe import Answer, RetrySafe
from retrysafe.core.jobs import Job
from retrysafe.operations import Operation, stage

Send = Callable[[str, str], None]
"""To a mail service: a key it recognises, and the text."""


class Signup:
    def __init__(self, folder: Path, send: Send) -> None:
        self.path = folder / "signup.db"
        db = sqlite3.connect(self.path)
        db.execute("CREATE TABLE IF NOT EXISTS users (email TEXT PRIMARY KEY)")
        db.commit()
        db.close()
        self.send = send
        self.safe = RetrySafe(f"sqlite:///{self.path}", tx=self.path)
        self.safe.migrate()
        self.outbox = self._outbox()
        self.downstream = self._downstream()
        self.safe.publish("welcome")(self._deliver)

    def split(self, email: str) -> None:
        """Two systems, no protocol: a crash between the two lines leaves a user who is never welcomed."""
        db = sqlite3.connect(self.path)
        with db:
            db.execute("INSERT INTO users VALUES (?)", (email,))
        db.close()
        self.send("", f"welcome {email}")

    def users(self) -> list[str]:
        db = sqlite3.connect(self.path)
        try:
            return [email for (email,) in db.execute("SELECT email FROM users ORDER BY email")]
        finally:
            db.close()

    def _deliver(self, job: Job) -> None:
        self.send(job.id, job.payload.decode())

    def _outbox(self) -> Operation:
        """The message is a row of the same commit; the worker sends it, at least once, with a stable id."""
        signup = self.safe.operation("signup_outbox")

        @signup.local
        def add(tx: sqlite3.Connection, email: str) -> Answer:
            tx.execute("INSERT INTO users VALUES (?)", (email,))
            stage(tx, "welcome", f"welcome {email}".encode())
            return Answer(201, {"email": email})

        @signup.body
        def body(email: str) -> Answer:
            return add(email)

        return body

    def _downstream(self) -> Operation:
        """The call is a step: repeated after a crash with the same key, and the caller waits for it."""
        signup = self.safe.operation("signup_downstream")

        @signup.local
        def insert(tx: sqlite3.Connection, email: str) -> str:
            tx.execute("INSERT INTO users VALUES (?)", (email,))
            return email

        @signup.foreign
        def welcome(email: str, *, key: str) -> None:
            self.send(key, f"welcome {email}")

        @signup.body
        def body(email: str) -> Answer:
            welcome(insert(email))
            return Answer(201, {"email": email})

        return body

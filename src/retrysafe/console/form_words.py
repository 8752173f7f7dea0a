"""A refusal in the words of the console: the option of a command is the box of a form, and the page of the form is the
way back. Pure."""

from __future__ import annotations

import re

LEFT_BY_UNDO = "tick “Leave what was sent and has no undo”"
LEFT_BY_CANCEL = "tick “Leave what its steps did”"
NOT_SENT = "tick “I looked there: what may have been sent was not”"

_KEY_FORM = re.compile("/keys/([0-9a-fA-F]{1,64})/[a-z]+")


def translate(text: str, path: str) -> str:
    """The text of an error, for somebody who sent the form at `path`. Commands to copy stay as they are."""
    left = LEFT_BY_CANCEL if path.endswith("/cancel") else LEFT_BY_UNDO
    boxes = (("say --leave-effects", left), ("say --was-not-sent", NOT_SENT), ("--answer FILE, or the box", "tick"))
    for option, box in boxes:
        text = text.replace(option, box)
    return text


def find_way_back(method: str, path: str) -> tuple[str, str]:
    """Where the page of an error leads to, and how the link is called."""
    if method == "POST":
        key = _KEY_FORM.fullmatch(path)
        if key:
            return f"/keys/{key[1]}", "Back to the key"
        if path.startswith("/outbox"):
            return "/outbox", "Back to the outbox"
        if path.startswith("/bulk"):
            return "/keys", "Back to the keys"
    return "/", "Now"

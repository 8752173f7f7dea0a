-- When this transaction began.
SELECT {note_began}

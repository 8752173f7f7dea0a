# Positional only, all of them. None means: something is unusual, ask the definition.

def canonicalize_json(body: bytes, /) -> bytes | None: ...
def encode_born(
    algorithm: str,
    digest: bytes,
    length: int,
    namespace: str,
    kind: str,
    scope: str,
    key: str,
    target: str,
    run: bytes,
    /,
) -> bytes | None: ...
def encode_answer(status: int, body: bytes, headers: tuple[tuple[str, str], ...], gone: str, /) -> bytes | None: ...
def pack_key(head: bytes, record_id: bytes, /) -> bytes | None: ...
def pack_words(*words: bytes | int) -> bytes | None: ...

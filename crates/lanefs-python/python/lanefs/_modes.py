"""The modes of the built-in `open`, and what stands over a raw file."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

from ._lanefs import File

__all__ = ["flags_of", "stack"]

# Raw files have all that `io` asks of one.
io.RawIOBase.register(File)


# Modes that were understood before; there are not many.
_known: dict[str, tuple[int, str, bool]] = {}


def flags_of(mode: str) -> tuple[int, str, bool]:
    """Return the flags of os.open, the mode without 't', 'b' and 'x', and whether it is text."""
    if not isinstance(mode, str):
        raise TypeError(f"open() argument 'mode' must be str, not {type(mode).__name__}")
    known = _known.get(mode)
    if known is not None:
        return known
    letters = set(mode)
    if letters - set("rwxabt+") or len(mode) > len(letters):
        raise ValueError(f"invalid mode: {mode!r}")
    if "b" in letters and "t" in letters:
        raise ValueError("can't have text and binary mode at once")
    kinds = letters & set("rwxa")
    if len(kinds) != 1:
        raise ValueError("must have exactly one of create/read/write/append mode")
    kind = kinds.pop()
    updating = "+" in letters
    flags = os.O_RDWR if updating else (os.O_RDONLY if kind == "r" else os.O_WRONLY)
    flags |= {
        "r": 0,
        "w": os.O_CREAT | os.O_TRUNC,
        "x": os.O_CREAT | os.O_EXCL,
        "a": os.O_CREAT | os.O_APPEND,
    }[kind]
    _known[mode] = flags, kind + ("+" if updating else ""), "b" not in letters
    return _known[mode]


def stack(
    raw: File,
    kind: str,
    is_text: bool,
    mode: str,
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
    track: Callable[[Any], None],
) -> Any:
    """Put a buffer, and for text a decoder, over a raw file; `track` learns of those that keep
    what was written."""
    if kind[0] == "a":
        raw.seek(0, os.SEEK_END)
    by_line = buffering == 1 and is_text
    size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
    buffer: Any
    if kind == "r":
        buffer = io.BufferedReader(raw, size)
    else:
        buffer = (
            io.BufferedRandom(raw, size)
            if "+" in kind
            else io.BufferedWriter(raw, size)
        )
    result: Any = buffer
    if is_text:
        result = io.TextIOWrapper(buffer, encoding, errors, newline, by_line)
        result.mode = mode
    if kind != "r":
        track(result)
    return result

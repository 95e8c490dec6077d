"""Actions during the reading of a pickle that a program can observe, as reported by audit hooks."""

from __future__ import annotations

import pickletools
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# The opcodes' names are looked up for errors.
assert pickletools.opcodes

_ACTS = (
    "os.",
    "subprocess.",
    "exec",
    "compile",
    "open",
    "import",
    "socket.",
    "ctypes.",
    "shutil.",
    "marshal.",
    "urllib.",
)

_seen: list[str] | None = None


def _hear(event: str, arguments: object) -> None:
    if _seen is not None and event.startswith(_ACTS):
        _seen.append(f"{event} {arguments}")


sys.addaudithook(_hear)


@contextmanager
def heard() -> Iterator[list[str]]:
    """The observed actions: files, processes, imports, code."""
    global _seen  # noqa: PLW0603
    _seen = []
    try:
        yield _seen
    finally:
        _seen = None

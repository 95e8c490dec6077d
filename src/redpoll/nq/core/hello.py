"""The first message of a client to the process that serves it, and the answer: who is there, and what is spoken."""

from __future__ import annotations

from typing import Any

from redpoll.errors import DecodeError
from redpoll.nq.core.names import Purpose
from redpoll.serializers import msgpack

__all__ = ["VERSION", "read_hello", "say_hello"]

#: What is spoken.
VERSION = 1

# Bytes: anybody may send one.
_LARGEST = 4096


def say_hello(purpose: Purpose) -> Any:
    """The body of a hello, or of the answer to one."""
    return msgpack.encode({"nq": VERSION, "purpose": purpose.value})


def read_hello(data: Any, purpose: Purpose) -> str | None:
    """What is wrong with a hello; None if it is one of whom is expected."""
    try:
        said = msgpack.decode(data) if len(data) <= _LARGEST else None
    except DecodeError:
        said = None
    if not isinstance(said, dict) or type(said.get("nq")) is not int:
        return "this is no hello of nq"
    if said["nq"] < VERSION:
        return f"it speaks version {said['nq']}, and {VERSION} is spoken here"
    if said.get("purpose") != purpose.value:
        return f"it is no {purpose.value}"
    return None

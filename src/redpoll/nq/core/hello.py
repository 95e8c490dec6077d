"""The hello: the first message of a client to a process of the server, and its answer, with the version."""

from __future__ import annotations

from typing import Any

from redpoll.errors import DecodeError
from redpoll.nq.core.names import Purpose
from redpoll.serializers import msgpack

__all__ = ["VERSION", "hello_body", "hello_problem"]

#: Version of the protocol.
VERSION = 1

# Maximum size in bytes.
_LARGEST = 4096


def hello_body(purpose: Purpose) -> Any:
    """Return the body of a hello, or of its answer."""
    return msgpack.encode({"nq": VERSION, "purpose": purpose.value})


def hello_problem(data: Any, purpose: Purpose) -> str | None:
    """Return the problem with a hello; None if it is valid and of the expected purpose."""
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

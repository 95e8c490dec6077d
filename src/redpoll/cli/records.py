"""Received messages as bytes to write: lines, raw, JSON, or safe for a screen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from enum import Enum

from redpoll.message import Message

from .output import payload, printable
from .source import NO_NEWLINE

__all__ = ["Form", "Records", "is_screen"]


class Form(Enum):
    """The format of written messages."""

    LINES = "lines"
    """The bytes and a newline; what was sent as a last line without one gets none."""
    RAW = "raw"
    """The bytes, with nothing between messages."""
    JSON = "json"
    """One object a message: `address`, null where its sender has none, `text` or `base64`, and `header` if there is one."""
    SCREEN = "screen"
    """Lines for a terminal: what it would act upon is shown as escapes."""


def is_screen() -> bool:
    """Return True if standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


class Records:
    """Turns messages into bytes to write, in one form.

    Args:
        form: The form of all of them.
    """

    def __init__(self, form: Form) -> None:
        self._form = form
        self._open = False

    def encode(self, messages: Iterable[Message[bytes]]) -> bytes:
        """Return the bytes for the messages after those of the last call.

        With lines, every message is a separate line: one without a newline is ended when another follows.
        """
        if self._form is Form.RAW:
            return b"".join(message.data for message in messages)
        if self._form is Form.LINES:
            return b"".join(self._lines(messages))
        if self._form is Form.JSON:
            return "".join(json.dumps(_record(message)) + "\n" for message in messages).encode()
        return "".join(_shown(message.data) + "\n" for message in messages).encode(errors="backslashreplace")

    def _lines(self, messages: Iterable[Message[bytes]]) -> Iterable[bytes]:
        for message in messages:
            if self._open:
                yield b"\n"
            yield message.data
            self._open = message.header == NO_NEWLINE
            if not self._open:
                yield b"\n"


def _record(message: Message[bytes]) -> dict[str, object]:
    header = {"header": payload(message.header)} if message.header else {}
    address = None if message.address is None else str(message.address)
    return {"event": "message", "address": address, **payload(message.data), **header}


def _shown(data: bytes) -> str:
    return printable(data.decode(errors="backslashreplace"))

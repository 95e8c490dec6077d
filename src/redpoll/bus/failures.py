"""Exceptions of handlers: packed in an envelope, and rebuilt by the receiver."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from traceback import format_exception
from typing import Any, Final, NamedTuple

from redpoll import serializers
from redpoll.bus.envelope import Envelope, printable
from redpoll.errors import ConfigError, DecodeError, EncodeError, RemoteError

__all__ = ["AllowedExceptions", "Failure", "pack_failure"]

#: Characters of a text, and of the end of a traceback, that are sent.
_TEXT: Final = 8_192
#: Bytes that the arguments of an exception may have.
_ARGUMENTS: Final = 16_384
# A future, and a coroutine, cannot raise these.
_NEVER: Final = (StopIteration, StopAsyncIteration)

_msgpack = serializers.get("msgpack")


class Failure(NamedTuple):
    """An exception as it is sent.

    Attributes:
        module: The module of its class; "" is none.
        kind: Name of its class.
        text: Its text.
        args: Its arguments; None where they cannot be sent.
        traceback: Its traceback, or None.
    """

    module: str
    kind: str
    text: str
    args: list[Any] | None = None
    traceback: str | None = None

    def pack(self) -> Envelope:
        """Put it into an envelope, which every receiver can read; what is too long is cut off."""
        try:
            size = len(_msgpack.encode(self.args))
        except EncodeError:
            size = _ARGUMENTS + 1
        kept = self.args if size <= _ARGUMENTS else None
        shown = None if self.traceback is None else printable(self.traceback)
        values = (printable(self.module), printable(self.kind), printable(self.text)[:_TEXT], kept, shown)
        return Envelope("msgpack", bytes(_msgpack.encode(values)))

    @classmethod
    def read(cls, envelope: Envelope) -> Failure:
        """Read an envelope; one that holds none is of kind "unknown"."""
        try:
            match _msgpack.decode(envelope.body):
                case [str() as module, str() as kind, str() as text, list() | None as args, str() | None as traceback]:
                    return cls(module, kind, text, args, traceback)
                case other:
                    return cls("", "unknown", f"its failure is {type(other).__name__}")
        except DecodeError as error:
            return cls("", "unknown", f"its failure cannot be read: {error}")


def pack_failure(error: BaseException, traceback: bool = True) -> Envelope:
    """Put an exception into an envelope, which every receiver can read.

    One that came from elsewhere keeps its type and its traceback.

    Args:
        error: The exception.
        traceback: Send its traceback.
    """
    if isinstance(error, RemoteError):
        return Failure("", error.kind, error.text, None, error.traceback).pack()
    kind = type(error)
    text = "".join(format_exception(error))[-_TEXT:] if traceback else None
    return Failure(kind.__module__, kind.__qualname__, printable(error), list(error.args), text).pack()


class AllowedExceptions:
    """The remote exceptions that are rebuilt with their own types; all others become `RemoteError`.

    Those of Python itself do, unless told otherwise. Nothing is imported: a module that is not there has none.

    Args:
        allowed: Exception classes, which are meant exactly; and names of modules, for the classes defined there.
        builtins: Allow those of Python itself.

    Raises:
        ConfigError: One is neither.
    """

    def __init__(self, allowed: Iterable[type[Exception] | str] = (), *, builtins: bool = True) -> None:
        self._modules = {"builtins"} if builtins else set()
        self._classes: dict[tuple[str, str], type[Exception]] = {}
        for each in allowed:
            given: object = each
            if isinstance(given, str):
                self._modules.add(given)
            elif isinstance(given, type) and issubclass(given, Exception):
                self._classes[given.__module__, given.__qualname__] = given
            else:
                raise ConfigError("allowed_exceptions", given, "must be an exception class or the name of a module")

    def rebuild(self, envelope: Envelope) -> Exception:
        """Make the exception of an envelope.

        Returns:
            The exception itself if it is allowed, with a `RemoteError` as its cause; otherwise the `RemoteError`. Both
            name the remote traceback.
        """
        module, kind, text, args, traceback = Failure.read(envelope)
        remote = RemoteError(kind, text, traceback)
        if traceback:
            shown = "".join(each for each in traceback if each.isprintable() or each == "\n")
            remote.add_note(f"Remote {shown.rstrip()}")
        found = self._find(module, kind)
        if found is None:
            return remote
        try:
            made = found(*([text] if args is None else args))
        except Exception:  # noqa: BLE001  # a constructor may raise anything
            return remote
        made.__cause__ = remote
        return made

    def _find(self, module: str, kind: str) -> type[Exception] | None:
        found: object = self._classes.get((module, kind))
        if found is None and module in self._modules and module in sys.modules:
            # Not getattr(): that may import something.
            found = vars(sys.modules[module]).get(kind)
        if isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, _NEVER):
            return found if found.__module__ == module else None
        return None

"""The root of the error tree, and the error of an invalid argument, which plain values below `errors` raise too."""

from __future__ import annotations

from copy import copy
from typing import Any, TypeVar

__all__ = ["RedpollError", "UsageError"]

_E = TypeVar("_E", bound="RedpollError")


class RedpollError(Exception):
    """The root of all errors that redpoll raises.

    Attributes:
        hint: The remedy in a few words, or None.
    """

    hint: str | None = None

    def __init__(self, *fields: object, hint: str | None = None) -> None:
        """Store the fields; subclasses document them."""
        # Not super().__init__(): that of OSError would take two fields as errno and strerror, and drop a third.
        self.args = fields
        if hint is not None:
            self.hint = hint

    def _text(self) -> str:
        return ", ".join(map(str, self.args)) or type(self).__name__

    def _reason(self, address: object) -> str:
        """Return the text as the reason of another error about an address: without that address and the hint."""
        if address is None or getattr(self, "address", None) != address:
            return self._text()
        bare: Any = copy(self)
        bare.address = None
        text: str = bare._text()
        return text

    def __str__(self) -> str:
        """Return the text, and the hint in parentheses."""
        return self._text() if self.hint is None else f"{self._text()} ({self.hint})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the fields, without calling a constructor again."""
        return _rebuild, (type(self), self.args), self.__dict__


def _rebuild(kind: type[_E], fields: tuple[object, ...]) -> _E:
    error = kind.__new__(kind)
    error.args = fields
    return error


class UsageError(RedpollError, ValueError):
    """An invalid argument, or a call that is not allowed here.

    Attributes:
        text: The problem.
    """

    def __init__(self, text: str, hint: str | None = None) -> None:
        super().__init__(text, hint=hint)
        self.text = text

    def _text(self) -> str:
        return self.text


# Users know both by the module that has the whole tree.
RedpollError.__module__ = UsageError.__module__ = "redpoll.errors"

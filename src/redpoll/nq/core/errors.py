"""Errors of the node below, with hints that name the options of the facade."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any, TypeVar
from uuid import UUID

from redpoll.errors import Busy, ConfigError, QueueFull, TLSError, UsageError
from redpoll.node.sending import check_seconds

__all__ = [
    "GET_HINT",
    "PUT_HINT",
    "SIZE_HINT",
    "again",
    "caused",
    "check_peers",
    "check_timeout",
    "full_here",
    "full_there",
    "in_words",
    "start_error",
]

ErrorT = TypeVar("ErrorT", bound=BaseException)

#: Words in hints of the node that are not options here.
_NODES = ("tls=", "TLS(", "TLS.", "encryption", "trust store", "ca=")

_BOTH = (
    "give both ends security=SecurityOptions(…), or neither: the server its key and its certificate, clients that "
    "certificate or its CA"
)


_CA = "give the certificate of the CA that signed the server's; the server's own does only if it is one of a CA as well"


def again(error: BaseException) -> BaseException:
    """Return a copy of an error that is raised more than once, so that its traceback does not grow."""
    return caused(copy(error), error.__cause__)


def caused(error: ErrorT, cause: BaseException | None) -> ErrorT:
    """Set the cause of an error that is not raised here, and return the error."""
    error.__cause__ = cause
    return error


def in_words(error: BaseException) -> BaseException:
    """Return an error with a hint for the facade."""
    if isinstance(error, TLSError) and error.hint is not None and any(word in error.hint for word in _NODES):
        return caused(TLSError(error.detail, error.address, _BOTH), error.__cause__)
    return error


def start_error(error: ConfigError) -> Exception:
    """Return the error of a failed start: an OSError for one of the system, and the facade's names of options."""
    if isinstance(error.__cause__, OSError):
        number = error.__cause__.errno
        return OSError(str(error)) if number is None else OSError(number, str(error))
    if error.field in {"ca", "certificate"}:
        hint = _CA if error.hint is not None and "ca=" in error.hint else error.hint
        return ConfigError("cert", error.value, error.problem, hint)
    return error


def full_here(message: Any, limit: int, unit: str) -> QueueFull:
    """Return the error of a put without room at this end."""
    full = QueueFull(message, limit, unit)
    full.hint = 'wait for the futures of earlier puts, or give full="wait"'
    return full


def full_there(error: Busy) -> QueueFull:
    """Return the error of a put without room at the peer, whose limit is unknown here (0)."""
    full = QueueFull(error.message, 0, "messages of the peer")
    full.reason = f"the queue of the peer is full: {error.text}"
    full.hint = "its program gets too slowly, or its queue_size is too small"
    return caused(full, error)


def check_peers(peers: Iterable[object], hint: str) -> None:
    """Validate ids of peers.

    Args:
        peers: The values.
        hint: The hint of the error.

    Raises:
        UsageError: A value is not a UUID.
    """
    for peer in peers:
        if not isinstance(peer, UUID):
            raise UsageError(f"a peer is a uuid.UUID, not {type(peer).__name__}", hint)


def check_timeout(timeout: float | None) -> None:
    """Validate a timeout in seconds; None is no limit.

    Raises:
        UsageError: It is not a number of seconds.
    """
    if timeout is not None:
        check_seconds(timeout)


#: Hint for a message that is too large.
SIZE_HINT = "split it, or raise message_size at both ends"

#: Hints for an invalid peer.
PUT_HINT = "put takes one thing, and behind it those that it is for: message.peer answers a message"
GET_HINT = "get takes those that a message may come from; seconds are given as timeout="

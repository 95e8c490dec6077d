"""Errors of the node below, in the words of the facade's options."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any
from uuid import UUID

from redpoll.errors import Busy, ConfigError, QueueFull, TLSError, UsageError
from redpoll.node.sending import check_seconds

__all__ = [
    "GET_HINT",
    "PUT_HINT",
    "SIZE_HINT",
    "again",
    "check_peers",
    "check_timeout",
    "full_here",
    "full_there",
    "in_words",
    "start_error",
]

#: What hints name that is not an option here.
_NODES = ("tls=", "TLS(", "TLS.", "encryption", "trust store", "ca=")

_BOTH = (
    "give both ends security=SecurityOptions(…), or neither: the server its key and its certificate, clients that "
    "certificate or its CA"
)


_CA = "give the certificate of the CA that signed the server's; the server's own does only if it is one of a CA as well"


def again(error: BaseException) -> BaseException:
    """An error like one that is raised more than once: each has a traceback of its own, or one would grow for ever."""
    new = copy(error)
    new.__cause__ = error.__cause__
    return new


def in_words(error: BaseException) -> BaseException:
    """The same error, with what to do here as its hint."""
    if isinstance(error, TLSError) and error.hint is not None and any(word in error.hint for word in _NODES):
        told = TLSError(error.detail, error.address, _BOTH)
        told.__cause__ = error.__cause__
        return told
    return error


def start_error(error: ConfigError) -> Exception:
    """What a communicator that could not start raises: an OSError where the system said no, and options by their names."""
    if isinstance(error.__cause__, OSError):
        number = error.__cause__.errno
        return OSError(str(error)) if number is None else OSError(number, str(error))
    if error.field in {"ca", "certificate"}:
        hint = _CA if error.hint is not None and "ca=" in error.hint else error.hint
        return ConfigError("cert", error.value, error.problem, hint)
    return error


def full_here(message: Any, limit: int, unit: str) -> QueueFull:
    """The error of a put for which this end has no room."""
    full = QueueFull(message, limit, unit)
    full.hint = 'wait for the futures of earlier puts, or give full="wait"'
    return full


def full_there(error: Busy) -> QueueFull:
    """The error of a put for which the peer has no room, whose limit is not known here: 0."""
    full = QueueFull(error.message, 0, "messages of the peer")
    full.reason = f"the queue of the peer is full: {error.text}"
    full.hint = "its program gets too slowly, or its queue_size is too small"
    full.__cause__ = error
    return full


def check_peers(peers: Iterable[object], hint: str) -> None:
    """Refuse what is no id of a peer.

    Args:
        peers: What was given as such.
        hint: What may have been meant.

    Raises:
        UsageError: One is none.
    """
    for peer in peers:
        if not isinstance(peer, UUID):
            raise UsageError(f"a peer is a uuid.UUID, not {type(peer).__name__}", hint)


def check_timeout(timeout: float | None) -> None:
    """Refuse what is no number of seconds; None is no limit.

    Raises:
        UsageError: It is none.
    """
    if timeout is not None:
        check_seconds(timeout)


#: What to do about a message that is too large.
SIZE_HINT = "split it, or raise message_size at both ends"

#: What may be meant by a peer that is none.
PUT_HINT = "put takes one thing, and behind it those that it is for: message.peer answers a message"
GET_HINT = "get takes those that a message may come from; seconds are given as timeout="

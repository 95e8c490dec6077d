"""Errors of the node below, in the words of the facade's options."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from redpoll.errors import ConfigError, TLSError, UsageError

__all__ = ["GET_HINT", "PUT_HINT", "check_peers", "in_words", "start_error"]

#: What hints name that is not an option here.
_NODES = ("tls=", "TLS(", "TLS.", "encryption", "trust store", "ca=")

_BOTH = (
    "give both ends security=SecurityOptions(…), or neither: the server its key and its certificate, clients that "
    "certificate or its CA"
)


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
        return ConfigError("cert", error.value, error.problem, error.hint)
    return error


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


#: What may be meant by a peer that is none.
PUT_HINT = "put takes one thing, and behind it those that it is for: message.peer answers a message"
GET_HINT = "get takes those that a message may come from; seconds are given as timeout="

"""What a directory knows of one name: where its owner can be reached, and what may stand there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Literal, TypeAlias

from redpoll.address import Address
from redpoll.errors import UsageError
from redpoll.wiring.names import check_name

__all__ = ["KINDS", "Entry", "Key", "Kind", "key_of", "place_problem", "stays_here", "style_of"]

Kind: TypeAlias = Literal["exchange", "queue"]
"""What a name stands for; the two kinds have names of their own."""

Key: TypeAlias = tuple[Kind, str]
"""A name, with its kind before it."""

KINDS: tuple[Kind, ...] = ("exchange", "queue")
"""Every kind there is."""

#: Bytes that the name of a style may have.
_STYLE_SIZE = 32

_LOCAL_NAMES = frozenset(("localhost", "localhost.", "ip6-localhost", "ip6-loopback"))


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory.

    Attributes:
        kind: "exchange" or "queue".
        name: The name.
        address: Where its owner takes links.
        style: How an exchange hands messages to its queues; None of a queue, or where that is not known.
        identity: The node identity of its owner, 16 bytes; None where that is not known, as of a static entry.
        run: Which run of its owner registered it: of two, the later one has the greater number. 0 of a static entry.
        static: Whether it was given to the directory when that was started, and belongs to nobody.
        suspect: Whether the directory has lost its link to the owner, and removes it when the lease is over.
    """

    kind: Kind
    name: str
    address: Address
    style: str | None = None
    identity: bytes | None = None
    run: int = 0
    static: bool = False
    suspect: bool = False

    @property
    def key(self) -> Key:
        """Kind and name."""
        return self.kind, self.name


def key_of(kind: object, name: object) -> Key:
    """Kind and name, checked.

    Raises:
        UsageError: There is no such kind, or it is no name.
    """
    if kind not in KINDS:
        raise UsageError(f"{kind!r} is no kind of name", f"there are {', '.join(map(repr, KINDS))}")
    return kind, check_name(kind, name)


def style_of(style: Any) -> str | None:
    """The text of a style, of the members of an enum too.

    Raises:
        UsageError: It is neither text of 1 to 32 bytes nor None.
    """
    text = getattr(style, "value", style)
    if text is not None and not (
        isinstance(text, str) and text.isprintable() and 0 < len(text.encode()) <= _STYLE_SIZE
    ):
        raise UsageError(f"{style!r} is no style", f"it is text of 1 to {_STYLE_SIZE} bytes")
    return text


def stays_here(address: Address) -> bool:
    """Whether only this machine can reach an address: loopback, a unix socket, or a name in this process."""
    return address.kind != "tcp" or address.host in _LOCAL_NAMES or _of_ip(address, lambda ip: ip.is_loopback)


def place_problem(address: Address) -> str | None:
    """What is wrong with an address as one that others are to dial; None if nothing is."""
    if address.kind != "tcp":
        return None
    if not address.port:
        return "port 0 cannot be dialled"
    return (
        "it is every address of a machine, and none to dial" if _of_ip(address, lambda ip: ip.is_unspecified) else None
    )


def _of_ip(address: Address, is_so: Callable[[Any], bool]) -> bool:
    try:
        return is_so(ip_address(address.host.partition("%")[0]))
    except ValueError:  # a name, which nobody resolves here
        return False

"""An entry of a directory, and checks of its fields."""

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
"""Kind of a name; names of different kinds are independent."""

Key: TypeAlias = tuple[Kind, str]
"""A kind and a name."""

KINDS: tuple[Kind, ...] = ("exchange", "queue")
"""All kinds."""

#: Maximum size of the name of a style, in bytes.
_STYLE_SIZE = 32

_LOCAL_NAMES = frozenset(("localhost", "localhost.", "ip6-localhost", "ip6-loopback"))


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a directory.

    Attributes:
        kind: "exchange" or "queue".
        name: The name.
        address: The address at which its owner accepts links.
        style: The style of an exchange; None of a queue, or if it is not known.
        identity: The node identity of its owner, 16 bytes; None if it is not known, as of a static entry.
        run: The run of its owner that registered it; later runs have greater numbers. 0 of a static entry.
        static: True if it was given to the directory at its start, and has no owner.
        suspect: True if the directory has lost its link to the owner, and removes the entry when the lease expires.
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
    """Return kind and name, validated.

    Raises:
        UsageError: The kind or the name is invalid.
    """
    if kind not in KINDS:
        raise UsageError(f"{kind!r} is no kind of name", f"there are {', '.join(map(repr, KINDS))}")
    return kind, check_name(kind, name)


def style_of(style: Any) -> str | None:
    """Return the text of a style, also of a member of an enum.

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
    """Return True if only this machine can reach an address: loopback, a unix socket, or a name in this process."""
    return address.kind != "tcp" or address.host in _LOCAL_NAMES or _of_ip(address, lambda ip: ip.is_loopback)


def place_problem(address: Address) -> str | None:
    """Return the reason why others cannot dial an address; None if they can."""
    if address.kind != "tcp":
        return None
    if not address.port:
        return "port 0 cannot be dialled"
    return "a wildcard address cannot be dialled" if _of_ip(address, lambda ip: ip.is_unspecified) else None


def _of_ip(address: Address, is_so: Callable[[Any], bool]) -> bool:
    try:
        return is_so(ip_address(address.host.partition("%")[0]))
    except ValueError:  # a name, which is not resolved here
        return False

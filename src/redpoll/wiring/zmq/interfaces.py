"""Interfaces of the old module: the name of a network card or an address, with or without a port."""

from __future__ import annotations

import re
import socket
import struct
from typing import Final, NamedTuple

from redpoll.address import Address
from redpoll.errors import UsageError
from redpoll.wiring.reach import address_of

__all__ = ["ANYWHERE", "NOWHERE", "PORT", "Place", "directory_at", "place_of"]

PORT: Final = 5682
"""Default port of a directory, as of zmq_server."""

ANYWHERE: Final = "0.0.0.0"  # noqa: S104  # asked for, or the directory is on another machine
"""Every IPv4 address of the machine."""

_FORMS: Final = "'*', an address or the name of a network card, with ':port' behind it or without"
_OTHERS: Final = ("zmq.pgm", "pgm", "zmq.sctp", "sctp", "zmq.amqp", "amqp")

#: The system's call for the IPv4 address of a card (SIOCGIFADDR of linux/sockios.h), and the size of the name before
#: it.
_CARD_ADDRESS: Final = 0x8915
_NAME_SIZE: Final = 16


class Place(NamedTuple):
    """An address to listen at.

    Attributes:
        host: An address, or a name; None if none was given: the caller chooses.
        port: The port; 0 is any free one.
    """

    host: str | None
    port: int


NOWHERE: Final = Place(None, 0)
"""No address given."""


def place_of(interface: object) -> Place:
    """Parse an interface, or a location of later versions.

    Args:
        interface: None or "" for none, "*" for every address of the machine; "10.0.0.1", "eth0", "[fe80::1]", each with or
            without ":port"; ":port" alone. The prefix "zmq.tcp://" is allowed.

    Raises:
        UsageError: It is none of these, or there is no such card.
    """
    if interface is None:
        return NOWHERE
    if not isinstance(interface, str):
        raise UsageError(f"an interface is text, not {type(interface).__name__}", _FORMS)
    scheme, separator, rest = interface.rpartition("://")
    if scheme in _OTHERS:
        raise UsageError(f"{scheme} is not spoken here: {interface!r}", "TCP is, with no scheme or with 'zmq.tcp://'")
    if separator and scheme not in {"zmq.tcp", "tcp"}:
        raise UsageError(f"{interface!r} is no interface", _FORMS)
    found = re.fullmatch(r"(\[[^]]*\]|[^:]*|[^:]*:[^:]*:.*?)(?::(\d{1,5}))?", rest, re.ASCII)
    if found is None:
        raise UsageError(f"{interface!r} is no interface", _FORMS)
    host, port = found[1], int(found[2] or 0)
    if rest.count(":") > 1 and not rest.startswith("["):
        host, port = rest, 0
    if not host:
        return Place(None, port)
    if host == "*":
        host = ANYWHERE
    return Place(*_checked(_card(host) or host, port))


def directory_at(hostname: object) -> Address | None:
    """Return the address of a directory, as the old module names it.

    Args:
        hostname: "host", "host:port", an `Address`; None is none.

    Raises:
        UsageError: It is no address.
    """
    if hostname is None or isinstance(hostname, Address):
        return hostname
    if not isinstance(hostname, str):
        raise UsageError(f"the host of a directory is text, not {type(hostname).__name__}")
    return address_of(hostname, PORT)


def _checked(host: str, port: int) -> tuple[str, int]:
    address = Address.of_host(host, port)
    return address.host, address.port


def _card(name: str) -> str | None:
    """Return the IPv4 address of a network card; None if no card has that name."""
    if name not in {known for _, known in socket.if_nameindex()}:
        return None
    try:
        from fcntl import ioctl
    except ImportError:  # not on Windows
        raise UsageError(f"the address of {name!r} cannot be asked for here", "give the address itself") from None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = ioctl(asking.fileno(), _CARD_ADDRESS, struct.pack("40s", name.encode()[: _NAME_SIZE - 1]))
        except OSError as error:
            raise UsageError(f"the network card {name!r} has no IPv4 address: {error.strerror}") from error
    return socket.inet_ntoa(answer[20:24])

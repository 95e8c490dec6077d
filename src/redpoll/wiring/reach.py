"""Checks of whether others can reach an address that is registered at a directory."""

from __future__ import annotations

import socket

from redpoll.address import Address
from redpoll.errors import ConfigError
from redpoll.wiring.directory.entries import stays_here

__all__ = ["WILDCARDS", "address_of", "advertised", "check_reach", "is_here"]

#: Hosts that denote all interfaces.
WILDCARDS = frozenset(("0.0.0.0", "::"))  # noqa: S104


def address_of(text: str, port: int = 0) -> Address:
    """Parse "host", "host:port", "unix:…" or "inproc:…"; a host alone has the given port.

    Raises:
        UsageError: It is none of them.
    """
    if text.startswith(("unix:", "inproc:")):
        return Address.parse(text)
    is_host = text.endswith("]") or (text.count(":") != 1 and not text.startswith("["))
    return Address.of_host(text, port) if is_host else Address.parse(text)


def advertised(text: str) -> tuple[str, int]:
    """Parse the option `advertise` into a host and a port or 0.

    Raises:
        ConfigError: It is neither "host" nor "host:port", or cannot be dialled.
    """
    try:
        address = address_of(text)
    except ValueError as error:
        raise ConfigError("advertise", text, str(error)) from error
    except AttributeError:
        raise ConfigError("advertise", text, f"must be text, not {type(text).__name__}") from None
    if address.kind != "tcp" or address.host in WILDCARDS:
        raise ConfigError("advertise", text, "it cannot be dialled", "give a name or an IP address of this machine")
    return address.host, address.port


def is_here(address: Address) -> bool | None:
    """Return True if an address is of this machine; None if telling requires a name lookup."""
    if stays_here(address):
        return True
    if address.is_name:
        return None
    try:
        with socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address.host, 0))
    except OSError:
        return False
    return True


def check_reach(hosts: tuple[str, ...], advertise: tuple[str, int] | None, directory: Address | None) -> None:
    """Refuse an address that only this machine can reach, if the directory is on another one.

    If the directory's host is a name, the directory checks it on registration.

    Raises:
        ConfigError: Only this machine can reach the address.
    """
    name, host = ("host", hosts[0]) if advertise is None else ("advertise", advertise[0])
    if directory is not None and is_here(directory) is False and stays_here(Address.of_host(host)):
        raise ConfigError(
            name,
            host,
            f"only this machine can reach that, and the directory {directory} is on another one",
            "give host= an address that others reach, or say with advertise= what they dial",
        )

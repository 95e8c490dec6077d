"""Whether others can reach what is registered at a directory."""

from __future__ import annotations

import socket
from ipaddress import ip_address

from redpoll.address import Address
from redpoll.errors import ConfigError

__all__ = ["WILDCARDS", "advertised", "check_reach", "is_here"]

#: Hosts that stand for all interfaces.
WILDCARDS = frozenset(("0.0.0.0", "::"))  # noqa: S104

_LOCAL = "localhost"


def advertised(text: str) -> tuple[str, int]:
    """Read the option `advertise`: host, and port or 0.

    Raises:
        ConfigError: It is neither "host" nor "host:port", or nobody can dial it.
    """
    try:
        alone = text.count(":") != 1 and not text.startswith("[")
        address = Address.of_host(text) if alone or text.endswith("]") else Address.parse(text)
    except ValueError as error:
        raise ConfigError("advertise", text, str(error)) from error
    except AttributeError:
        raise ConfigError("advertise", text, f"must be text, not {type(text).__name__}") from None
    if address.kind != "tcp" or address.host in WILDCARDS:
        raise ConfigError("advertise", text, "nobody can dial that", "give a name or an IP address of this machine")
    return address.host, address.port


def is_here(address: Address) -> bool | None:
    """Whether an address is of this machine; None if that cannot be told without looking a name up."""
    if address.kind != "tcp" or address.host == _LOCAL or address.is_loopback:
        return True
    if address.is_name:
        return None
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address.host, 0))
    except OSError:
        return False
    return True


def check_reach(hosts: tuple[str, ...], advertise: tuple[str, int] | None, directory: Address | None) -> None:
    """Refuse what only this machine can reach, where the directory is on another one.

    Where the directory has a name, it says so itself when something is registered.

    Raises:
        ConfigError: That is so.
    """
    if directory is None or is_here(directory) is not False:
        return
    name, host = ("host", hosts[0]) if advertise is None else ("advertise", advertise[0])
    address = Address.of_host(host)
    loopback = address.kind != "tcp" or address.host == _LOCAL
    if not loopback and not address.is_name:
        loopback = ip_address(address.host.partition("%")[0]).is_loopback
    if loopback:
        raise ConfigError(
            name,
            host,
            f"only this machine can reach that, and the directory {directory} is on another one",
            "give host= an address that others reach, or say with advertise= what they dial",
        )

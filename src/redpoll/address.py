"""Where a node can be reached: an IP address or a name with a port, a unix socket, or a name in this process."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Literal

from redpoll.errors import UsageError

__all__ = ["MAX_UNIX_PATH", "Address", "parse_text"]

MAX_UNIX_PATH = 107
"""The longest path of a unix socket, in bytes: what Linux has room for, less the closing zero."""

Kind = Literal["tcp", "unix", "inproc"]

_KINDS: frozenset[str] = frozenset(("tcp", "unix", "inproc"))
_FORMS = "an address is 'host:port', '[IPv6]:port', 'unix:PATH' or 'inproc:NAME'"
_LOOPBACK = frozenset(("127.0.0.1", "::1"))
_NOT_IN_A_NAME = frozenset(" []/@,;#?\\\"'<>|%")


@dataclass(frozen=True, order=True, slots=True)
class Address:
    """Where a node can be reached.

    Values compare, sort, hash and pickle; ``str(address)`` is text that `parse` reads back. Equal means the same text
    once normalised, not the same machine: a name and the address that it resolves to are different.

    Attributes:
        kind: "tcp", "unix" or "inproc".
        host: For "tcp" an IPv4 address, an IPv6 address without brackets in its short form, with its scope
            (``fe80::1%eth0``) where it has one, or a name in lower case; an IPv4 address mapped into IPv6 is the IPv4
            address. For "unix" the path, empty for a socket without one, as most dialling ends are. For "inproc" the
            name.
        port: For "tcp" 0 to 65,535; 0 is "any free port" to listen on, and "cannot be dialled" for a peer that does not
            listen. Always 0 for the others.

    Raises:
        UsageError: The parts make no address; the text says what is wrong.
    """

    kind: Kind
    host: str
    port: int = 0
    # Addresses are dictionary keys on the send path: hash them once.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Normalise and check the parts."""
        if self.kind not in _KINDS:
            raise UsageError(f"there is no kind of address {self.kind!r}", _FORMS)
        if not isinstance(self.host, str):
            raise UsageError(f"the host of an address is text, not {type(self.host).__name__}")
        if isinstance(self.port, bool) or not isinstance(self.port, int):
            raise UsageError(f"a port is a number, not {self.port!r}")
        if self.kind == "tcp":
            if not 0 <= self.port <= 65_535:
                raise UsageError(f"port {self.port} is not in 0 to 65535")
            object.__setattr__(self, "host", _tcp_host(self.host))
        else:
            if self.port != 0:
                raise UsageError(f"{self.kind} addresses have no port")
            _check_unix(self.host) if self.kind == "unix" else _check_inproc(self.host)
        object.__setattr__(self, "_hash", hash((self.kind, self.host, self.port)))

    @staticmethod
    def parse(text: str | Address) -> Address:
        """Read an address.

        The last few thousand texts are remembered, so that naming the same peer again costs a look-up.

        Args:
            text: "host:port", "[IPv6]:port", "unix:PATH" or "inproc:NAME"; an `Address` is returned as it is.

        Returns:
            The address, normalised as the attributes say.

        Raises:
            UsageError: It is none of these, or not text; the hint says what it should be.
        """
        if isinstance(text, str):
            return parse_text(text)
        if isinstance(text, Address):
            return text
        raise UsageError(f"an address is text or an Address, not {type(text).__name__}", _FORMS)

    @staticmethod
    def of_host(host: str, port: int = 0) -> Address:
        """The address of `port` on `host`, as `Config.host` and `Config.port` give them.

        Args:
            host: An IP address (IPv6 with or without brackets), a name, "unix:PATH" or "inproc:NAME".
            port: 0 to 65,535; left out of account by the last two.

        Raises:
            UsageError: They make no address.
        """
        if not isinstance(host, str):
            raise UsageError(f"a host is text, not {type(host).__name__}")
        if host.startswith(("unix:", "inproc:")):
            return parse_text(host)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            _ipv6(host)
        elif host.count(":") == 1:
            raise UsageError(f"{host!r} has a port", "leave it out: host and port are options of their own")
        return Address("tcp", host, port)

    @staticmethod
    def of_socket(name: Any) -> Address:
        """The address behind what ``getsockname()``, ``getpeername()`` or ``accept()`` gave.

        A unix socket whose name is not a path that can be dialled (none, an abstract one, one with control characters)
        gets an empty path, because the far end chooses it.

        Args:
            name: A tuple for IPv4 and IPv6; text or bytes for a unix socket.

        Raises:
            UsageError: It is neither.
        """
        if isinstance(name, tuple) and len(name) >= 2:
            host, port = name[:2]
            if len(name) == 4 and name[3] and "%" not in host:
                host = f"{host}%{_scope_name(name[3])}"
            return Address("tcp", host, port)
        if isinstance(name, bytes):
            name = os.fsdecode(name)
        if not isinstance(name, str):
            raise UsageError(f"no socket has the name {name!r}")
        try:
            return Address("unix", name)
        except UsageError:
            return Address("unix", "")

    @property
    def is_loopback(self) -> bool:
        """Whether what is sent there stays on this machine, by libchirp's rule.

        True for exactly 127.0.0.1 and ::1, for unix and for inproc. Both ends of a link decide with it about
        encryption, so 127.0.0.2 and "localhost" are not: resolve a name first and ask about the result.
        """
        return self.kind != "tcp" or self.host in _LOOPBACK

    @property
    def is_name(self) -> bool:
        """Whether the host is a name, which has to be resolved before it can be dialled."""
        return self.kind == "tcp" and ":" not in self.host and not _is_ipv4(self.host)

    def __str__(self) -> str:
        """The text that `parse` reads."""
        if self.kind != "tcp":
            return f"{self.kind}:{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __hash__(self) -> int:
        """The hash, computed once."""
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the parts: another process hashes text differently."""
        return Address, (self.kind, self.host, self.port)


@lru_cache(maxsize=4096)
def parse_text(text: str) -> Address:
    """Read an address from its text; each text is read once.

    Raises:
        UsageError: It is no address.
    """
    for kind in ("unix", "inproc"):
        if text.startswith(f"{kind}:"):
            rest = text[len(kind) + 1 :]
            if not rest:
                raise UsageError(f"{text!r} has no {'path' if kind == 'unix' else 'name'}", _FORMS)
            return Address("unix" if kind == "unix" else "inproc", rest)
    scheme, separator, rest = text.partition("://")
    if separator:
        raise UsageError(f"{text!r} is a URL", f"leave out '{scheme}://': {_FORMS}")
    host, colon, port = text.rpartition(":")
    if text.startswith("[") and text.endswith("]"):
        raise UsageError(f"{text!r} has no port", f"write {text + ':2998'!r}")
    if not colon and text.isascii() and text.isdecimal():
        raise UsageError(f"{text!r} has no host", f"write '127.0.0.1:{text}' for this machine")
    if not colon:
        raise UsageError(f"{text!r} has no port", f"write {text + ':2998'!r}" if text else _FORMS)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        _ipv6(host)
    elif ":" in host:
        raise UsageError(f"{text!r} is ambiguous", "put an IPv6 address in brackets: '[::1]:2998'")
    if not host:
        raise UsageError(f"{text!r} has no host", f"write '127.0.0.1:{port}' for this machine" if port else _FORMS)
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65_535):
        raise UsageError(f"{text!r} has no port in 0 to 65535", _FORMS)
    return Address("tcp", host, int(port))


def _tcp_host(host: str) -> str:
    if ":" in host:
        return _ipv6(host)
    if not host:
        raise UsageError("a tcp address needs a host", _FORMS)
    if not host.isprintable() or not _NOT_IN_A_NAME.isdisjoint(host):
        raise UsageError(f"{host!r} is no name of a host", _FORMS)
    name = host.lower()
    if name in _KINDS:
        raise UsageError(f"no host can be named {name!r} here", f"'{name}:...' is an address of that kind")
    try:
        # Resolvers would fail here too, but with a UnicodeError.
        name.encode("idna")
    except UnicodeError as error:
        raise UsageError(f"{host!r} is no name of a host: its parts have 1 to 63 letters each") from error
    return name


def _ipv6(text: str) -> str:
    try:
        address = IPv6Address(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is no IPv6 address", _FORMS) from error
    scope = address.scope_id
    if scope is not None and not (scope.isascii() and scope.isprintable() and _NOT_IN_A_NAME.isdisjoint(scope)):
        raise UsageError(f"{text!r} has a scope that names no interface", "a scope is like that of 'fe80::1%eth0'")
    return str(address.ipv4_mapped or address)


def _is_ipv4(host: str) -> bool:
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True


def _check_unix(path: str) -> None:
    if any(not c.isprintable() and not "\udc80" <= c <= "\udcff" for c in path):
        raise UsageError(f"the path {path!r} has control characters")
    size = len(os.fsencode(path))
    if size > MAX_UNIX_PATH:
        raise UsageError(
            f"the path of a unix socket has at most {MAX_UNIX_PATH} bytes, this one {size}",
            "use a shorter path, or a relative one",
        )


def _check_inproc(name: str) -> None:
    if not name or not name.isprintable():
        raise UsageError(f"{name!r} is no name for inproc", "use letters and digits")


def _scope_name(index: int) -> str:
    # asyncio's sockets say fe80::1%eth0, uvloop's say fe80::1 and the number: one interface, one address.
    try:
        return socket.if_indextoname(index)
    except OSError:
        return str(index)

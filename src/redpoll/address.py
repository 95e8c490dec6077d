"""Addresses of nodes: an IP address or a name with a port, a unix socket, or a name in this process."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Literal

from redpoll.error_root import UsageError

__all__ = ["MAX_UNIX_PATH", "Address", "parse_text"]

MAX_UNIX_PATH = 107
"""Maximum length of the path of a unix socket, in bytes: the size of Linux's field less the terminating zero."""

Kind = Literal["tcp", "unix", "inproc"]

_KINDS: frozenset[str] = frozenset(("tcp", "unix", "inproc"))
_FORMS = "an address is 'host:port', '[IPv6]:port', 'unix:PATH' or 'inproc:NAME'"
_LOOPBACK = frozenset(("127.0.0.1", "::1"))
_NOT_IN_A_NAME = frozenset(" []/@,;#?\\\"'<>|%")


@dataclass(frozen=True, order=True, slots=True)
class Address:
    """The address of a node.

    Values compare, sort, hash and pickle; ``str(address)`` is text that `parse` reads back. Equal addresses have the
    same normalised text, which is not the same as one machine: a name and the address that it resolves to are
    different.

    Attributes:
        kind: "tcp", "unix" or "inproc".
        host: For "tcp" an IPv4 address, an IPv6 address without brackets in its short form, with its scope
            (``fe80::1%eth0``) if it has one, or a name in lower case; an IPv4 address mapped into IPv6 becomes the IPv4
            address. For "unix" the path, empty for a socket without one, as most dialling ends are. For "inproc" the
            name.
        port: For "tcp" 0 to 65,535; 0 is "any free port" to listen on, and "cannot be dialled" for a peer that does not
            listen. Always 0 for the others.

    Raises:
        UsageError: The parts are not an address; the text says why.
    """

    kind: Kind
    host: str
    port: int = 0
    # Addresses are dictionary keys on the send path: hash them once.
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Normalise and check the parts."""
        if self.kind not in _KINDS:
            raise UsageError(f"unknown kind of address: {self.kind!r}", _FORMS)
        if not isinstance(self.host, str):
            raise UsageError(f"the host of an address must be text, not {type(self.host).__name__}")
        if isinstance(self.port, bool) or not isinstance(self.port, int):
            raise UsageError(f"a port must be an int, not {self.port!r}")
        if self.kind == "tcp":
            if not 0 <= self.port <= 65_535:
                raise UsageError(f"port {self.port} is out of range: 0 to 65535")
            object.__setattr__(self, "host", _tcp_host(self.host))
        else:
            if self.port != 0:
                raise UsageError(f"{self.kind} addresses have no port")
            _check_unix(self.host) if self.kind == "unix" else _check_inproc(self.host)
        object.__setattr__(self, "_hash", hash((self.kind, self.host, self.port)))

    @staticmethod
    def parse(text: str | Address) -> Address:
        """Parse an address.

        The last few thousand texts are cached, so that parsing one again costs a look-up.

        Args:
            text: "host:port", "[IPv6]:port", "unix:PATH" or "inproc:NAME"; an `Address` is returned unchanged.

        Returns:
            The address, normalised as the attributes say.

        Raises:
            UsageError: It is none of these, or not text; the hint says what it should be.
        """
        if isinstance(text, str):
            return parse_text(text)
        if isinstance(text, Address):
            return text
        raise UsageError(f"an address must be text or an Address, not {type(text).__name__}", _FORMS)

    @staticmethod
    def of_host(host: str, port: int = 0) -> Address:
        """Return the address of `port` on `host`, as given by `Config.host` and `Config.port`.

        Args:
            host: An IP address (IPv6 with or without brackets), a name, "unix:PATH" or "inproc:NAME".
            port: 0 to 65,535; ignored for the last two.

        Raises:
            UsageError: They are not an address.
        """
        if not isinstance(host, str):
            raise UsageError(f"a host must be text, not {type(host).__name__}")
        if host.startswith(("unix:", "inproc:")):
            return parse_text(host)
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            _ipv6(host)
        elif host.count(":") == 1:
            raise UsageError(f"{host!r} has a port", "leave it out: host and port are separate options")
        return Address("tcp", host, port)

    @staticmethod
    def of_socket(name: Any) -> Address:
        """Return the address for a result of ``getsockname()``, ``getpeername()`` or ``accept()``.

        A unix socket whose name is not a path that can be dialled (none, an abstract one, one with control characters)
        gets an empty path, because the remote end chooses it.

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
            raise UsageError(f"not the name of a socket: {name!r}")
        try:
            return Address("unix", name)
        except UsageError:
            return Address("unix", "")

    @property
    def is_loopback(self) -> bool:
        """True if data sent there stays on this machine, by libchirp's rule.

        True for exactly 127.0.0.1 and ::1, for unix and for inproc. Both ends of a link use it to decide about
        encryption, so it is False for 127.0.0.2 and "localhost": resolve a name first and test the result.
        """
        return self.kind != "tcp" or self.host in _LOOPBACK

    @property
    def is_name(self) -> bool:
        """True if the host is a name, which has to be resolved before it can be dialled."""
        return self.kind == "tcp" and ":" not in self.host and not _is_ipv4(self.host)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        if self.kind != "tcp":
            return f"{self.kind}:{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __hash__(self) -> int:
        """Return the hash, which is computed once."""
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the parts: another process hashes text differently."""
        return Address, (self.kind, self.host, self.port)


@lru_cache(maxsize=4096)
def parse_text(text: str) -> Address:
    """Parse an address; the results are cached.

    Raises:
        UsageError: It is not an address.
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
        raise UsageError(f"{text!r} has no port in the range 0 to 65535", _FORMS)
    return Address("tcp", host, int(port))


def _tcp_host(host: str) -> str:
    if ":" in host:
        return _ipv6(host)
    if not host:
        raise UsageError("a tcp address needs a host", _FORMS)
    if not host.isprintable() or not _NOT_IN_A_NAME.isdisjoint(host):
        raise UsageError(f"{host!r} is not a valid host name", _FORMS)
    name = host.lower()
    if name in _KINDS:
        raise UsageError(f"a host cannot be named {name!r}", f"'{name}:...' is an address of that kind")
    try:
        # Resolvers would fail too, but with a UnicodeError.
        name.encode("idna")
    except UnicodeError as error:
        raise UsageError(f"{host!r} is not a valid host name: each part must have 1 to 63 characters") from error
    return name


def _ipv6(text: str) -> str:
    try:
        address = IPv6Address(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not an IPv6 address", _FORMS) from error
    scope = address.scope_id
    if scope is not None and not (scope.isascii() and scope.isprintable() and _NOT_IN_A_NAME.isdisjoint(scope)):
        raise UsageError(f"{text!r} has an invalid scope", "a scope names an interface, as in 'fe80::1%eth0'")
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
            f"unix socket path of {size} bytes is over the limit of {MAX_UNIX_PATH}",
            "use a shorter path, or a relative one",
        )


def _check_inproc(name: str) -> None:
    if not name or not name.isprintable():
        raise UsageError(f"{name!r} is not a valid inproc name", "use letters and digits")


def _scope_name(index: int) -> str:
    # asyncio's sockets return fe80::1%eth0, uvloop's fe80::1 and the number: one interface, one address.
    try:
        return socket.if_indextoname(index)
    except OSError:
        return str(index)

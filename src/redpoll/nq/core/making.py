"""Makes the endpoint below a communicator: its Config, the carrier of its links, and the endpoint."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from redpoll.address import Address
from redpoll.config import Config
from redpoll.errors import ConfigError, UsageError
from redpoll.node.door import MESSAGE_UNIT
from redpoll.nq.core.client import ClientEndpoint
from redpoll.nq.core.errors import caused
from redpoll.nq.core.names import Protocol, Purpose
from redpoll.nq.core.options import CommunicatorOptions
from redpoll.nq.core.server import ServerEndpoint
from redpoll.tls import TLS
from redpoll.tls.record import SYSTEM
from redpoll.transport.carrier import Sockets

if TYPE_CHECKING:
    from redpoll.nq.core.receive_queue import ReceiveQueue
    from redpoll.serializers.base import Buffer
    from redpoll.transport.carrier import Carrier

__all__ = ["AnyEndpoint", "Verbatim", "checked", "config_of", "make_endpoint", "one_of"]

AnyEndpoint = ServerEndpoint | ClientEndpoint
#: Window of a peer in messages and bytes; messages that wait for `get` to confirm them are added.
_WINDOW = 1024
_WINDOW_BYTES = 16 * 1024 * 1024

#: Maximum messages that wait for `get` to confirm them.
_HELD = 65_535

#: Loopback by definition (RFC 6761).
_LOCAL = "localhost"

_FRAGMENTS = 4096, 2**30
_U32 = 2**32 - 1
_U63 = 2**63 - 1
_YEAR = 31_536_000.0

NameT = TypeVar("NameT", Protocol, Purpose)


def one_of(kind: type[NameT], value: NameT | str) -> NameT:
    """Return a member of an enum, given as itself or as its text.

    Raises:
        UsageError: There is no such member.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(each.value) for each in kind)
        raise UsageError(f"{value!r} is no {kind.__name__.lower()}", f"there are {known}") from None


def checked(options: CommunicatorOptions | None) -> CommunicatorOptions:
    """Return the options; None is all defaults, with a random id.

    Raises:
        UsageError: The value is not a CommunicatorOptions.
    """
    if options is None:
        return CommunicatorOptions()
    if not isinstance(options, CommunicatorOptions):
        raise UsageError(f"options are CommunicatorOptions, not {type(options).__name__}")
    return options


def make_endpoint(
    protocol: Protocol,
    purpose: Purpose,
    options: CommunicatorOptions,
    receive_queue: ReceiveQueue,
    tell: Callable[[Callable[[UUID], None], UUID], object],
) -> AnyEndpoint:
    """Make the endpoint of a communicator: its part on the event loop.

    Args:
        protocol: The transport.
        purpose: Which end.
        options: The options.
        receive_queue: The queue of received messages.
        tell: Calls an event of the user with the id of a peer.

    Raises:
        ConfigError: Links would be plain off loopback, or a certificate is missing.
        UsageError: A library that the protocol needs is not installed.
    """
    server = purpose is Purpose.SERVER
    config = config_of(options, server=server, encrypts=protocol is Protocol.TCP)

    def given_up(error: ConfigError) -> None:
        endpoint.give_up(caused(ConnectionAbortedError(endpoint.id), error))

    kind = ServerEndpoint if server else ClientEndpoint
    carrier: Carrier = Sockets()
    if protocol is not Protocol.TCP:
        module = import_module(f"redpoll.nq.{protocol}.carrier")
        carrier = getattr(module, f"{protocol.capitalize()}Carrier")(options, server=server, given_up=given_up)
    endpoint = kind(options, config, carrier, receive_queue, tell)
    return endpoint


class Verbatim:
    """A serializer that leaves bytes unchanged; the communicator decodes them."""

    name = "nq"
    wants_buffer = True

    def encode(self, obj: Any, /) -> Buffer:
        """Return the bytes."""
        return obj  # type: ignore[no-any-return]  # only bytes are given

    def decode(self, data: Buffer, /) -> Buffer:
        """Return the bytes."""
        return data


def config_of(options: CommunicatorOptions, *, server: bool, encrypts: bool) -> Config:
    """Return the Config of the node below a communicator.

    Args:
        options: The options of the communicator.
        server: Whether it listens.
        encrypts: Whether the node encrypts links; False if the transport does.

    Raises:
        ConfigError: Links would be plain off loopback; a client has no port to dial.
    """
    connection = options.connection
    held = connection.effective_confirm == "get"
    host, port = options.netloc
    address = Address.of_host(host, port)
    if not server and address.kind == "tcp" and not port:
        raise ConfigError("netloc", str(options.netloc), "a client dials a port", "it is the one that its server has")
    if options.security is None and not options.allow_plain and not (address.is_loopback or host.lower() == _LOCAL):
        raise ConfigError(
            "security",
            None,
            f"links with {address} would be unencrypted: others could read and change the messages",
            "give security=SecurityOptions(…), or allow_plain=True to allow it",
        )
    where: dict[str, Any] = {"host": host, "port": port} if server else {"listen": False}
    return Config(
        **where,
        identity=options.id.bytes,
        secret=options.secret,
        resume=connection.resume,
        keepalive=connection.keepalive,
        slots=_HELD,
        node_slots=_U32,
        window=min(connection.queue_size + _WINDOW, _HELD) if held else _WINDOW,
        window_bytes=min((connection.queue_bytes or 0) + _WINDOW_BYTES, _U63) if held else _WINDOW_BYTES,
        auto_release=not held,
        timeout=None,
        connect_timeout=10.0,
        reuse_time=_YEAR,
        # The announced maximum is rounded down, and a message may have a header of one byte.
        max_message_size=min(connection.message_size + MESSAGE_UNIT, _U63),
        fragment_size=min(max(connection.transport_size, _FRAGMENTS[0]), _FRAGMENTS[1]),
        in_order=True,
        max_connections_per_host=10_000,
        memory_limit=None,
        send_queue_limit=_U32,
        send_queue_bytes=_U63,
        serializer=Verbatim(),
        encryption=options.security is not None and encrypts,
        tls=_tls(options, server=server) if encrypts else None,
    )


def _tls(options: CommunicatorOptions, *, server: bool) -> TLS | None:
    """Return the certificates: a server shows its own and requests none; a client trusts the given file, or the system."""
    security = options.security
    if security is None:
        return None
    if not server:
        return TLS(ca=security.certificate or SYSTEM, check_names=True)
    if security.certificate is None or security.key is None:
        missing = "certificate" if security.certificate is None else "key"
        raise ConfigError(missing, None, "a server that encrypts needs its certificate and its key")
    # A server does not dial, so it needs no trusted CA; without this its own file would have to contain one.
    return TLS(ca=SYSTEM, certificate=security.certificate, key=security.key, client_certificate="none")

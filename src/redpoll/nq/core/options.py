"""The options of communicators: frozen records, checked when they are made."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self
from uuid import UUID

from redpoll.checks import Check, flag, integer, one_of, optional, seconds
from redpoll.errors import ConfigError
from redpoll.nq.core import checks
from redpoll.nq.utils.stream.serializers import PickleSerializer
from redpoll.nq.utils.stream.view import Stream

__all__ = [
    "CommunicatorOptions",
    "ConnectionOptions",
    "EventOptions",
    "NetworkLocation",
    "SecurityOptions",
    "SerializationOptions",
]

_MIB = 1024 * 1024
_U63 = 2**63 - 1


_LOCATION: Mapping[str, Check] = {"host": checks.host, "port": integer(0, 65_535)}


def _values(options: Any) -> dict[str, Any]:
    return {each.name: getattr(options, each.name) for each in fields(options)}


class _Location(NamedTuple):
    host: str = "127.0.0.1"
    port: int = 51966


class NetworkLocation(_Location):
    """The address of the server; with MQTT, the address of the broker.

    Attributes:
        host: An IP address or a name (default "127.0.0.1"). For a server, "0.0.0.0" or "::" are all interfaces of that
            family.
        port: 0 to 65,535 (default 51,966, which is 0xCAFE). For a server, 0 is any free port.

    Raises:
        ConfigError: The host or the port is invalid.
    """

    __slots__ = ()

    def __new__(cls, host: str = "127.0.0.1", port: int = 51966) -> Self:
        """Check both."""
        checks.check_all({"host": host, "port": port}, _LOCATION)
        return super().__new__(cls, host, port)

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Self:  # type: ignore[override]
        # `_replace` calls this, and would bypass `__new__`.
        return cls(*iterable)

    def __str__(self) -> str:
        """Return "host:port", with an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host and self.host[0] != "[" else f"{self.host}:{self.port}"


_CONNECTION: Mapping[str, Check] = {
    "get_merge": flag,
    "put_merge": flag,
    "drop_oldest": flag,
    "transport_size": integer(4096, 2**30),
    "queue_size": integer(1, _U63),
    "message_size": integer(1, _U63),
    "queue_bytes": optional(integer(1, _U63)),
    "full": one_of("refuse", "drop", "wait"),
    "confirm": one_of("receive", "get"),
    "keepalive": seconds,
    "resume": seconds,
}


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Limits and times of connections; sizes are in bytes, times in seconds.

    The first six are those of net-queue, in the order of its version 2.6; programs for 2.4 that pass them by position have to
    name `transport_size` and those after it. The others are keyword-only.

    Messages wait at both ends: at the sender until the peer has confirmed them, and at the receiver until its `get` takes
    them. Each end applies its own limits and its own `full`.

    Raises:
        ConfigError: An option has an invalid value or type; the text names it.
    """

    get_merge: bool = True
    """Without effect: a received message is always in one piece of memory."""

    put_merge: bool = True
    """Without effect: adjacent pieces of up to 32 KiB are joined, larger ones are sent without a copy."""

    drop_oldest: bool = True
    """The message that is dropped at a limit if `full` is "drop": the oldest (True, default), or the new one (False)."""

    transport_size: int = 16 * _MIB
    """Maximum size of a fragment on every protocol, 4,096 to 2**30 (default 16 MiB); larger messages are sent in
    fragments. Pings pass between them; messages stay in order."""

    queue_size: int = 2**30
    """Maximum waiting messages for each peer, and from each peer, 1 to `2**63-1` (default `2**30`)."""

    message_size: int = 2**40
    """Maximum size of a serialized message, 1 to 2**63-1 (default 1 TiB); above it `put` raises `MessageTooLarge`. Both
    ends must allow the size: a peer that announces a larger message is disconnected."""

    _: KW_ONLY

    queue_bytes: int | None = None
    """Maximum bytes of waiting messages for each peer, and from each peer, 1 to 2**63-1; one message of any size
    always fits. None (default): only `queue_size` applies."""

    full: Literal["refuse", "drop", "wait"] = "refuse"
    """The action at a limit, for put and for received messages. "refuse" (default): the future of the put fails
    with `QueueFull`. "drop": a message is dropped, chosen by `drop_oldest`, and the future of its put fails
    with `QueueFull`; messages in flight are not dropped, and none is if that would not make room. "wait": `put`
    blocks until there is room, without end if the peer takes nothing or never connects: pass `put` a
    `timeout`. A put in a callback of a future is accepted at once; a received message is refused."""

    confirm: Literal["receive", "get"] = "receive"
    """When the peer confirms a put: when the message is in its queue ("receive", default), or when its
    `get` has returned the message ("get"). With `full="drop"` it is always "get", since waiting messages can be dropped."""

    keepalive: float = 5.0
    """Time without an answer to a ping after which a peer is suspect, above 0 and at most a year (default 5); after three
    times that its connection is closed."""

    resume: float = 30.0
    """Time for a peer with a lost link to reconnect, above 0 and at most a year (default 30): messages for it wait
    that long, and then fail. A client's `close` waits as long for a server that it never met."""

    def __post_init__(self) -> None:
        """Check every option."""
        checks.check_all(_values(self), _CONNECTION)

    @property
    def effective_confirm(self) -> Literal["receive", "get"]:
        """`confirm`, or "get" if `full` is "drop"."""
        return "get" if self.full == "drop" else self.confirm


_pickle = PickleSerializer()


@dataclass(frozen=True, slots=True)
class SerializationOptions:
    """The functions that convert data to bytes and back. Both ends need the same.

    They are called in the thread that calls `put` or `get`, so by several threads at once if several call these.

    Raises:
        ConfigError: One of them is not callable.
    """

    load: Callable[[Stream], Any] = _pickle.load
    """Decodes the bytes in a `Stream` (default: that of `PickleSerializer` without options, which accepts values and
    arrays, and no classes of programs). `get` raises its exceptions."""

    dump: Callable[[Any], Stream] = _pickle.dump
    """Encodes data as a `Stream` (default: that of the same serializer). `put` raises its exceptions."""

    def __post_init__(self) -> None:
        """Check both."""
        checks.check_all(_values(self), {"load": checks.function, "dump": checks.function})


@dataclass(frozen=True, slots=True, init=False)
class SecurityOptions:
    """The files of TLS, in PEM. With them a communicator is encrypted, also on loopback.

    The server shows its certificate; clients check it and the name that they dialled, and show none. With MQTT both
    check the broker's certificate. Texts and path-like objects become `Path` objects; files are read
    when they are needed.

    Attributes:
        key: A server's private key; clients ignore it.
        cert: For a server, its certificate, followed by the intermediate ones. For a client, the CA's certificate; the
            server's own only if it is self-signed and marked as a CA, as those of `openssl req -x509` are;
            None for the CAs of the system.
    """

    key: Path | None
    cert: Path | None

    def __init__(
        self,
        key: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        *,
        certificate: str | os.PathLike[str] | None = None,
    ) -> None:
        """Set the files.

        Args:
            key: The private key (default None).
            cert: The certificate, or the CA (default None).
            certificate: The same, by its name in net-queue 2.4.

        Raises:
            ConfigError: A value is not a path, or `cert` and `certificate` differ.
        """
        path, other = checks.path("cert", cert), checks.path("certificate", certificate)
        if path is not None and other is not None and path != other:
            raise ConfigError(
                "certificate", other, f"differs from cert={path}, which means the same", "pass one of them"
            )
        object.__setattr__(self, "key", checks.path("key", key))
        object.__setattr__(self, "cert", path if other is None else other)

    @property
    def certificate(self) -> Path | None:
        """`cert`, by its name in net-queue 2.4."""
        return self.cert

    def __replace__(self, /, **changes: Any) -> SecurityOptions:
        """Return a copy with some files changed, for ``copy.replace``; either name of the certificate works."""
        if "certificate" not in changes:
            changes.setdefault("cert", self.cert)
        changes.setdefault("key", self.key)
        return type(self)(**changes)


def _nothing(peer: UUID, /) -> None:
    pass


@dataclass(frozen=True, slots=True)
class EventOptions:
    """Functions that are called with a peer's id when its session begins and ends, in `CommunicatorOptions.workers` threads.

    Their return values are ignored, and their exceptions logged.

    Raises:
        ConfigError: One of them is not callable.
    """

    ini: Callable[[UUID], Any] = _nothing
    """Called once when the session with a peer begins; not when the peer reconnects within `ConnectionOptions.resume`."""

    fin: Callable[[UUID], Any] = _nothing
    """Called when the session with a peer ends: it closed, was disconnected, or did not reconnect in time."""

    def __post_init__(self) -> None:
        """Check both."""
        checks.check_all(_values(self), {"ini": checks.function, "fin": checks.function})


_COMMUNICATOR: Mapping[str, Check] = {
    "id": checks.identity,
    "netloc": checks.instance(NetworkLocation),
    "connection": checks.instance(ConnectionOptions),
    "serialization": checks.instance(SerializationOptions),
    "security": optional(checks.instance(SecurityOptions)),
    "events": checks.instance(EventOptions),
    "workers": integer(1, _U63),
    "allow_plain": flag,
    "prefix": checks.prefix,
    "username": optional(checks.text),
}
_SECRETS: Mapping[str, Check] = {"secret": optional(checks.secret), "password": optional(checks.text)}


@dataclass(frozen=True, slots=True)
class CommunicatorOptions:
    """The options of a communicator.

    The first seven are those of net-queue, in the order of its version 2.6. The others are keyword-only.

    Raises:
        ConfigError: An option has an invalid value or type; the text names it, and shows no secret.
    """

    id: UUID = field(default_factory=uuid.uuid4)
    """The id of the communicator; not the nil UUID. Default: random for each record."""

    netloc: NetworkLocation = NetworkLocation()  # noqa: RUF009 - it does not change
    """The address of the server, or of the broker (default 127.0.0.1:51966)."""

    connection: ConnectionOptions = ConnectionOptions()
    """Limits and times."""

    serialization: SerializationOptions = SerializationOptions()
    """Conversion of data to bytes and back (default: pickle with an allow-list)."""

    security: SecurityOptions | None = None
    """The files of TLS. None (default): no encryption, which needs `allow_plain` off loopback."""

    events: EventOptions = EventOptions()
    """Functions to call when sessions begin and end (default: none)."""

    workers: int = 1
    """Number of threads that call `events`, 1 or more (default 1). Nothing else uses them: one thread of the process
    moves the bytes of all communicators, and data is decoded in the threads that call `get`."""

    _: KW_ONLY

    secret: bytes | None = field(default=None, repr=False)
    """16 bytes that prove, together with the id, that a restarted process is the same communicator: it receives the messages
    that its predecessor had not confirmed, and replaces a predecessor that still runs. None (default): random, so that no
    process can replace it."""

    allow_plain: bool = False
    """Whether it may run unencrypted off loopback, where others can read and change the messages (default
    False: that is a `ConfigError`)."""

    prefix: str = "redpoll"
    """The prefix of its MQTT topics, of one or more levels ("site/7"), so that several servers can share a
    broker (default "redpoll"). Server and clients need the same."""

    username: str | None = None
    """The user name at the MQTT broker (default None: no login)."""

    password: str | None = field(default=None, repr=False)
    """The password at the MQTT broker; needs `username` (default None)."""

    def __post_init__(self) -> None:
        """Check every option."""
        checks.check_all(_values(self), _COMMUNICATOR)
        checks.check_all(_values(self), _SECRETS, shown=False)
        if self.password is not None and self.username is None:
            raise ConfigError("password", type(self.password), "is given without a user name", "pass username as well")

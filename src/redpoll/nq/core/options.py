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
from redpoll.nq.utils.stream.pickled import PickleSerializer
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
    """Where the server listens and clients find it; with MQTT where the broker is, for both.

    Attributes:
        host: An IP address or a name (default "127.0.0.1"). A server may say "0.0.0.0" or "::": all interfaces of that
            family.
        port: 0 to 65,535 (default 51,966, which is 0xCAFE). A server may say 0, any free port.

    Raises:
        ConfigError: One of them cannot be that.
    """

    __slots__ = ()

    def __new__(cls, host: str = "127.0.0.1", port: int = 51966) -> Self:
        """Check them."""
        checks.check_all({"host": host, "port": port}, _LOCATION)
        return super().__new__(cls, host, port)

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Self:  # type: ignore[override]
        # `_replace` comes by here, and past `__new__` otherwise.
        return cls(*iterable)

    def __str__(self) -> str:
        """The host, a colon and the port; an IPv6 address in brackets."""
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
    """How much travels, waits and is kept; sizes are bytes, times are seconds.

    The first six are net-queue's, in the order of its version 2.6; programs for 2.4 that give them by place have to name
    `transport_size` and what follows it. The others are given by name.

    Messages wait at two ends: at the sender until the peer has confirmed them, and at the receiver until its `get` takes
    them. Each end keeps to its own limits and its own `full`.

    Raises:
        ConfigError: An option has a value, or a type, that it cannot have; the text names it.
    """

    get_merge: bool = True
    """Without effect: a message that arrives is in one piece of memory whatever this says."""

    put_merge: bool = True
    """Without effect: neighbouring pieces of up to 32 KiB are joined, larger ones are sent from where they are."""

    drop_oldest: bool = True
    """Which message goes when one is too many and `full` is "drop": the one that has waited longest (default), or, False,
    the new one. Without that `full` nothing is dropped."""

    transport_size: int = 16 * _MIB
    """Size of the largest fragment on every protocol, 4,096 to 2**30 (default 16 MiB): a message above it travels in
    fragments. Between them passes what keeps the connection going; messages keep their order."""

    queue_size: int = 2**30
    """Messages for one peer, and from one peer, that wait here, 1 to `2**63-1` of each (default `2**30`)."""

    message_size: int = 2**40
    """Size of the largest message, serialized, 1 to 2**63-1 (default 1 TiB); `put` raises `MessageTooLarge` beyond it. Both
    ends need to allow it: a peer that announces a larger one is disconnected."""

    _: KW_ONLY

    queue_bytes: int | None = None
    """Bytes of messages for one peer, and from one peer, that wait here, 1 to 2**63-1 of each; one message of any size
    always fits. None (default): only `queue_size` counts."""

    full: Literal["refuse", "drop", "wait"] = "refuse"
    """What happens to a message that is one too many here, put or received. "refuse" (default): the future of its put fails
    with `QueueFull`. "drop": one message is dropped, `drop_oldest` says which, and the future of the put of that one fails
    with `QueueFull`; one that is on its way is not dropped, and nothing is where that would not make room. "wait": `put`
    waits until there is room, so it blocks, and has no end where the peer takes nothing or never comes: give `put` a
    `timeout`. One in a callback of a future is taken at once; a received one is refused."""

    confirm: Literal["receive", "get"] = "receive"
    """When the future of a put is done: when the peer has the message in its queue ("receive", default), or when the peer's
    `get` returned it. With `full="drop"` it is always the latter: what waits in a queue can still be dropped."""

    keepalive: float = 5.0
    """Time without an answer to a ping after which a peer is suspect, above 0 and at most a year; after three times that
    its connection is closed (default 5)."""

    resume: float = 30.0
    """Time that a peer that vanished has to come back, above 0 and at most a year (default 30): what was put for it waits
    so long, and then fails. A client's `close` waits as long for a server that never came."""

    def __post_init__(self) -> None:
        """Check every option."""
        checks.check_all(_values(self), _CONNECTION)

    @property
    def effective_confirm(self) -> Literal["receive", "get"]:
        """`confirm`, or "get" where `full` is "drop"."""
        return "get" if self.full == "drop" else self.confirm


_pickle = PickleSerializer()


@dataclass(frozen=True, slots=True)
class SerializationOptions:
    """What turns the data of messages into bytes and back. Both ends need the same.

    Both are called in the thread that calls `put` or `get`, by several threads at once where several call these.

    Raises:
        ConfigError: One of them is no function.
    """

    load: Callable[[Stream], Any] = _pickle.load
    """Makes the data of the bytes in a `Stream` (default: `PickleSerializer` without options, which lets in values and
    arrays, and no classes of programs). What it raises, `get` raises."""

    dump: Callable[[Any], Stream] = _pickle.dump
    """Makes a `Stream` of the data (default: the same). What it raises, `put` raises."""

    def __post_init__(self) -> None:
        """Check both."""
        checks.check_all(_values(self), {"load": checks.function, "dump": checks.function})


@dataclass(frozen=True, slots=True, init=False)
class SecurityOptions:
    """The files of TLS, in PEM. With an object of this a communicator is encrypted, on loopback too.

    The server shows its certificate, clients check it and the name they dialled; clients show none. With MQTT it is the
    broker's certificate that both check. Every text, or object that stands for a path, becomes a `Path`; files are read
    when they are needed.

    Attributes:
        key: A server's private key; clients do not use it, and it does not matter if they give one.
        cert: A server's certificate, followed by those between it and its CA; for a client that CA, or the server's
            certificate itself if it is self-signed and says that it is a CA's, as those of `openssl req -x509` do, and
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
        """Name the files.

        Args:
            key: The private key (default None).
            cert: The certificate, or the CA (default None).
            certificate: The same, by its name in net-queue 2.4. One of both is enough; by place it is the second.

        Raises:
            ConfigError: One is no path, or `cert` and `certificate` are different.
        """
        path, other = checks.path("cert", cert), checks.path("certificate", certificate)
        if path is not None and other is not None and path != other:
            raise ConfigError(
                "certificate", other, f"differs from cert={path}, which means the same", "give one of both"
            )
        object.__setattr__(self, "key", checks.path("key", key))
        object.__setattr__(self, "cert", path if other is None else other)

    @property
    def certificate(self) -> Path | None:
        """`cert`, by its name in net-queue 2.4."""
        return self.cert

    def __replace__(self, /, **changes: Any) -> SecurityOptions:
        """A copy with some files changed, for ``copy.replace``; either name of the certificate will do."""
        if "certificate" not in changes:
            changes.setdefault("cert", self.cert)
        changes.setdefault("key", self.key)
        return type(self)(**changes)


def _nothing(peer: UUID, /) -> None:
    pass


@dataclass(frozen=True, slots=True)
class EventOptions:
    """What is called when peers come and go, with the peer's id, in `CommunicatorOptions.workers` threads of their own.

    What they return does not count. An exception from them is logged.

    Raises:
        ConfigError: One of them is no function.
    """

    ini: Callable[[UUID], Any] = _nothing
    """Called when a peer came, once; not again when it comes back within `ConnectionOptions.resume`."""

    fin: Callable[[UUID], Any] = _nothing
    """Called when a peer has gone for good: it closed, was disconnected, or did not come back in time."""

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

    The first seven are net-queue's, in the order of its version 2.6. The others are given by name.

    Raises:
        ConfigError: An option has a value, or a type, that it cannot have; the text names it, and shows no secret.
    """

    id: UUID = field(default_factory=uuid.uuid4)
    """Who it is; never the nil UUID. Default: random, anew for each record."""

    netloc: NetworkLocation = NetworkLocation()  # noqa: RUF009 - it does not change
    """Where the server is, or the broker (default 127.0.0.1:51966)."""

    connection: ConnectionOptions = ConnectionOptions()
    """How much travels, waits and is kept."""

    serialization: SerializationOptions = SerializationOptions()
    """What turns data into bytes and back (default: pickle with an allow-list)."""

    security: SecurityOptions | None = None
    """The files of TLS. None (default): nothing is encrypted, which needs `allow_plain` off loopback."""

    events: EventOptions = EventOptions()
    """What is called when peers come and go (default: nothing)."""

    workers: int = 1
    """Threads that call `events`, 1 or more (default 1); with more, one event does not wait for another. All else has
    threads of its own: one of the process moves the bytes of all communicators, and data is read in those that call
    `get`."""

    _: KW_ONLY

    secret: bytes | None = field(default=None, repr=False)
    """16 bytes that prove, with the id, that a process that starts again is the same communicator: it gets what its
    predecessor had not confirmed, and takes the place of one that still runs. None (default): random, so nobody can take
    over."""

    allow_plain: bool = False
    """Whether it may run unencrypted off loopback, where whoever is on the way can read and change everything (default
    False: that is a `ConfigError`)."""

    prefix: str = "redpoll"
    """The beginning of its topics with MQTT, as many levels as you like ("site/7"), so that several servers can share a
    broker (default "redpoll"). Server and clients need the same."""

    username: str | None = None
    """The name to log in to the MQTT broker with (default None: without)."""

    password: str | None = field(default=None, repr=False)
    """The password to that, given together with `username` (default None)."""

    def __post_init__(self) -> None:
        """Check every option."""
        checks.check_all(_values(self), _COMMUNICATOR)
        checks.check_all(_values(self), _SECRETS, shown=False)
        if self.password is not None and self.username is None:
            raise ConfigError("password", type(self.password), "is given without a name", "give username as well")

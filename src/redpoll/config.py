"""The options of a node: one frozen record, checked when it is made."""

from __future__ import annotations

import dataclasses
import difflib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from redpoll.address import Address
from redpoll.checks import Check as _Check
from redpoll.checks import flag as _flag
from redpoll.checks import integer as _integer
from redpoll.checks import one_of as _one_of
from redpoll.checks import optional as _optional
from redpoll.checks import seconds as _seconds
from redpoll.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from redpoll.serializers.base import Serializer
    from redpoll.tls.record import TLS

__all__ = ["DEFAULT_PORT", "MAX_RESUME", "Config", "is_encrypted"]

DEFAULT_PORT = 2998
"""Where a node with a handler listens unless told otherwise: libchirp's port."""

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB
_U32 = 2**32 - 1
_U63 = 2**63 - 1

MAX_RESUME = 86_400.0
"""Seconds that `Config.resume` may be at most: as long as any node remembers what became of a peer's messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The options of a node.

    Every option has a default that is safe on one machine. Times are seconds, sizes are bytes; a time is above 0 and
    at most a year. `Node` takes the same names as keywords. None stands for what the option says of it, never for "no
    value given".

    Raises:
        ConfigError: An option has a value, or a type, that it cannot have; the text names it.
    """

    host: str | tuple[str, ...] = "127.0.0.1"
    """Where to listen: an IP address or name of this machine, "unix:PATH", "inproc:NAME", or a tuple of these to
    listen at each. "0.0.0.0" and "::" are all interfaces of that family."""

    port: int | None = None
    """Port to listen on, 0 to 65,535. None (default): 2998 with a handler, any free port without. 0: any free port,
    the same on both families."""

    public_port: int | None = None
    """Port that peers are told, 1 to 65,535, where it is not the one listened on: behind a forwarded port, for
    example. None (default): the one listened on."""

    listen: bool | None = None
    """Whether to listen. None (default) and True: yes. False: no; peers can send here only while a link that this
    node dialled is up, and they are told port 0."""

    backlog: int = 100
    """Connections that the system holds for us until they are accepted, 1 to 65,535."""

    identity: bytes | None = None
    """Who this node is: 16 bytes, not all zero. None (default): random, anew for each node. Give the same bytes again
    for a node that is to be known again after a restart."""

    acknowledge: bool = True
    """Whether a send is done when the receiver has released the message (default), or, False, when it was written. A
    send may choose for itself."""

    slots: int | None = None
    """Messages of one peer that are handled at a time, over all its links, 1 to 65,535. None (default): 1 when
    acknowledging, so strictly one after another, 16 when not."""

    node_slots: int = 1024
    """The same over all peers together, shared fairly, 1 to 4,294,967,295."""

    window: int | None = None
    """Messages that one redpoll peer may have unreleased here, 1 to 4,294,967,295; those that have no slot wait in
    the inbox. None (default): 64, or `slots` where that is more. A libchirp peer has one."""

    window_bytes: int = 4 * _MIB
    """Bytes that one redpoll peer may have unreleased here, 1 to 2**63-1 (default 4 MiB); one message of any legal
    size always fits."""

    lookahead: int = _MIB
    """Bytes that are read on behind a full node from a libchirp peer, so that its acknowledgements and answers still
    pass, 0 to 2**63-1 (default 1 MiB). 0: reading stops at once, as libchirp's does."""

    auto_release: Literal[True, False, "get"] = True
    """Who ends a received message. True (default): the library, when the handler returns or the consumer is done with
    it. False: you, with `release()` or `refuse()`. "get": the library, as soon as it is pulled, which is what
    libchirp's queue does."""

    timeout: float | None = 5.0
    """Time a send or a request has, unless its call says otherwise; it counts from the last progress while bytes of a
    large body move. None: no limit."""

    connect_timeout: float | None = None
    """Time that looking a name up has, and connecting to each of the addresses that it stands for, handshake included.
    None (default): twice `timeout`, at most 60; 60 where `timeout` is None."""

    handshake_timeout: float = 10.0
    """Time that a new link has until its handshake is complete, whichever end dialled (default 10, libchirp's)."""

    unclaimed_timeout: float = 5.0
    """Time after which a message that neither a handler nor a consumer takes is refused as `NoHandler`."""

    reuse_time: float = 30.0
    """Time after which a link that carries nothing is closed; never less than three times `timeout`."""

    transfer_timeout: float | None = 30.0
    """Time in which at least 16 KiB have to come over a link while a message is arriving over it; a link that brings less
    is closed, after twice this time at the latest (default 30). None: it may be as slow as it likes, but not silent for
    `reuse_time`."""

    keepalive: float | None = 5.0
    """Time without an answer to a ping after which a redpoll peer is suspect; after three times that its link is
    closed. None: no pings; a frozen peer is then found by the next send's timeout."""

    dial: Literal["retry", "once"] = "retry"
    """Whether a message waits while its peer is dialled again and again until its timeout ("retry", default), or
    fails with the first `DialFailed` ("once"). A send may choose for itself. What no dialling would mend, a `TLSError`, a
    `NotAuthorized` or a `ConfigError`, fails it at once either way."""

    resume: float | None = None
    """Time that a session survives its links: when the last one to a redpoll peer is lost without a goodbye, what is sent to
    it waits for the next one that long, above 0 and at most 86,400. Acknowledged messages that were in flight are sent
    again, first and in order, and handled once; this node dials again if it had dialled. None (default): what was in
    flight fails, unless `retry` sends it again."""

    secret: bytes | None = field(default=None, repr=False)
    """What this node proves by that a new link is its own, in this run or a later one: 16 bytes, shown to redpoll nodes that
    it dials in a form of their own each; it is never logged. None (default): random, anew for each node, and shown only with
    `resume`. Give `identity` and the same bytes again to a node that is to take over from its former run."""

    cancel_handlers: bool = False
    """Whether a handler's task is cancelled when its sender withdraws the message or the deadline passes. False
    (default): it only sees `msg.cancelled` and `msg.deadline`."""

    answer_libchirp: bool = True
    """Whether what a handler returns is sent to a libchirp peer, which cannot say if it wants it."""

    max_message_size: int = 104_857_600
    """Largest message taken or sent, header and data together, 1 to 2**63-1 (default 100 MiB, libchirp's). A link on
    which a larger one is announced is closed."""

    fragment_size: int = _MIB
    """Size above which a message to a redpoll peer travels in fragments of this size, so that others pass between
    them, 4,096 to 2**30 (default 1 MiB). Those of a message above 16 MiB have 128 KiB at most."""

    max_connections: int = 10_000
    """Links at a time, those still in their handshake included, 1 to 4,294,967,295; further ones are closed when
    accepted. While more peers than that are gone and have messages here that wait or are handled, nobody is let in."""

    max_connections_per_host: int = 1_000
    """The same for those accepted from one IP address; all unix sockets count as one host."""

    memory_limit: int | None = _GIB
    """Bytes that the node holds in all, 1 to 2**63-1 (default 1 GiB): large messages that are here in part, what waits
    for a slot, what waits to be sent, answers, acknowledgements and the like that peers do not read, and 64 KiB for each
    link with TLS. What a handler has in its hands does not count: slots bound it. At the limit no message above 64 KiB
    begins to arrive, and its link waits; of those that have begun the one with the most bytes here goes on. The link with
    the most of what hardly moved for 5 s is closed, and what waited for 8 s is refused as `Busy`. Large sends fail with
    `QueueFull`, and small ones once what waits to be sent is this much by itself. A message of any legal size passes where
    nothing is held. None: no limit."""

    send_queue_limit: int = 100_000
    """Messages that wait to be sent to one peer, and requests to it that are done and wait for their answers, 1 to
    4,294,967,295 of each; a send or request past it fails with `QueueFull`."""

    send_queue_bytes: int = 64 * _MIB
    """Bytes that wait to be sent to one peer, 1 to 2**63-1 (default 64 MiB); one message of any legal size always
    fits, and a buffer of the caller's that is only referred to does not count."""

    serializer: str | Serializer[Any] = "raw"
    """What turns `Message.data` into bytes and back: "raw" (default), "buffer", "msgpack", "json", "pickle" (with its
    default list of what is let in), or a `Serializer`. Both nodes need the same."""

    encryption: bool | Literal["auto"] = "auto"
    """Whether links are encrypted. "auto" (default), libchirp's rule: with TLS, except to and from 127.0.0.1 and ::1;
    without `tls` it is a `ConfigError` to listen or dial elsewhere. True: those too. False: never, so that whoever is on
    the way can read and change everything; `tls` is not used. Both ends have to say the same. unix and inproc are never
    encrypted."""

    tls: TLS | tuple[ssl.SSLContext, ssl.SSLContext] | None = None
    """Certificates: a `TLS`, or two contexts of your own, the first for links that others dial, the second for those that
    this node dials. None (default): there are none."""

    authorize: Callable[[Any], bool | Awaitable[bool]] | None = None
    """Called once with the `PeerInfo` of who is at the other end of a new link, whichever end dialled it, before anything
    that came over it is handled and before any message is sent over it; its `certificate` is what it showed. True lets it
    in. False, an exception, which is logged, or, where it returns an awaitable, no result within `handshake_timeout` close
    the link; sends fail at both ends with a `NotAuthorized` as their cause. None (default): whoever gets through TLS is
    let in."""

    def __post_init__(self) -> None:
        """Check every option, then those that depend on each other."""
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            problem = check(value)
            if problem is not None:
                # A secret is not shown, not even a bad one.
                raise ConfigError(name, "hidden" if name == "secret" else value, problem)
        if self.listen is False and self.port is not None:
            raise ConfigError("port", self.port, "a node with listen=False has no port", "leave one of the two out")

    @property
    def hosts(self) -> tuple[str, ...]:
        """`host` as a tuple."""
        return (self.host,) if isinstance(self.host, str) else self.host

    @property
    def effective_slots(self) -> int:
        """`slots`, or its default: 1 when acknowledging, 16 when not."""
        return self.slots if self.slots is not None else 1 if self.acknowledge else 16

    @property
    def effective_window(self) -> int:
        """`window`, or its default: 64, or the effective slots where these are more."""
        return self.window if self.window is not None else max(self.effective_slots, 64)

    @property
    def effective_connect_timeout(self) -> float:
        """`connect_timeout` in seconds, or its default: twice `timeout`, at most 60."""
        if self.connect_timeout is not None:
            return self.connect_timeout
        return 60.0 if self.timeout is None else min(2 * self.timeout, 60.0)

    @property
    def effective_reuse_time(self) -> float:
        """`reuse_time` in seconds, but at least three times `timeout`: no send is cut off as idle."""
        return self.reuse_time if self.timeout is None else max(self.reuse_time, 3 * self.timeout)

    def replace(self, **options: Any) -> Config:
        """A copy with some options changed.

        Args:
            options: Names and values of options.

        Raises:
            ConfigError: There is no such option (the hint names the nearest), or its value is not allowed.
        """
        for name, value in options.items():
            if name not in _CHECKS:
                near = difflib.get_close_matches(name, _CHECKS, n=1)
                raise ConfigError(
                    name, value, "there is no such option", f"did you mean {near[0]!r}?" if near else None
                )
        return dataclasses.replace(self, **options)

    @staticmethod
    def from_options(config: Config | None, options: Mapping[str, Any]) -> Config:
        """The Config that `Node` and its like mean by ``config=None, **options``.

        Args:
            config: What to start from; None: the defaults.
            options: Options that go before it.

        Raises:
            UsageError: `config` is something else.
            ConfigError: As for `replace`.
        """
        if config is None:
            config = _DEFAULT
        elif not isinstance(config, Config):
            raise UsageError(f"config is a Config, not {type(config).__name__}", "pass options as keywords")
        return config.replace(**options) if options else config


def is_encrypted(address: Address, config: Config) -> bool:
    """Whether a link to or from an address is encrypted, as `Config.encryption` says.

    Args:
        address: The other end, or where to listen; resolved, since a name counts as off loopback whatever it resolves to.
        config: The node's options.

    Raises:
        ConfigError: It is, and there are no certificates.
    """
    if config.encryption is False or address.kind != "tcp" or (config.encryption == "auto" and address.is_loopback):
        return False
    if config.tls is None:
        raise ConfigError(
            "encryption",
            config.encryption,
            f"{address} needs TLS, and there are no certificates",
            "give tls=TLS(certificate=…), or say with encryption=False that plaintext is meant",
        )
    return True


def _resume(value: Any) -> str | None:
    problem = _seconds(value)
    too_long = problem is None and value > MAX_RESUME
    return f"must be above 0 and at most {MAX_RESUME:.0f} seconds" if too_long else problem


def _hosts(value: Any) -> str | None:
    hosts = (value,) if isinstance(value, str) else value
    if not isinstance(hosts, tuple) or not all(isinstance(host, str) for host in hosts):
        return "must be text, or a tuple of texts"
    if not hosts:
        return "must name at least one host"
    try:
        addresses = [Address.of_host(host) for host in hosts]
    except UsageError as error:
        return str(error)
    return "names a host twice" if len(set(addresses)) < len(addresses) else None


def _identity(value: Any) -> str | None:
    if not isinstance(value, bytes):
        return f"must be bytes, not {type(value).__name__}"
    return None if len(value) == 16 and any(value) else "must be 16 bytes, not all zero"


def _secret(value: Any) -> str | None:
    if not isinstance(value, bytes):
        return f"must be bytes, not {type(value).__name__}"
    return None if len(value) == 16 else "must be 16 bytes"


def _serializer(value: Any) -> str | None:
    # Whether a name is known is found when the node looks it up: serializers are a layer of their own.
    if isinstance(value, str):
        return None if value else "must not be empty"
    if isinstance(value, type):
        return "is a class: pass an object of it"
    if all(hasattr(value, name) for name in ("name", "wants_buffer", "encode", "decode")):
        return None
    return "must be the name of a serializer, or an object with name, wants_buffer, encode and decode"


def _tls(value: Any) -> str | None:
    # By what it has, as a serializer: the class is of a layer of its own.
    if value is None or (hasattr(value, "effective_check_names") and not isinstance(value, type)):
        return None
    contexts = value if isinstance(value, tuple) else ()
    if len(contexts) != 2 or not all(isinstance(each, ssl.SSLContext) for each in contexts):
        return "must be a redpoll.TLS, or a tuple of two SSLContexts, or None"
    server, client = contexts
    if server.protocol == ssl.PROTOCOL_TLS_CLIENT or client.protocol == ssl.PROTOCOL_TLS_SERVER:
        return "the first context is for a server, the second for a client"
    return None


def _function(value: Any) -> str | None:
    return None if callable(value) else f"must be a function, not {type(value).__name__}"


_CHECKS: Mapping[str, _Check] = MappingProxyType(
    {
        "host": _hosts,
        "port": _optional(_integer(0, 65_535)),
        "public_port": _optional(_integer(1, 65_535)),
        "listen": _optional(_flag),
        "backlog": _integer(1, 65_535),
        "identity": _optional(_identity),
        "acknowledge": _flag,
        "slots": _optional(_integer(1, 65_535)),
        "node_slots": _integer(1, _U32),
        "window": _optional(_integer(1, _U32)),
        "window_bytes": _integer(1, _U63),
        "lookahead": _integer(0, _U63),
        "auto_release": _one_of(True, False, "get"),
        "timeout": _optional(_seconds),
        "connect_timeout": _optional(_seconds),
        "handshake_timeout": _seconds,
        "unclaimed_timeout": _seconds,
        "reuse_time": _seconds,
        "transfer_timeout": _optional(_seconds),
        "keepalive": _optional(_seconds),
        "dial": _one_of("retry", "once"),
        "resume": _optional(_resume),
        "secret": _optional(_secret),
        "cancel_handlers": _flag,
        "answer_libchirp": _flag,
        "max_message_size": _integer(1, _U63),
        "fragment_size": _integer(4096, 2**30),
        "max_connections": _integer(1, _U32),
        "max_connections_per_host": _integer(1, _U32),
        "memory_limit": _optional(_integer(1, _U63)),
        "send_queue_limit": _integer(1, _U32),
        "send_queue_bytes": _integer(1, _U63),
        "serializer": _serializer,
        "encryption": _one_of("auto", True, False),
        "tls": _tls,
        "authorize": _optional(_function),
    }
)

_DEFAULT = Config()

"""The options of a node: a frozen record, checked on creation."""

from __future__ import annotations

import dataclasses
import difflib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from redpoll.address import Address
from redpoll.checks import Check as _Check
from redpoll.checks import call_problem as _call_problem
from redpoll.checks import flag as _flag
from redpoll.checks import integer as _integer
from redpoll.checks import one_of as _one_of
from redpoll.checks import optional as _optional
from redpoll.checks import seconds as _seconds
from redpoll.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from redpoll.serializers.base import Serializer
    from redpoll.tls.record import TLS

__all__ = ["DEFAULT_PORT", "MAX_RESUME", "Config", "ConfigOptions", "is_encrypted"]

DEFAULT_PORT = 2998
"""The default port of a node with a handler: libchirp's port."""

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB
_U32 = 2**32 - 1
_U63 = 2**63 - 1

MAX_RESUME = 86_400.0
"""Maximum of `Config.resume`, in seconds: how long any node remembers the outcomes of a peer's messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The options of a node.

    Every option has a default that is safe on one machine. Times are in seconds, sizes in bytes; a time is above 0 and
    at most a year. `Node` accepts the same names as keywords. The meaning of None is documented with each option; it
    never means "no value given".

    Raises:
        ConfigError: An option has an invalid value or type; the text names it.
    """

    host: str | tuple[str, ...] = "127.0.0.1"
    """The address to listen at: an IP address or name of this machine, "unix:PATH", "inproc:NAME", or a tuple of these to
    listen at each. "0.0.0.0" and "::" are all interfaces of that family."""

    port: int | None = None
    """Port to listen on, 0 to 65,535. None (default): 2998 with a handler, any free port without. 0: any free port,
    the same for both families."""

    public_port: int | None = None
    """Port that peers are told, 1 to 65,535, if it differs from the one listened on: behind a forwarded port, for
    example. None (default): the one listened on."""

    listen: bool | None = None
    """Whether to listen. None (default) and True: yes. False: no; peers can send to this node only while a link that it
    dialled is up, and they are told port 0."""

    backlog: int = 100
    """Maximum connections that the system queues until they are accepted, 1 to 65,535."""

    identity: bytes | None = None
    """Identity of this node: 16 bytes, not all zero. None (default): random for each node. Pass the same bytes again for a
    node that peers should recognise after a restart."""

    acknowledge: bool = True
    """Whether a send is done when the receiver has released the message (default), or, False, when it was written. Each
    send may override it."""

    slots: int | None = None
    """Maximum messages of one peer that are handled at a time, over all its links, 1 to 65,535. None (default): 1 when
    acknowledging, so strictly one after another, 16 when not."""

    node_slots: int = 1024
    """Maximum messages of all peers that are handled at a time, shared fairly, 1 to 4,294,967,295."""

    window: int | None = None
    """Maximum unreleased messages per redpoll peer, 1 to 4,294,967,295; messages without a slot wait in the inbox. None
    (default): 64, or `slots` if that is more. A libchirp peer has one."""

    window_bytes: int = 4 * _MIB
    """Maximum unreleased bytes per redpoll peer, 1 to 2**63-1 (default 4 MiB); one message of any legal size always
    fits."""

    lookahead: int = _MIB
    """Maximum bytes that are read from a libchirp peer behind its full slots, so that its acknowledgements and answers still
    pass, 0 to 2**63-1 (default 1 MiB). 0: reading stops at once, as libchirp's does."""

    auto_release: Literal[True, False, "get"] = True
    """The end of received messages. True (default): the library ends a message when its handler returns or its consumer
    is done with it. False: the application ends it, with `release()` or `refuse()`; a message that is dropped before that
    is refused as `Abandoned`. "get": the library ends it as soon as it is pulled, as libchirp's queue does."""

    timeout: float | None = 5.0
    """Default timeout of a send or a request; while bytes of a large body are transferred, it counts from the last
    progress. None: no limit."""

    connect_timeout: float | None = None
    """Timeout for resolving a name, and for connecting to each of its addresses, handshake included; an address that does not
    answer delays the next one by 0.25 s. None (default): twice `timeout`, at most 60; 60 if `timeout` is None."""

    handshake_timeout: float = 10.0
    """Timeout of a new link's handshake, whichever end dialled (default 10, libchirp's)."""

    unclaimed_timeout: float = 2.0
    """Time after which an unclaimed message, without a handler or consumer, is refused as `NoHandler` (default 2):
    less than the default `timeout`, so that the sender learns the reason before its message expires. Raise it if a
    consumer pauses for longer."""

    reuse_time: float = 30.0
    """Time after which an idle link is closed; never less than three times `timeout`."""

    transfer_timeout: float | None = 30.0
    """Time in which at least 16 KiB must arrive over a link while it receives a message; a slower link is closed, after twice
    this time at the latest (default 30). None: there is no minimum, but the link must not be silent for
    `reuse_time`."""

    keepalive: float | None = 5.0
    """Time without an answer to a ping after which a redpoll peer is suspect; after three times this its link is
    closed. None: no pings; a frozen peer is then found by the next send's timeout."""

    dial: Literal["retry", "once"] = "retry"
    """Whether a message waits while its peer is redialled until its timeout ("retry", default), or fails with the first
    `DialFailed` ("once"). Each send may override it. Errors that redialling would not mend, a `TLSError`, a
    `NotAuthorized` or a `ConfigError`, fail it at once either way."""

    resume: float | None = None
    """Time that a session survives its links: when the last link to a redpoll peer is lost without a goodbye, messages to it
    wait this long for the next link, above 0 and at most 86,400. Acknowledged messages that were in flight are resent,
    first and in order, and handled once; this node redials if it had dialled. None (default): messages in flight fail,
    unless `retry` resends them."""

    secret: bytes | None = field(default=None, repr=False)
    """Secret that proves that a new link is this node's, in this run or a later one: 16 bytes; each redpoll node that
    it dials is shown a form derived from it; it is never logged. None (default): random for each node, and shown only
    with `resume`. Pass `identity` and the same bytes again for a node that has to take over from its former run."""

    cancel_handlers: bool = False
    """Whether a handler's task is cancelled when its sender withdraws the message or the deadline passes. False
    (default): `msg.cancelled` is set, and the handler continues."""

    answer_libchirp: bool = True
    """Whether a handler's result is sent to a libchirp peer, which cannot say if it wants it."""

    max_message_size: int = 104_857_600
    """Maximum size of a sent or received message, header and data, 1 to 2**63-1 (default 100 MiB, libchirp's). A link
    on which a larger one is announced is closed."""

    fragment_size: int = _MIB
    """Size above which a message to a redpoll peer is sent in fragments of this size, so that others pass between
    them, 4,096 to 2**30 (default 1 MiB). Fragments of a message above 16 MiB have at most 128 KiB."""

    in_order: bool = False
    """Whether messages to a redpoll peer wait here while one above `fragment_size` is being sent, so that they are handled in
    the order of their sends whatever their size. Acknowledgements and answers still pass. False (default): small
    messages pass between the fragments, and are handled before it."""

    max_connections: int = 10_000
    """Maximum links, including those in their handshake, 1 to 4,294,967,295; further ones are closed when accepted. No
    connection is accepted while more than so many lost peers have messages here that wait or are handled. It is also
    the maximum of peers without a link that are remembered, for what they resend, and of sessions that wait for their
    next link."""

    max_connections_per_host: int = 1_000
    """Maximum accepted links per IP address, with the same effects; all unix sockets count as one host."""

    memory_limit: int | None = _GIB
    """Maximum bytes that the node holds in all, 1 to 2**63-1 (default 1 GiB): partial large messages, messages that wait for
    a slot, messages that wait to be sent, output that peers do not read, and 64 KiB per link with TLS. Messages that a
    handler has begun do not count: slots bound them. At the limit no message above 64 KiB begins to arrive, and its
    link waits; of the begun ones the one with the most bytes here continues. Among links with less than 16 KiB of
    progress in 5 s, the one holding the most memory is closed, and messages that waited for 8 s are refused as `Busy`.
    Large sends fail with `QueueFull`, and small ones once the send queues alone reach the limit. A message of any legal
    size passes if nothing is held. A quarter of this, in addition, is available for remembering peers without a link.
    None: no limit, and 256 MiB for remembering."""

    send_queue_limit: int = 100_000
    """Maximum messages that wait to be sent to one peer, and requests to it that are done and wait for their answers, 1 to
    4,294,967,295 of each; a send or request past it fails with `QueueFull`."""

    send_queue_bytes: int = 64 * _MIB
    """Maximum bytes that wait to be sent to one peer, 1 to 2**63-1 (default 64 MiB); one message of any legal size always
    fits, and a buffer of the caller that is only referenced does not count."""

    spin: int = 0
    """Time in microseconds for which the event loop polls after each read and write instead of letting the process sleep,
    0 to 10,000. 0 (default): none. It is for requests that are awaited one after another, on machines that wake a
    sleeping process late; set it at both ends. It takes a whole processor while messages arrive closer together than
    this, and this time for each lone one. It hurts where processors are busy or fewer than the processes that spin:
    round trips then take several times as long; and where other threads of the process need the interpreter, as with
    `redpoll.blocking`."""

    serializer: str | Serializer[Any] = "raw"
    """Serializer of `Message.data`: "raw" (default), "buffer", "msgpack", "json", "pickle" (with its default list of allowed
    names), or a `Serializer`. Both nodes need the same one: a node with "msgpack", "json" or "pickle" refuses messages
    of another of these, or of "raw", as `Undecodable`."""

    encryption: bool | Literal["auto"] = "auto"
    """Whether links are encrypted. "auto" (default), libchirp's rule: with TLS, except to and from 127.0.0.1 and ::1;
    without `tls` listening or dialling elsewhere is a `ConfigError`. True: those too. False: never, so that anyone on
    the network path can read and change everything; `tls` is not used. Both ends need the same setting. unix and inproc
    are never encrypted."""

    tls: TLS | tuple[ssl.SSLContext, ssl.SSLContext] | None = None
    """Certificates: a `TLS`, or two SSLContexts, the first for accepted links, the second for links that this node dials.
    None (default): no certificates."""

    authorize: Callable[[Any], bool | Awaitable[bool]] | None = None
    """Function that is called once with the `PeerInfo` of each new link, whichever end dialled it, before any of its messages
    is handled and before any message is sent over it; `certificate` is the one that the peer showed. Only the result
    True admits the peer. False, any other value or an exception, which are logged, or, if it returns an awaitable, no
    result within `handshake_timeout` close the link; sends fail at both ends with a `NotAuthorized` as their cause.
    None (default): a peer that passes TLS is admitted."""

    def __post_init__(self) -> None:
        """Check each option, then those that depend on each other."""
        for name, check in _CHECKS.items():
            value = getattr(self, name)
            problem = check(value)
            if problem is not None:
                # A secret is not shown, not even an invalid one.
                raise ConfigError(name, "hidden" if name == "secret" else value, problem)
        if self.listen is False and self.port is not None:
            raise ConfigError("port", self.port, "must be None with listen=False", "leave out one of them")

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
        """`reuse_time` in seconds, but at least three times `timeout`, so that no send is cut off as idle."""
        return self.reuse_time if self.timeout is None else max(self.reuse_time, 3 * self.timeout)

    def replace(self, **options: Unpack[ConfigOptions]) -> Config:
        """Return a copy with some options changed.

        Args:
            options: Names and values of options.

        Raises:
            ConfigError: An option is unknown (the hint names the nearest), or its value is invalid.
        """
        for name, value in options.items():
            if name not in _CHECKS:
                near = difflib.get_close_matches(name, _CHECKS, n=1)
                raise ConfigError(name, value, "unknown option", f"did you mean {near[0]!r}?" if near else None)
        return dataclasses.replace(self, **options)

    @staticmethod
    def from_options(config: Config | None, options: Mapping[str, Any]) -> Config:
        """Return the Config that `Node` uses for ``config=None, **options``.

        Args:
            config: The Config to start from; None: the defaults.
            options: Options that override it.

        Raises:
            UsageError: `config` is not a Config.
            ConfigError: As for `replace`.
        """
        if config is None:
            config = _DEFAULT
        elif not isinstance(config, Config):
            raise UsageError(f"config must be a Config, not {type(config).__name__}", "pass options as keywords")
        return config.replace(**options) if options else config


class ConfigOptions(TypedDict, total=False):
    """The fields of `Config` as keywords: what a type checker knows of ``Node(handler, slots=4)``."""

    host: str | tuple[str, ...]
    port: int | None
    public_port: int | None
    listen: bool | None
    backlog: int
    identity: bytes | None
    acknowledge: bool
    slots: int | None
    node_slots: int
    window: int | None
    window_bytes: int
    lookahead: int
    auto_release: Literal[True, False, "get"]
    timeout: float | None
    connect_timeout: float | None
    handshake_timeout: float
    unclaimed_timeout: float
    reuse_time: float
    transfer_timeout: float | None
    keepalive: float | None
    dial: Literal["retry", "once"]
    resume: float | None
    secret: bytes | None
    cancel_handlers: bool
    answer_libchirp: bool
    max_message_size: int
    fragment_size: int
    in_order: bool
    max_connections: int
    max_connections_per_host: int
    memory_limit: int | None
    send_queue_limit: int
    send_queue_bytes: int
    spin: int
    serializer: str | Serializer[Any]
    encryption: bool | Literal["auto"]
    tls: TLS | tuple[ssl.SSLContext, ssl.SSLContext] | None
    authorize: Callable[[Any], bool | Awaitable[bool]] | None


def is_encrypted(address: Address, config: Config) -> bool:
    """Return True if a link to or from an address is encrypted, by `Config.encryption`.

    Args:
        address: The remote address, or the one to listen at; resolved, as a name counts as off loopback whatever it
            resolves to.
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
            f"{address} requires TLS, but there are no certificates",
            "pass tls=TLS(certificate=…), or encryption=False for plaintext",
        )
    return True


def _resume(value: Any) -> str | None:
    problem = _seconds(value)
    too_long = problem is None and value > MAX_RESUME
    return f"must be above 0 and at most {MAX_RESUME:.0f} seconds" if too_long else problem


def _spin(value: Any) -> str | None:
    problem = _integer(0, 10_000)(value)
    return None if problem is None else f"{problem}, in microseconds; 0 is none"


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
    # Whether a name is known is checked when the node looks it up: serializers are a layer of their own.
    if isinstance(value, str):
        return None if value else "must not be empty"
    if isinstance(value, type):
        return "is a class: pass an instance"
    if all(hasattr(value, name) for name in ("name", "wants_buffer", "encode", "decode")):
        return None
    return "must be the name of a serializer, or an object with name, wants_buffer, encode and decode"


def _tls(value: Any) -> str | None:
    # By its attributes, as a serializer: the class is of a layer of its own.
    if value is None or (hasattr(value, "effective_check_names") and not isinstance(value, type)):
        return None
    contexts = value if isinstance(value, tuple) else ()
    if len(contexts) != 2 or not all(isinstance(each, ssl.SSLContext) for each in contexts):
        return "must be a redpoll.TLS, or a tuple of two SSLContexts, or None"
    server, client = contexts
    if server.protocol == ssl.PROTOCOL_TLS_CLIENT or client.protocol == ssl.PROTOCOL_TLS_SERVER:
        return "must be a server context, then a client context"
    return None


def _authorize(value: Any) -> str | None:
    if not callable(value):
        return f"must be a function, not {type(value).__name__}"
    problem = _call_problem(value)
    return None if problem is None else f"must accept one argument, the peer: {problem}"


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
        "in_order": _flag,
        "max_connections": _integer(1, _U32),
        "max_connections_per_host": _integer(1, _U32),
        "memory_limit": _optional(_integer(1, _U63)),
        "send_queue_limit": _integer(1, _U32),
        "send_queue_bytes": _integer(1, _U63),
        "spin": _spin,
        "serializer": _serializer,
        "encryption": _one_of("auto", True, False),
        "tls": _tls,
        "authorize": _optional(_authorize),
    }
)

_DEFAULT = Config()

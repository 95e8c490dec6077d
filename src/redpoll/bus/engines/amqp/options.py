"""The URL and the options of ``amqp://`` and ``amqps://``."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from redpoll.bus.engine import Engine
from redpoll.bus.engines.amqp.engine import AmqpEngine
from redpoll.bus.engines.amqp.foreign.dialect import Dialect
from redpoll.bus.engines.amqp.foreign.engine import DialectEngine
from redpoll.bus.engines.amqp.foreign.kiwipy import Kiwipy
from redpoll.bus.engines.amqp.foreign.oslo import Oslo
from redpoll.bus.engines.amqp.link import Login
from redpoll.bus.engines.amqp.member import MAX_BODY
from redpoll.bus.engines.hub.client import HubEngine
from redpoll.bus.engines.hub.client import open_engine as open_hub
from redpoll.bus.urls import EngineURL
from redpoll.checks import integer, one_of, optional, require, seconds
from redpoll.errors import ConfigError

__all__ = ["open_engine"]

_PORT: Final = 5672
_PORT_TLS: Final = 5671
_OPTIONS: Final = frozenset(
    {
        "wait",
        "connect_timeout",
        "tls",
        "ca",
        "heartbeat",
        "connections",
        "max_body",
        "consumer_timeout",
        "name",
        "results",
    }
)
#: Wire formats of other libraries, and their options.
_DIALECTS: Final[Mapping[str, tuple[Callable[..., Dialect], frozenset[str]]]] = {
    "kiwipy": (Kiwipy, frozenset({"message_exchange", "task_exchange", "task_queue", "encoder", "decoder"})),
    "oslo": (Oslo, frozenset({"exchange", "durable", "quorum"})),
}
_FLAGS: Final = ("wait", "durable", "quorum")


def open_engine(url: EngineURL, options: Mapping[str, Any]) -> Engine:
    """Make the engine of a URL: ``amqp://user:password@host:port,host2:port2/virtual-host``, ``amqps://`` encrypted.

    Options, in the URL or not: wait; connect_timeout; heartbeat, in seconds (4); connections, "split" or "single"; max_body;
    consumer_timeout, in seconds; name, of the connections on RabbitMQ's pages; for amqps, ca, a file with the CAs that are
    trusted, and tls, one with a certificate and its key, or an `ssl.SSLContext`; results, the URL of a hub that keeps
    outcomes, with its own options.

    speak, "kiwipy" or "oslo": the messages, exchanges and queues of that library. With "kiwipy" there are its own
    message_exchange, task_exchange, task_queue, encoder and decoder; with "oslo" exchange, durable and quorum.

    Raises:
        ConfigError: The URL has no host; there is no such option, or it cannot be.
    """
    given: dict[str, Any] = {**dict(url.options), **options}
    if not url.hosts:
        raise ConfigError("url", str(url), "must have hosts", "amqp://user:password@host:port/")
    speak = given.pop("speak", None)
    require("speak", speak, one_of(None, *_DIALECTS))
    make, theirs = _DIALECTS.get(speak, (None, frozenset()))
    for name in sorted(given.keys() - _OPTIONS - theirs):
        raise ConfigError(name, "…", "is no option of amqp://", f"there are {', '.join(sorted(_OPTIONS | theirs))}")
    for name in _FLAGS:
        if isinstance(given.get(name), str):
            given[name] = given[name].lower() in {"1", "true", "yes"}
    for name, kind in (
        ("connect_timeout", float), ("heartbeat", int), ("max_body", int), ("consumer_timeout", float),
    ):  # fmt: skip
        if isinstance(given.get(name), str):
            with suppress(ValueError):
                given[name] = kind(given[name])
    wait = given.get("wait", False)
    timeout, heartbeat = given.get("connect_timeout", 5.0), given.get("heartbeat", 4)
    connections, max_body = given.get("connections", "split"), given.get("max_body", MAX_BODY)
    hold = given.get("consumer_timeout")
    require("connect_timeout", timeout, seconds)
    require("heartbeat", heartbeat, integer(1, 65_535))
    require("connections", connections, one_of("split", "single"))
    require("max_body", max_body, integer(1, 512 * 2**20))
    require("consumer_timeout", hold, optional(seconds))
    secure = url.scheme == "amqps"
    tls, ca = given.get("tls"), given.get("ca")
    if not secure and (tls is not None or ca is not None):
        raise ConfigError("tls" if ca is None else "ca", "…", "is for encrypted connections", "amqps://")
    port = _PORT_TLS if secure else _PORT
    login = Login(
        "guest" if url.user is None else url.user,
        "guest" if url.password is None else url.password,
        url.path or "/",
        heartbeat,
        given.get("name", ""),
    )
    hosts = tuple((host, port if own is None else own) for host, own in url.hosts)
    common: dict[str, Any] = {
        "tls": _context(tls, ca) if secure else None,
        "wait": wait,
        "connect_timeout": timeout,
        "split": connections == "split",
        "max_body": max_body,
        "consumer_timeout": hold,
    }
    results = given.get("results")
    if make is not None:
        if results is not None:
            raise ConfigError("results", "…", f"is not for the messages of {speak}")
        return DialectEngine(hosts, login, make(**{name: given[name] for name in theirs & given.keys()}), **common)
    return AmqpEngine(hosts, login, **common, results=None if results is None else _hub(results, wait, timeout))


def _hub(url: Any, wait: bool, timeout: float) -> HubEngine:
    place = EngineURL.parse(url)
    if place.scheme != "redpoll":
        raise ConfigError("results", str(place), "must be the URL of a hub", "redpoll://host:port")
    return open_hub(place, {"wait": wait, "connect_timeout": timeout})


def _context(tls: Any, ca: str | None) -> ssl.SSLContext:
    if isinstance(tls, ssl.SSLContext):
        return tls
    context = ssl.create_default_context(cafile=ca)
    if tls is not None:
        context.load_cert_chain(tls)
    return context

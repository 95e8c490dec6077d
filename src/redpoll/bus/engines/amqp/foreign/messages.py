"""Exchanges, queues and messages as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from redpoll.bus.engines.amqp.wire import NO_PROPERTIES, Properties

__all__ = ["DEFAULT", "Exchange", "Message", "Queue"]


class Exchange(NamedTuple):
    """An exchange.

    Attributes:
        name: Its name; "" is the broker's default exchange, which is never declared.
        kind: Its type: "topic", "direct", "fanout" or "headers".
        durable: True if it survives a restart of the broker.
        auto_delete: True if it goes with its last binding.
    """

    name: str
    kind: str = "topic"
    durable: bool = False
    auto_delete: bool = False


DEFAULT: Final = Exchange("", "direct", durable=True)
"""The default exchange: its routing keys are names of queues."""

_NONE: Final[Mapping[str, Any]] = {}


class Queue(NamedTuple):
    """A queue and its bindings.

    Attributes:
        name: Its name; "" lets the broker choose one.
        bindings: Exchanges and routing keys.
        durable: True if it survives a restart of the broker.
        exclusive: True if it belongs to the connection, and goes with it.
        arguments: Its arguments, as AMQP has them.
    """

    name: str
    bindings: tuple[tuple[Exchange, str], ...] = ()
    durable: bool = False
    exclusive: bool = False
    arguments: Mapping[str, Any] = _NONE


class Message(NamedTuple):
    """A message that is to be published.

    Attributes:
        exchange: The exchange.
        key: The routing key.
        body: The body.
        properties: The properties.
    """

    exchange: Exchange
    key: str
    body: bytes
    properties: Properties = NO_PROPERTIES

"""Deliveries, consumers and subscriptions of engines: the parts that are the same for all of them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from struct import Struct
from typing import Any, Final, Generic, Protocol, Self, TypeVar

from redpoll.bus.engine import EventSink, Listener
from redpoll.bus.envelope import Envelope, Outcome, OutcomeKind
from redpoll.bus.feed import Feed
from redpoll.bus.records import Event
from redpoll.errors import ConfigError

__all__ = [
    "ENDINGS",
    "NOTHING",
    "EngineConsumer",
    "EngineDelivery",
    "EngineSubscription",
    "call",
    "check_credit",
    "check_subscribing",
    "random_bits",
]

_log = logging.getLogger("redpoll.bus")

NOTHING: Final = Outcome(OutcomeKind.RESULT)
"""The outcome of an `ack` without one."""

ENDINGS: Final = frozenset(OutcomeKind) - {OutcomeKind.DEAD}
"""The kinds of outcomes that a worker may record."""

#: Maximum number of open deliveries that a consumer may be given: any that can be sent.
_CREDIT: Final = 2**53
#: Maximum messages of a publisher that are kept for a worker that does not listen yet.
_TOLD: Final = 1_000


class _Rejectable(Protocol):
    def reject(self, *, delay: float = 0.0, reason: str = "") -> object:
        """Give the task back."""


DeliveryT = TypeVar("DeliveryT", bound=_Rejectable)


def call(whose: str, callback: Callable[..., object], *arguments: object) -> None:
    """Call a user's callback; its exceptions are logged."""
    try:
        callback(*arguments)
    except (Exception, asyncio.CancelledError, GeneratorExit):  # noqa: BLE001  # see above
        _log.exception("%s failed", whose)


def random_bits() -> Iterator[int]:
    """64 random bits at a time, from the operating system once in a while; without a step in Python for each."""
    return chain.from_iterable(map(Struct("512Q").unpack, map(os.urandom, repeat(4_096))))


def check_credit(credit: int) -> None:
    """Validate the maximum number of open deliveries.

    Raises:
        ConfigError: It cannot be.
    """
    if type(credit) is not int or not 0 <= credit <= _CREDIT:
        raise ConfigError("credit", credit, f"must be an int, 0 to {_CREDIT}")


def check_subscribing(patterns: Iterable[str], buffer: int) -> tuple[str, ...]:
    """Return the patterns of a subscription.

    Raises:
        ConfigError: There is none, or the number of events that wait for the iterator cannot be.
    """
    if type(buffer) is not int or buffer < 1:
        raise ConfigError("buffer", buffer, "must be an int above 0")
    wanted = tuple(patterns)
    if not wanted:
        raise ConfigError("patterns", wanted, "must not be empty")
    return wanted


class EngineDelivery:
    """A delivery and its listener. Its constructor is the engine's, which sets all fields itself."""

    __slots__ = ("__weakref__", "_cancelled", "_listener", "_lost", "_told", "attempt", "envelope", "inputs")

    envelope: Envelope
    attempt: int
    inputs: Sequence[tuple[str, Outcome]]
    _lost: bool
    _cancelled: str
    _listener: Listener | None
    _told: list[Envelope] | None

    @property
    def lost(self) -> bool:
        """True if it was taken away."""
        return self._lost

    @property
    def cancelled(self) -> bool:
        """True if the work is not wanted any more."""
        return bool(self._cancelled)

    def listen(self, listener: Listener) -> None:
        """Set the listener of the task."""
        self._listener = listener
        if self._told is not None:
            told, self._told = self._told, None
            for envelope in told:
                call("a listener", listener.told, envelope)
        if self._cancelled:
            call("a listener", listener.cancelled, self._cancelled)
        if self._lost:
            call("a listener", listener.lost)

    def begin(self) -> bool:
        """Note that its work begins; return False if it must not."""
        return not self._lost

    def extend(self) -> bool:
        """Do nothing: the engine sees that this process lives."""
        return not self._lost

    # -- for the engine

    def lose(self) -> None:
        """Note that it was taken away."""
        self._lost = True
        listener, self._listener = self._listener, None
        if listener is not None:
            call("a listener", listener.lost)

    def cancel(self, reason: str) -> None:
        """Note that the work is not wanted."""
        if not self._cancelled:
            self._cancelled = reason
            if self._listener is not None:
                call("a listener", self._listener.cancelled, reason)

    def tell(self, envelope: Envelope) -> None:
        """Hand on a message of the publisher, or keep it until there is a listener."""
        if self._listener is not None:
            call("a listener", self._listener.told, envelope)
        elif self._told is None:
            self._told = [envelope]
        elif len(self._told) < _TOLD:
            self._told.append(envelope)


class EngineConsumer(Generic[DeliveryT]):
    """A consumer: its sink, or its iterator.

    Args:
        queue: Name of the queue.
        sink: The sink; None iterates.

    Attributes:
        queue: Name of the queue.
        deliveries: The open deliveries by token.
    """

    def __init__(self, queue: str, sink: Callable[[Any], object] | None) -> None:
        self.queue = queue
        self.deliveries: dict[int, DeliveryT] = {}
        self._feed: Feed[DeliveryT] = Feed()
        self._sink: Callable[[DeliveryT], object] = self._feed.push if sink is None else sink

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> DeliveryT:
        return await self._feed.take()

    def _hand_over(self, delivery: DeliveryT) -> None:
        try:
            self._sink(delivery)
        except (Exception, asyncio.CancelledError, GeneratorExit):  # noqa: BLE001  # a callback may raise anything
            _log.exception("the sink of a consumer of %r failed", self.queue)
            delivery.reject(delay=1.0, reason="its worker could not take it")

    def _end(self, error: Exception | None) -> None:
        """Give back the deliveries that are still in the iterator, and end that."""
        while self._feed.items:
            self._feed.items.pop().reject()
        self._feed.end(error)


class EngineSubscription:
    """A subscription: its sink, or its iterator.

    Args:
        patterns: The patterns.
        sink: The sink; None iterates.
        buffer: Maximum events that wait for the iterator.

    Attributes:
        patterns: The patterns.
        delivered: Events that came.
        lost: Events that its loop was too slow for.
    """

    def __init__(self, patterns: tuple[str, ...], sink: EventSink | None, buffer: int) -> None:
        self.patterns = patterns
        self.delivered = 0
        self.lost = 0
        self._closed = False
        self._feed: Feed[Event] = Feed(buffer)
        self._sink: EventSink = self._feed.push if sink is None else sink

    @property
    def dropped(self) -> int:
        """Events that were lost here."""
        return self.lost + self._feed.dropped

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await self._feed.take()

    def take(self, event: Event) -> None:
        """Hand an event over."""
        if self._closed:
            return
        self.delivered += 1
        try:
            self._sink(event)
        except (Exception, asyncio.CancelledError, GeneratorExit):  # noqa: BLE001  # a callback may raise anything
            _log.exception("the sink of a subscription to %r failed", event.subject)

"""The part of an engine that takes what its hub sends: answers, tasks, outcomes, events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from redpoll.bus.awaitables import FALSE
from redpoll.bus.engine import Observer, Watcher
from redpoll.bus.engines.base import EngineBase
from redpoll.bus.engines.handles import call
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.asking import Asking, fail_future
from redpoll.bus.engines.hub.handles import HubConsumer, HubDelivery, HubSubscription
from redpoll.bus.envelope import KINDS, Outcome, OutcomeKind, decode
from redpoll.bus.records import Event, task_id
from redpoll.errors import DecodeError, NoRoute, NotConfirmed, RedpollError

__all__ = ["Receiving"]

_new: Final = tuple.__new__


class Receiving(EngineBase, Asking):
    """Hands what a hub sends to consumers, subscriptions, watchers and observers.

    Args:
        patient: As of `Asking`.

    Attributes:
        store: Name of the hub's store; "" before it is known.
    """

    def __init__(self, patient: bool) -> None:
        EngineBase.__init__(self)
        Asking.__init__(self, patient)
        self.store = ""
        # With the numbers of their tasks; and of calls, the times by which their outcomes are there.
        self._watchers: dict[int, tuple[Watcher, int, float | None]] = {}
        self._consumers: dict[int, HubConsumer] = {}
        # Arguments of the next deliveries, by token, or why one of them cannot be read.
        self._inputs: dict[int, list[tuple[str, Outcome]] | DecodeError] = {}
        self._subscriptions: dict[int, HubSubscription] = {}
        self._observers: list[Observer] = []

    def _dismissed(self, error: RedpollError) -> None:
        """Handle that the hub does not know this client, or no more."""
        raise NotImplementedError

    # -- requests

    def _watcher(self, number: int) -> Watcher | None:
        """Return the watcher of a request, which is told its outcome now and nothing more."""
        watched = self._watchers.pop(number, None)
        if watched is not None:
            return watched[0]
        request = self._requests.get(number)
        if request is None:
            return None
        watcher, request.watcher = request.watcher, None
        return watcher

    def _lose_watchers(self, error: RedpollError) -> None:
        watchers, self._watchers = self._watchers, {}
        for watcher, *_ in watchers.values():
            call("a watcher", watcher.gone, error)

    def _ends(self, number: int) -> float | None:
        watched = self._watchers.get(number)
        return None if watched is None else watched[2]

    def _expire(self, number: int) -> None:
        watcher, *_ = self._watchers.pop(number)
        call("a watcher", watcher.outcome, Outcome(OutcomeKind.EXPIRED, None, f"no answer of {self.where}"))

    def _replied(self, number: int, value: Any) -> None:
        request = self._requests.pop(number, None)
        if request is None:
            return
        if request.watcher is not None and isinstance(value, list) and value[0]:
            self._watchers[number] = (request.watcher, p.id_number(value[0]), request.ends)
        elif request.watchers:
            # If the last one's key was known, it is the only one.
            watched = request.watchers[-len(value[0]) :]
            for (place, watcher), task in zip(watched, value[0], strict=True):
                if watcher is not None:
                    self._watchers[place] = (watcher, p.id_number(task), None)
        if not request.future.done():
            request.future.set_result(value)

    def _refused(self, number: int, values: list[Any]) -> None:
        error = p.rebuild_error(values)
        if not number:
            self._dismissed(error)
            return
        request = self._requests.pop(number, None)
        if request is not None:
            fail_future(request.future, error)
            return
        watched = self._watchers.pop(number, None)
        if watched is not None:
            # It was asked for again.
            call("a watcher", watched[0].gone, NotConfirmed(None, f"its outcome is not known: {error}"))

    # -- tasks and events

    def _delivered(
        self, number: int, token: int, task: bytes, attempt: int, left: float | None, payload: bytes
    ) -> None:
        consumer = self._consumers.get(number)
        inputs = self._inputs.pop(token, ()) if self._inputs else ()
        if consumer is None:
            self.say(p.BACK, 0, number, [token])
            return
        if isinstance(inputs, DecodeError):
            raise inputs
        ends = None if left is None else self.loop.time() + left
        consumer.deliver(HubDelivery(consumer, token, p.id_number(task), attempt, ends, decode(payload), inputs))

    def _given(self, _: int, token: int, outcomes: list[Any]) -> None:
        given = self._inputs.setdefault(token, [])
        if isinstance(given, DecodeError):
            return
        try:
            for task, kind, payload, detail in outcomes:
                if payload == b"":
                    self._inputs[token] = DecodeError("the hub", detail)
                    return
                envelope = None if payload is None else decode(payload)
                given.append((task_id(self.store, p.id_number(task)), Outcome(KINDS[kind], envelope, detail)))
        except DecodeError as error:
            # The task without them all would begin with fewer.
            self._inputs[token] = error

    def _ended_task(self, number: int, kind: int, payload: bytes | None, detail: str) -> None:
        outcome = _new(Outcome, (KINDS[kind], None if payload is None else decode(payload), detail))
        watcher = self._watcher(number)
        if watcher is not None:
            call("a watcher", watcher.outcome, outcome)

    def _progressed(self, number: int, payload: bytes) -> None:
        watched = self._watchers.get(number)
        if watched is not None:
            call("a watcher", watched[0].progress, decode(payload))
            return
        request = self._requests.get(number)
        if request is not None and request.watcher is not None:
            call("a watcher", request.watcher.progress, decode(payload))

    def _delivery(self, number: int, token: int) -> HubDelivery | None:
        consumer = self._consumers.get(number)
        return None if consumer is None else consumer.find(token)

    def _cancelled(self, number: int, token: int, reason: str) -> None:
        delivery = self._delivery(number, token)
        if delivery is not None:
            delivery.cancel(reason)

    def _told(self, number: int, token: int, payload: bytes) -> None:
        delivery = self._delivery(number, token)
        if delivery is not None:
            delivery.tell(decode(payload))

    def _stopped(self, number: int, reason: str) -> None:
        consumer = self._consumers.get(number)
        if consumer is not None:
            consumer.stop(NoRoute(consumer.queue, reason))

    def _events(self, numbers: list[Any], subject: str, payload: bytes, kept: bool) -> None:
        event = Event(subject, decode(payload), kept)
        for number in numbers:
            subscription = self._subscriptions.get(number)
            if subscription is not None:
                subscription.take(event)

    def _noted(self, what: str, queue: str, task: bytes, detail: str) -> None:
        number = p.id_number(task)
        name = task_id(self.store, number) if number else ""
        for observer in tuple(self._observers):
            call("an observer", observer, what, queue, name, detail)

    # -- for what it handed out

    def tell_end(self, kind: int, consumer: HubConsumer, delivery: HubDelivery, *rest: Any) -> Awaitable[bool]:
        """For deliveries that are open: accept one, or end it; False where it was lost."""
        if self.closed:
            return FALSE
        ended = None if kind == p.ACCEPT else (consumer.queue, delivery.number)
        gather = kind == p.DONE and consumer.has_more
        return self._ask(kind, consumer.number, delivery.token, *rest, again=True, gather=gather, ended=ended)

    def close_consumer(self, consumer: HubConsumer) -> Awaitable[Any] | None:
        """Have a consumer take no more."""
        if self.linked and not self.closed:
            return self._ask(p.CLOSE, consumer.number, again=False)
        return None

    def forget(self, consumer: HubConsumer) -> None:
        """A closed consumer has no open delivery."""
        self._consumers.pop(consumer.number, None)

    def give_back(self, number: int, tokens: list[int]) -> asyncio.Future[Any]:
        """Give back deliveries of a consumer that were not begun."""
        return self._ask(p.BACK, number, tokens, again=False)

    def unsubscribe(self, subscription: HubSubscription) -> None:
        """End a subscription."""
        if self._subscriptions.pop(subscription.number, None) is not None:
            self.say_if_linked(p.UNSUBSCRIBE, subscription.number)

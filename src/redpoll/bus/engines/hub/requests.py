"""Requests of clients, one record each: publish, consume, settle, subscribe, watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Final

from redpoll.bus.broker.queue import DURABLE, KEEP, Consumer, Parked, Task
from redpoll.bus.engines.handles import ENDINGS
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.clients import Client, Watch
from redpoll.bus.engines.hub.pace import LEASE
from redpoll.bus.engines.hub.turns import Turns
from redpoll.bus.envelope import KINDS
from redpoll.bus.records import Publication, Step, check_steps
from redpoll.errors import PayloadTooLarge, ProtocolError, QueueFull, Withdrawn

__all__ = ["REQUESTS", "Requests", "check_payload", "read_publication"]

#: Bytes of an envelope before its head, and those that head may have.
_PREFIX: Final = Struct("!BI")
_MAX_HEAD: Final = 65_536
_new: Final = tuple.__new__
#: Consumers of one client.
_CONSUMERS: Final = 10_000
#: Tasks that a consumer has ahead.
_AHEAD: Final = 1_000


class Requests:
    """Carries out requests of clients; each method takes the client and the fields of the record.

    Args:
        turns: The broker in its turns.
        max_body: The largest body, in bytes.
    """

    def __init__(self, turns: Turns, max_body: int) -> None:
        self._turns = turns
        self._broker = turns.broker
        self._max_body = max_body

    def _publish(self, client: Client, request: int, queue: str, payload: bytes, watched: bool, *how: Any) -> None:
        if request <= 0 or request in client.parked:
            raise _not_new(request)
        size = check_payload(payload, self._max_body)
        found = self._broker.queues.found.get(queue)
        durable = found is not None and found.spec.durable
        if durable and not self._turns.has_room(size):
            raise _disk_full(queue)
        watch = _new(Watch, (request, durable)) if watched else None
        got = self._broker.intake.submit(
            client.member, queue, payload, size, time.monotonic(), watch, how, (request, request if watched else 0)
        )
        if isinstance(got, Parked):
            client.parked[request] = got
        elif isinstance(got, Task):
            # A caller, which waits for the outcome, learns the number with that, where it is soon there.
            calls = watched and not durable and not got.flags & KEEP
            self._turns.reply(client, durable, request, [got.id.to_bytes(p.ID), False], late=calls)
        else:
            if watched:
                self._turns.watch_known(client, request, got)
            self._turns.reply(client, durable, request, [p.id_bytes(got), True])

    def _steps(self, client: Client, request: int, tasks: list[Any], timeout: float | None) -> None:
        if request <= 0 or request in client.parked:
            raise _not_new(request)
        steps: list[tuple[Step, int, int]] = []
        for each in tasks:
            match each:
                case [task, list() as after, bool() as collect, int() as watcher]:
                    publication, size = read_publication(task, self._max_body)
                    steps.append((Step(publication, tuple(after), collect), size, watcher))
                case _:
                    raise ProtocolError("expected a task, the places of those before it, a flag, and a watcher")
        check_steps([each for each, *_ in steps], [size for _, size, _ in steps], self._max_body)
        found = self._broker.queues.found
        queues = {step.publication.queue for step, *_ in steps}
        durable = any(found[name].spec.durable for name in queues if name in found)
        if durable and not self._turns.has_room(sum(size for _, size, _ in steps)):
            raise _disk_full(min(queues))
        planned = [
            (step, size, Watch(watcher, step.publication.queue in found and found[step.publication.queue].spec.durable))
            if watcher
            else (step, size, None)
            for step, size, watcher in steps
        ]
        last = steps[-1][2]
        got = self._broker.intake.submit_steps(client.member, planned, time.monotonic(), timeout, (request, last))
        if isinstance(got, Parked):
            client.parked[request] = got
        elif isinstance(got, int):
            if last:
                self._turns.watch_known(client, last, got)
            self._turns.reply(client, True, request, [[p.id_bytes(got)], True])
        else:
            self._turns.reply(client, durable, request, [[p.id_bytes(each) for each in got], False])

    def _event(
        self,
        client: Client,
        request: int,
        subject: str,
        payload: bytes,
        mandatory: bool,
        last: int,
        timeout: float | None,
    ) -> None:
        if request <= 0 or request in client.parked:
            raise _not_new(request)
        size = check_payload(payload, self._max_body)
        if self._broker.intake.stores(subject, last) and not self._turns.has_room(size):
            raise _disk_full(subject)
        got = self._broker.intake.publish(
            client.member, subject, payload, size, time.monotonic(), mandatory, last, timeout, (request, 0)
        )
        if got is not None:
            client.parked[request] = got
        else:
            self._turns.reply(client, bool(self._broker.out.writes), request, [b"", False])

    def _withdraw(self, client: Client, request: int) -> None:
        parked = client.parked.pop(request, None)
        if parked is not None:
            self._broker.intake.unpark((parked,), time.monotonic())
            client.fail(request, Withdrawn(None, ""))

    def _consume(
        self,
        client: Client,
        request: int,
        number: int,
        queue: str,
        credit: int,
        accept: bool,
        exclusive: bool,
        automatic: bool,
    ) -> None:
        _check(credit >= 0 and number not in client.consumers, "a consumer has a number of its own, and credit")
        if len(client.consumers) >= _CONSUMERS:
            raise QueueFull(None, _CONSUMERS, "consumers of a client", queue=queue)
        client.consumers[number] = self._broker.work.consume(
            client.member,
            queue,
            time.monotonic(),
            credit,
            number,
            auto=automatic,
            exclusive=exclusive,
            accepts=accept,
        )
        client.reply(request)

    def _take(self, client: Client, request: int, number: int, queue: str) -> None:
        _check(number not in client.consumers, "a consumer has a number of its own")
        now = time.monotonic()
        consumer = self._broker.work.consume(client.member, queue, now, 1, number, auto=False)
        found = bool(consumer.held)
        if found:
            client.consumers[number] = consumer
        self._broker.work.close(consumer, now)
        client.reply(request, found)

    def _credit(self, client: Client, number: int, more: int) -> None:
        consumer = client.consumers.get(number)  # none where its queue is gone
        if consumer is not None and not consumer.closed:
            self._broker.work.add_credit(consumer, more)

    def _ahead(self, client: Client, number: int, ahead: int) -> None:
        consumer = client.consumers.get(number)
        if consumer is not None and not consumer.closed:
            _check(0 <= ahead <= _AHEAD and not consumer.accepts, "a consumer takes a bounded number ahead")
            # Its worker may begin a task ahead for so long: with a shorter grace somebody else could have it by then.
            self._broker.work.set_ahead(consumer, ahead if self._broker.limits.grace > LEASE else 0)

    def _back(self, client: Client, request: int, number: int, tokens: list[Any]) -> None:
        consumer = client.consumers.get(number)
        if consumer is not None:
            _check(all(type(each) is int for each in tokens), "tokens are numbers")
            self._turns.carry()  # what was handed out before goes back too, as it comes before the answer
            self._broker.work.give_back(consumer, tokens, time.monotonic())
            self._ended(client, number, consumer)
        client.reply(request)

    def _resume(self, client: Client, request: int) -> None:
        client.question = 0
        self._broker.peers.resume(client.member)
        client.reply(request)

    def _close(self, client: Client, request: int, number: int) -> None:
        consumer = client.consumers.get(number)
        if consumer is not None:
            self._broker.work.close(consumer, time.monotonic())
            if not consumer.held:
                del client.consumers[number]
        client.reply(request)

    def _reclaim(self, client: Client, request: int, number: int, task: bytes, token: int) -> None:
        consumer = client.consumers.get(number)
        if consumer is None:
            client.reply(request, "lost")
        else:
            whose = self._broker.work.reclaim(consumer, p.id_number(task), token, time.monotonic())
            if whose == "done":
                client.recorded.add(token)
            client.reply(request, whose)

    def _settle(self, client: Client) -> None:
        self._broker.peers.settle(client.member, time.monotonic())

    def _accept(self, client: Client, request: int, number: int, token: int) -> None:
        consumer = client.consumers.get(number)
        done = consumer is not None and self._broker.work.accept(consumer, token)
        durable = consumer is not None and consumer.queue.spec.durable
        self._turns.reply(client, durable, request, done)

    def _done(
        self,
        client: Client,
        request: int,
        number: int,
        token: int,
        kind: int,
        payload: bytes | None,
        detail: str,
        successors: list[Any],
    ) -> None:
        if kind not in ENDINGS:
            raise ProtocolError("a worker cannot end a task so")
        size = 0 if payload is None else check_payload(payload, self._max_body)
        if token in client.recorded:
            # Its outcome was recorded, and the answer was lost with the link.
            client.recorded.discard(token)
            self._turns.reply(client, True, request, True)
            return
        consumer = client.consumers.get(number)
        if consumer is None:
            client.reply(request, False)
            return
        then = [read_publication(each, self._max_body) for each in successors] if successors else ()
        done = self._broker.work.settle(consumer, token, time.monotonic(), KINDS[kind], payload, size, detail, then)
        if consumer.closed:
            self._ended(client, number, consumer)
        # The worker takes the next task meanwhile; where it takes one only, somebody may wait.
        self._turns.reply(client, consumer.queue.spec.durable, request, done, late=consumer.auto and not successors)

    def _reject(self, client: Client, request: int, number: int, token: int, *how: Any) -> None:
        if how[-1] is not None:
            check_payload(how[-1], self._max_body)
        consumer = client.consumers.get(number)
        if consumer is None:
            client.reply(request, False)
            return
        done = self._broker.work.reject(consumer, token, time.monotonic(), *how)
        self._ended(client, number, consumer)
        self._turns.reply(client, consumer.queue.spec.durable, request, done)

    def _ended(self, client: Client, number: int, consumer: Consumer) -> None:
        if consumer.closed and not consumer.held:
            client.consumers.pop(number, None)

    def _progress(self, client: Client, number: int, token: int, payload: bytes) -> None:
        check_payload(payload, self._max_body)
        consumer = client.consumers.get(number)
        if consumer is not None:
            self._broker.work.progress(consumer, token, payload)

    def _subscribe(self, client: Client, request: int, number: int, patterns: list[Any], last: bool) -> None:
        _check(number not in client.subscriptions, "a subscription has a number of its own")
        wanted = p.texts(patterns)
        client.subscriptions[number] = self._broker.intake.subscribe(client.member, wanted, number, last=last)
        client.reply(request)

    def _unsubscribe(self, client: Client, number: int) -> None:
        subscription = client.subscriptions.pop(number, None)
        if subscription is not None:
            self._broker.peers.close(subscription)

    def _watch(self, client: Client, request: int, task: bytes) -> None:
        number = p.id_number(task)
        watch = Watch(request, True)
        found = self._broker.tasks.found.get(number)
        if found is not None:
            watching = [(found.peer, found.watch), *(() if found.extra is None else found.extra.watchers)]
            if any(peer is client.member and each == watch for peer, each in watching if each is not None):
                # It asks again, after its session was over.
                client.reply(request)
                return
            watch = Watch(request, bool(found.flags & DURABLE))
        self._broker.intake.watch(client.member, number, watch, time.monotonic())
        client.reply(request)


REQUESTS: Final[Mapping[int, Callable[..., None]]] = {
    p.PUBLISH: Requests._publish,
    p.STEPS: Requests._steps,
    p.EVENT: Requests._event,
    p.WITHDRAW: Requests._withdraw,
    p.CONSUME: Requests._consume,
    p.TAKE: Requests._take,
    p.CREDIT: Requests._credit,
    p.AHEAD: Requests._ahead,
    p.BACK: Requests._back,
    p.RESUME: Requests._resume,
    p.CLOSE: Requests._close,
    p.RECLAIM: Requests._reclaim,
    p.SETTLE: Requests._settle,
    p.ACCEPT: Requests._accept,
    p.DONE: Requests._done,
    p.REJECT: Requests._reject,
    p.PROGRESS: Requests._progress,
    p.SUBSCRIBE: Requests._subscribe,
    p.UNSUBSCRIBE: Requests._unsubscribe,
    p.WATCH: Requests._watch,
}


def read_publication(values: Any, most: int) -> tuple[Publication, int]:
    """Return a task to be put into a queue, whose envelope is encoded, with the size of its body.

    Args:
        values: Queue, envelope, and the options.
        most: Maximum size of the body, in bytes.

    Raises:
        ProtocolError: It is none.
        PayloadTooLarge: The body is larger.
    """
    match values:
        case [str() as queue, bytes() as payload, dict() as options]:
            size = check_payload(payload, most)
            try:
                return Publication(queue, payload, **options), size  # type: ignore[arg-type]  # the owner's payload
            except TypeError:
                pass
    raise ProtocolError("expected a task, its queue and its options")


def check_payload(payload: bytes, most: int) -> int:
    """Return the size of the body of an envelope.

    Args:
        payload: The envelope, encoded.
        most: Maximum size of the body, in bytes.

    Raises:
        ProtocolError: It is none.
        PayloadTooLarge: The body is larger.
    """
    if len(payload) < _PREFIX.size:
        raise ProtocolError("expected an envelope")
    _, head = _PREFIX.unpack_from(payload)
    size: int = len(payload) - _PREFIX.size - head
    if size < 0 or head > _MAX_HEAD:
        raise ProtocolError("expected an envelope with a complete head")
    if size > most:
        raise PayloadTooLarge(size, most)
    return size


def _not_new(request: int) -> ProtocolError:
    problem = "waits for room already" if request > 0 else "is no number of a publish"
    return ProtocolError(f"request {request} {problem}: each publish has a number of its own, from 1")


def _disk_full(queue: str) -> QueueFull:
    return QueueFull(None, 0, "bytes, as the disk of the hub is full", queue=queue)


def _check(holds: bool, rule: str) -> None:
    if not holds:
        raise ProtocolError(rule)

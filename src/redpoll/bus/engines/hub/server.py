"""The hub: a broker behind a node, with a store. It keeps queues and subjects for programs anywhere."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from os import urandom
from struct import Struct
from typing import Any, Final

from redpoll.address import Address
from redpoll.bus.broker import Limits
from redpoll.bus.broker import outputs as out
from redpoll.bus.broker.broker import Broker
from redpoll.bus.broker.queue import (
    ACCEPTED,
    CANCEL,
    DEADLINE,
    DELAYED,
    DURABLE,
    TAKEN,
    Consumer,
    Parked,
    Subscription,
    Task,
)
from redpoll.bus.broker.queue import Peer as BrokerPeer
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.store import Store
from redpoll.bus.envelope import OutcomeKind
from redpoll.bus.records import Publication, QueueSpec, task_id
from redpoll.config import Config
from redpoll.errors import (
    PayloadTooLarge,
    ProtocolError,
    QueueFull,
    RedpollError,
    ResultExpired,
    UnknownTask,
    UsageError,
)
from redpoll.node import Received
from redpoll.node.door import Batch, LayerNode, Peer, peer_of

__all__ = ["HubServer"]

_log = logging.getLogger("redpoll.bus")

MAX_BODY: Final = 16 * 2**20
#: Bytes of an envelope before its head, and those that head may have.
_PREFIX: Final = Struct("!BI")
_MAX_HEAD: Final = 65_536
#: Records that wait for one client, beyond which those that may be lost are.
_WAITING: Final = 10_000
_MAY_BE_LOST: Final = frozenset({p.EVENTS, p.PROGRESSED, p.NOTE})
_ENDINGS: Final = frozenset({OutcomeKind.RESULT, OutcomeKind.ERROR, OutcomeKind.CANCELLED, OutcomeKind.TIME_LIMIT})


@dataclasses.dataclass(frozen=True, slots=True)
class _Watch:
    """A watcher of a client, by the number of the request that made it."""

    request: int
    durable: bool


class _Client:
    """A client in one session.

    Attributes:
        peer: The node's.
        member: The broker's.
        consumers: The broker's consumers by the client's numbers.
        subscriptions: The subscriptions likewise.
        parked: Publishes that wait for room, by request.
        observes: Whether it wants notes.
    """

    def __init__(self, server: HubServer, peer: Peer, member: BrokerPeer) -> None:
        self._server = server
        self.peer = peer
        self.member = member
        self.consumers: dict[int, Consumer] = {}
        self.subscriptions: dict[int, Subscription] = {}
        self.parked: dict[int, Parked] = {}
        self.observes = False
        self._waiting: deque[list[Any]] = deque()
        self._scheduled = False
        self.open = True

    def say(self, *record: Any) -> None:
        """Send a record in this turn of the loop, behind those before."""
        waiting = self._waiting
        if not self.open or (len(waiting) >= _WAITING and record[0] in _MAY_BE_LOST):
            return
        waiting.append(list(record))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        node = self._server.node
        waiting = self._waiting
        while waiting and self.open:
            if node.room(self.peer) <= 0:
                self._scheduled = True
                node.when_room(self.peer, self._flush)
                return
            part = [waiting.popleft() for _ in range(min(len(waiting), 1024))]
            node.send_batch(self.peer, [(b"", body) for body, _ in p.pack(part)], _ended)

    def reply(self, request: int, value: Any = None) -> None:
        """Answer a request, unless it wants no answer."""
        if request:
            self.say(p.REPLY, request, value)

    def fail(self, request: int, error: RedpollError) -> None:
        """Answer that it was not done."""
        if request:
            self.say(p.FAILED, request, p.pack_error(error))


class _Node(LayerNode):
    def __init__(self, server: HubServer, config: Config) -> None:
        super().__init__(config)
        self._server = server

    def arrived(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Take over records of a client."""
        return self._server.take(messages)

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        self._server.lose(peer, error)


class HubServer:
    """A hub.

    Args:
        store: Its store, open; it is closed with the hub.
        config: The options of its node.
        limits: Those of its broker.
        confirm: What a confirmed task survives: "disk", or "process" where the store has no disk.
        max_body: The largest body, in bytes.

    Attributes:
        broker: The broker.
        node: The node.
        failed: Done when the store failed; the hub has to end then.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        limits: Limits | None = None,
        *,
        confirm: str = "disk",
        max_body: int = MAX_BODY,
    ) -> None:
        self._store = store
        self._confirm = confirm
        self._max_body = max_body
        self._limits = Limits() if limits is None else limits
        self.node = _Node(self, dataclasses.replace(config, resume=self._limits.grace))
        self.broker: Broker
        self.failed: asyncio.Future[None]
        self._clients: dict[Peer, _Client] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed = float("inf")
        # What waits for the disk: of each turn that wrote, what is to be said once that is there.
        self._unsynced: deque[list[tuple[_Client, tuple[Any, ...]]]] = deque()
        # Of this turn.
        self._claims: list[tuple[_Client, tuple[Any, ...]]] = []
        self._do: dict[int, Callable[..., None]] = {
            p.PUBLISH: self._publish,
            p.EVENT: self._event,
            p.WITHDRAW: self._withdraw,
            p.CONSUME: self._consume,
            p.TAKE: self._take,
            p.CREDIT: self._credit,
            p.CLOSE: self._close,
            p.RECLAIM: self._reclaim,
            p.SETTLE: self._settle,
            p.ACCEPT: self._accept,
            p.DONE: self._done,
            p.REJECT: self._reject,
            p.PROGRESS: self._progress,
            p.SUBSCRIBE: self._subscribe,
            p.UNSUBSCRIBE: self._unsubscribe,
            p.WATCH: self._watch,
            p.UNWATCH: self._unwatch,
            p.CALL: self._call,
        }

    @property
    def address(self) -> Address:
        """The address that it listens at."""
        return self.node.address

    async def start(self) -> None:
        """Load what the store has, and listen."""
        loop = asyncio.get_running_loop()
        self.failed = loop.create_future()
        store = self._store
        store.failed = self._store_failed
        self.broker = Broker.restored(
            store.load(), time.monotonic(), store.name, _bits(), self._limits, epoch=store.epoch, serial=store.serial
        )
        self._end_of_turn()
        await self.node.start()

    async def close(self) -> None:
        """Put on disk what is to be there, say it, and end. What workers have stays theirs, and is not waited for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for client in self._clients.values():
            client.member.open = False
        await self._store.close()
        for client in list(self._clients.values()):
            client._flush()
        await self.node.stop(0.5)

    def _store_failed(self, error: BaseException) -> None:
        _log.error("the store of the hub failed, so it ends: %s", error)
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()

    # Turns

    def take(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Take over messages of one client."""
        peer = peer_of(messages[0])
        try:
            for message in messages:
                for record in p.unpack(message.data, p.FROM_CLIENTS):
                    self._record(peer, record)
        except ProtocolError as error:
            self._expel(peer, error)
        finally:
            self._end_of_turn()
        return messages

    def _record(self, peer: Peer, record: list[Any]) -> None:
        kind = record[0]
        if kind == p.HELLO:
            self._hello(peer, record[1], record[2])
            return
        client = self._clients.get(peer)
        if client is None:
            raise ProtocolError("a client says hello first")
        if kind == p.GOODBYE:
            self._forget(client, goodbye=True)
            return
        try:
            self._do[kind](client, *record[1:])
        except ProtocolError:
            raise
        except RedpollError as error:
            if kind in {p.CREDIT, p.PROGRESS, p.SETTLE, p.UNSUBSCRIBE}:
                return
            client.fail(record[1], error)

    def _end_of_turn(self) -> None:
        """Store what is to be stored; say what claims that it is stored when it is, and all else at once."""
        outbox = self.broker.out
        effects, writes = outbox.take(), outbox.take_writes()
        for effect in effects:
            self._carry(effect)
        claims, self._claims = self._claims, []
        if writes:
            self._unsynced.append(claims)
            self._store.write(writes, self._synced)
        elif self._unsynced:
            # It may be about what an earlier turn wrote.
            self._unsynced[-1].extend(claims)
        else:
            for client, record in claims:
                client.say(*record)
        if self.broker.timers.earlier:
            self._arm()

    def _synced(self) -> None:
        for client, record in self._unsynced.popleft():
            client.say(*record)

    def _claim(self, client: _Client, durable: bool, *record: Any) -> None:
        """Say something once it is on disk, where it is about what is to be there."""
        if durable:
            self._claims.append((client, record))
        else:
            client.say(*record)

    def _carry(self, effect: out.Effect) -> None:
        kind = effect[0]
        if kind == out.EVENT:
            _, subscriptions, subject, payload, kept = effect
            groups: dict[_Client, list[int]] = {}
            for each in subscriptions:
                if each.peer.owner is not None:
                    groups.setdefault(each.peer.owner, []).append(each.owner)
            for client, numbers in groups.items():
                client.say(p.EVENTS, numbers, subject, payload, kept)
            return
        if kind == out.NOTE:
            _, _, what, queue, number, detail = effect
            for client in self._clients.values():
                if client.observes:
                    client.say(p.NOTE, what, queue, p.id_bytes(number), detail)
            return
        client = effect[1].owner
        if client is None:
            return
        if kind == out.DELIVER:
            _, _, consumer, token, task, payload = effect
            client.say(
                p.DELIVER, consumer.owner, token, p.id_bytes(task.id), task.attempts + 1, self._left(task), payload
            )
        elif kind == out.OUTCOME:
            _, _, watch, _, ending, payload, detail = effect
            self._claim(client, watch.durable, p.OUTCOME, watch.request, int(ending), payload, detail)
        elif kind == out.PROGRESS:
            client.say(p.PROGRESSED, effect[2].request, effect[4])
        elif kind == out.ADMITTED:
            _, _, parked, number, error, known = effect
            request, watched = parked.owner
            client.parked.pop(request, None)
            if error is not None:
                client.fail(request, error)
            elif number:
                if known and watched:
                    self._watch_known(client, request, number)
                self._claim(client, True, p.REPLY, request, [p.id_bytes(number), known])
            else:
                self._claim(client, True, p.REPLY, request, [b"", False])
        elif kind == out.CANCELLED:
            client.say(p.CANCELLED, effect[2].owner, effect[3], effect[4])
        elif kind == out.TOLD:
            client.say(p.TOLD, effect[2].owner, effect[3], effect[4])
        else:
            client.say(p.STOPPED, effect[2].owner, effect[3])

    def _left(self, task: Task) -> float | None:
        expires = task.expires
        return None if expires is None or not task.flags & DEADLINE else expires - time.monotonic()

    # Time

    def _arm(self) -> None:
        self.broker.timers.earlier = False
        deadline = self.broker.deadline
        if deadline is None or deadline >= self._armed:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed = deadline
        self._timer = asyncio.get_running_loop().call_later(max(0.0, deadline - time.monotonic()), self._advance)

    def _advance(self) -> None:
        self._timer = None
        self._armed = float("inf")
        try:
            self.broker.advance(time.monotonic())
        finally:
            self._end_of_turn()
            self._arm()

    # Clients

    def _hello(self, peer: Peer, version: int, name: str) -> None:
        if version != p.VERSION:
            raise ProtocolError(f"this hub speaks version {p.VERSION} of the bus, not {version}")
        former = self._clients.pop(peer, None)
        if former is not None:
            former.open = False
        member = self.broker.peers.join(name, time.monotonic())
        earlier = member.owner
        if earlier is not None:
            earlier.open = False
            self._clients.pop(earlier.peer, None)
        client = self._clients[peer] = member.owner = _Client(self, peer, member)
        store = self._store
        client.say(p.WELCOME, p.VERSION, store.name, store.epoch, self._confirm, self._max_body)

    def lose(self, peer: Peer, error: RedpollError) -> None:
        """The session of a client is over, without goodbye where it is known still."""
        client = self._clients.get(peer)
        if client is not None:
            _log.debug("lost the client %s: %s", client.member.name, error)
            self._forget(client, goodbye=False)
            self._end_of_turn()

    def _forget(self, client: _Client, *, goodbye: bool) -> None:
        self._clients.pop(client.peer, None)
        client.open = False
        now = time.monotonic()
        self.broker.intake.unpark(client.parked.values(), now)
        client.parked.clear()
        if client.member.owner is client:
            if goodbye:
                self.broker.intake.unwatch_all(client.member)
            self.broker.peers.leave(client.member, now, goodbye=goodbye)
            client.member.owner = None
        self._look_for_observers()

    def _expel(self, peer: Peer, error: ProtocolError) -> None:
        _log.warning("a client breaks the rules, and is not listened to any more: %s: %s", peer.address, error)
        client = self._clients.get(peer)
        if client is not None:
            self._forget(client, goodbye=False)
        self.node.cut(peer, error)

    def _look_for_observers(self) -> None:
        self.broker.out.observed = any(each.observes for each in self._clients.values())

    # What clients ask for: each is given the client, and what the record has

    def _check_payload(self, payload: bytes) -> int:
        """Return the size of the body of an envelope.

        Raises:
            ProtocolError: It is none.
            PayloadTooLarge: It is larger than the hub takes.
        """
        if len(payload) < _PREFIX.size:
            raise ProtocolError("expected an envelope")
        size = len(payload) - _PREFIX.size - int(_PREFIX.unpack_from(payload)[1])
        if size < 0 or len(payload) - size > _MAX_HEAD + _PREFIX.size:
            raise ProtocolError("expected an envelope with a complete head")
        if size > self._max_body:
            raise PayloadTooLarge(size, self._max_body)
        return size

    def _publish(self, client: _Client, request: int, queue: str, payload: bytes, watched: bool, *how: Any) -> None:
        size = self._check_payload(payload)
        priority, delay, ttl, deadline, dedup, keep, mandatory, timeout = how
        found = self.broker.queues.found.get(queue)
        durable = found is not None and found.spec.durable
        if durable and self._store.full:
            raise QueueFull(None, 0, "bytes, as the disk of the hub is full", queue=queue)
        watch = _Watch(request, durable) if watched else None
        options = (priority, delay, ttl, deadline, dedup, keep, mandatory, timeout)
        got = self.broker.intake.submit(
            client.member, queue, payload, size, time.monotonic(), watch, options, (request, watched)
        )
        if isinstance(got, Parked):
            client.parked[request] = got
        elif isinstance(got, Task):
            if request:
                self._claim(client, durable, p.REPLY, request, [p.id_bytes(got.id), False])
        else:
            if watched:
                self._watch_known(client, request, got)
            self._claim(client, durable, p.REPLY, request, [p.id_bytes(got), True])

    def _watch_known(self, client: _Client, request: int, number: int) -> None:
        """Watch the task that had the key of a publish before."""
        with suppress(RedpollError):  # its outcome is not kept; the client asks when it has the number
            self.broker.intake.watch(client.member, number, _Watch(request, True), time.monotonic())

    def _event(
        self,
        client: _Client,
        request: int,
        subject: str,
        payload: bytes,
        mandatory: bool,
        last: int,
        timeout: float | None,
    ) -> None:
        size = self._check_payload(payload)
        got = self.broker.intake.publish(
            client.member, subject, payload, size, time.monotonic(), mandatory, last, timeout, (request, False)
        )
        if got is not None:
            client.parked[request] = got
        elif request:
            self._claim(client, bool(self.broker.out.writes), p.REPLY, request, [b"", False])

    def _withdraw(self, client: _Client, request: int) -> None:
        parked = client.parked.pop(request, None)
        if parked is not None:
            self.broker.intake.unpark((parked,), time.monotonic())

    def _consume(
        self,
        client: _Client,
        request: int,
        number: int,
        queue: str,
        credit: int,
        accept: bool,
        exclusive: bool,
        automatic: bool,
    ) -> None:
        _check(credit >= 0 and number not in client.consumers, "a consumer has a number of its own, and credit")
        client.consumers[number] = self.broker.work.consume(
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

    def _take(self, client: _Client, request: int, number: int, queue: str) -> None:
        _check(number not in client.consumers, "a consumer has a number of its own")
        now = time.monotonic()
        consumer = self.broker.work.consume(client.member, queue, now, 1, number, auto=False)
        found = bool(consumer.held)
        if found:
            client.consumers[number] = consumer
        self.broker.work.close(consumer, now)
        client.reply(request, found)

    def _credit(self, client: _Client, number: int, more: int) -> None:
        consumer = client.consumers.get(number)  # none where its queue is gone
        if consumer is not None and not consumer.closed:
            self.broker.work.add_credit(consumer, more)

    def _close(self, client: _Client, request: int, number: int) -> None:
        consumer = client.consumers.get(number)
        if consumer is not None:
            self.broker.work.close(consumer, time.monotonic())
            if not consumer.held:
                del client.consumers[number]
        client.reply(request)

    def _reclaim(self, client: _Client, request: int, number: int, task: bytes, token: int) -> None:
        consumer = client.consumers.get(number)
        if consumer is None:
            client.reply(request, "lost")
        else:
            client.reply(request, self.broker.work.reclaim(consumer, p.id_number(task), token, time.monotonic()))

    def _settle(self, client: _Client) -> None:
        self.broker.peers.settle(client.member, time.monotonic())

    def _accept(self, client: _Client, request: int, number: int, token: int) -> None:
        consumer = client.consumers.get(number)
        done = consumer is not None and self.broker.work.accept(consumer, token)
        durable = consumer is not None and consumer.queue.spec.durable
        self._claim(client, durable, p.REPLY, request, done)

    def _done(
        self,
        client: _Client,
        request: int,
        number: int,
        token: int,
        kind: int,
        payload: bytes | None,
        detail: str,
        successors: list[Any],
    ) -> None:
        _check(kind in _ENDINGS, "a worker cannot end a task so")
        size = 0 if payload is None else self._check_payload(payload)
        consumer = client.consumers.get(number)
        if consumer is None:
            client.reply(request, False)
            return
        then = [self._successor(each) for each in successors]
        done = self.broker.work.settle(
            consumer, token, time.monotonic(), OutcomeKind(kind), payload, size, detail, then
        )
        self._ended(client, number, consumer)
        if request:
            self._claim(client, consumer.queue.spec.durable, p.REPLY, request, done)

    def _successor(self, values: Any) -> tuple[Publication, int]:
        match values:
            case [str() as queue, bytes() as payload, dict() as options]:
                size = self._check_payload(payload)
                try:
                    return Publication(queue, payload, **options), size  # type: ignore[arg-type]  # the owner's payload
                except TypeError:
                    pass
        raise ProtocolError("expected a successor")

    def _reject(self, client: _Client, request: int, number: int, token: int, *how: Any) -> None:
        requeue, delay, blame, exclude, reason, payload = how
        if payload is not None:
            self._check_payload(payload)
        consumer = client.consumers.get(number)
        if consumer is None:
            client.reply(request, False)
            return
        done = self.broker.work.reject(
            consumer,
            token,
            time.monotonic(),
            requeue=requeue,
            delay=delay,
            blame=blame,
            exclude=exclude,
            reason=reason,
            payload=payload,
        )
        self._ended(client, number, consumer)
        if request:
            self._claim(client, consumer.queue.spec.durable, p.REPLY, request, done)

    def _ended(self, client: _Client, number: int, consumer: Consumer) -> None:
        if consumer.closed and not consumer.held:
            client.consumers.pop(number, None)

    def _progress(self, client: _Client, number: int, token: int, payload: bytes) -> None:
        self._check_payload(payload)
        consumer = client.consumers.get(number)
        if consumer is not None:
            self.broker.work.progress(consumer, token, payload)

    def _subscribe(self, client: _Client, request: int, number: int, patterns: list[Any], last: bool) -> None:
        _check(number not in client.subscriptions, "a subscription has a number of its own")
        wanted = tuple(each for each in patterns if isinstance(each, str))
        _check(len(wanted) == len(patterns) > 0, "patterns are texts")
        client.subscriptions[number] = self.broker.intake.subscribe(client.member, wanted, number, last=last)
        client.reply(request)

    def _unsubscribe(self, client: _Client, number: int) -> None:
        subscription = client.subscriptions.pop(number, None)
        if subscription is not None:
            self.broker.peers.close(subscription)

    def _watch(self, client: _Client, request: int, task: bytes) -> None:
        number = p.id_number(task)
        watch = _Watch(request, True)
        found = self.broker.tasks.found.get(number)
        if found is not None:
            watching = [(found.peer, found.watch), *(() if found.extra is None else found.extra.watchers)]
            if any(peer is client.member and each == watch for peer, each in watching if each is not None):
                # It asks again, after its session was over.
                client.reply(request)
                return
            watch = _Watch(request, bool(found.flags & DURABLE))
        self.broker.intake.watch(client.member, number, watch, time.monotonic())
        client.reply(request)

    def _unwatch(self, client: _Client, request: int, task: bytes) -> None:
        number = p.id_number(task)
        found = self.broker.tasks.found.get(number)
        if found is None:
            return
        if isinstance(found.watch, _Watch) and found.peer is client.member and found.watch.request == request:
            found.watch = None
        elif found.extra is not None:
            found.extra.watchers = tuple(
                each for each in found.extra.watchers if each[0] is not client.member or each[1].request != request
            )

    # Calls by name

    def _call(self, client: _Client, request: int, name: str, arguments: list[Any]) -> None:
        call = _CALLS.get(name)
        if call is None:
            raise UsageError(f"this hub knows no {name!r}", "is it older than this client?")
        try:
            value = call(self, client, *arguments)
        except RedpollError:
            raise
        except (TypeError, ValueError, KeyError) as error:
            raise ProtocolError(f"the arguments of {name!r} are none: {error}") from error
        self._claim(client, bool(self.broker.out.writes), p.REPLY, request, value)

    def _declare(self, client: _Client, spec: dict[str, Any], update: bool) -> None:
        made = QueueSpec(**{**spec, "topics": tuple(spec.get("topics", ()))})
        self.broker.queues.declare(client.member, made, time.monotonic(), update=update)

    def _delete(self, client: _Client, queue: str, if_unused: bool) -> None:  # noqa: ARG002  # as for all
        found = self.broker.queues.get(queue)
        if not if_unused or not (found.consumers or found.count):
            self.broker.queues.delete(found, time.monotonic())

    def _queues(self, client: _Client) -> list[str]:  # noqa: ARG002
        return list(self.broker.queues.found)

    def _inspect(self, client: _Client, queue: str) -> dict[str, Any]:  # noqa: ARG002
        info = self.broker.admin.inspect(self.broker.queues.get(queue))
        values = {each.name: getattr(info, each.name) for each in dataclasses.fields(info)}
        values["spec"] = {each.name: getattr(info.spec, each.name) for each in dataclasses.fields(info.spec)}
        return {key: dict(value) if hasattr(value, "keys") else value for key, value in values.items()}

    def _cancel(self, client: _Client, task: bytes) -> str | None:  # noqa: ARG002
        return self.broker.work.cancel(p.id_number(task), time.monotonic())

    def _tell(self, client: _Client, task: bytes, payload: bytes) -> bool:  # noqa: ARG002
        self._check_payload(payload)
        return self.broker.work.tell(p.id_number(task), payload)

    def _lookup(self, client: _Client, task: bytes) -> dict[str, Any]:  # noqa: ARG002
        number = p.id_number(task)
        found = self.broker.work.find(number, time.monotonic())
        if isinstance(found, Task):
            return self._info(found)
        if found is None:
            raise (ResultExpired if self.broker.tasks.knows(number) else UnknownTask)(task_id(self._store.name, number))
        return {
            "id": task_id(self._store.name, number),
            "queue": found.queue,
            "state": "dead" if found.kind is OutcomeKind.DEAD else "done",
            "attempt": found.attempts + 1,
            "outcome": [int(found.kind), found.payload, found.detail],
            "history": list(found.history),
        }

    def _info(self, task: Task) -> dict[str, Any]:
        state = "ready"
        if task.state == DELAYED:
            state = "delayed"
        elif task.state in {TAKEN, ACCEPTED}:
            state = "taken"
        elif task.state > ACCEPTED:
            state = "dead"
        extra = task.extra
        return {
            "id": task_id(self._store.name, task.id),
            "queue": task.queue.name,
            "state": state,
            "attempt": task.attempts + 1,
            "cancelling": bool(task.flags & CANCEL),
            "payload": task.payload,
            "history": [] if extra is None else list(extra.history),
            "origin": task_id(self._store.name, extra.origin) if extra is not None and extra.origin else None,
        }

    def _browse(self, client: _Client, queue: str, state: Any, limit: int) -> list[dict[str, Any]]:  # noqa: ARG002
        return [self._info(each) for each in self.broker.admin.browse(self.broker.queues.get(queue), state, limit)]

    def _purge(self, client: _Client, queue: str, state: Any) -> int:  # noqa: ARG002
        return self.broker.admin.purge(self.broker.queues.get(queue), state, time.monotonic())

    def _move(self, client: _Client, source: str, target: str, limit: int | None) -> int:  # noqa: ARG002
        queues = self.broker.queues
        return self.broker.admin.move(queues.get(source), queues.get(target), limit, time.monotonic())

    def _pause(self, client: _Client, queue: str, paused: bool) -> None:  # noqa: ARG002
        self.broker.queues.pause(self.broker.queues.get(queue), paused)

    def _redrive(self, client: _Client, queue: str, tasks: list[bytes] | None) -> list[bytes]:
        numbers = None if tasks is None else [p.id_number(each) for each in tasks]
        found = self.broker.queues.get(queue)
        made = self.broker.admin.redrive(client.member, found, numbers, time.monotonic())
        return [p.id_bytes(each.id) for each in made]

    def _observe(self, client: _Client, wanted: bool) -> None:
        client.observes = wanted
        self._look_for_observers()


_CALLS: Final[dict[str, Callable[..., Any]]] = {
    "declare": HubServer._declare,
    "delete": HubServer._delete,
    "queues": HubServer._queues,
    "inspect": HubServer._inspect,
    "cancel": HubServer._cancel,
    "tell": HubServer._tell,
    "lookup": HubServer._lookup,
    "browse": HubServer._browse,
    "purge": HubServer._purge,
    "move": HubServer._move,
    "pause": HubServer._pause,
    "redrive": HubServer._redrive,
    "observe": HubServer._observe,
}


def _ended(batch: Batch) -> None:
    """What could not be sent is lost with its session, whose end the node tells."""


def _check(holds: bool, rule: str) -> None:
    if not holds:
        raise ProtocolError(rule)


def _bits() -> Iterator[int]:
    while True:
        block = urandom(1024)
        yield from (int.from_bytes(block[at : at + 8]) for at in range(0, 1024, 8))

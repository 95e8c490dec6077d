"""A client of a hub: how it is linked, and what it keeps when the link is lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import warnings
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Self

from redpoll.address import Address
from redpoll.bus.awaitables import resolve, with_owner
from redpoll.bus.engines.handles import call
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.asking import fail_future
from redpoll.bus.engines.hub.handles import HubConsumer, HubDelivery
from redpoll.bus.engines.hub.life import life
from redpoll.bus.engines.hub.receiving import Receiving
from redpoll.bus.envelope import printable
from redpoll.bus.records import Capabilities
from redpoll.bus.state import EngineState, Status
from redpoll.config import Config
from redpoll.errors import (
    Closed,
    DecodeError,
    DialFailed,
    NotAuthorized,
    NotConfirmed,
    PeerLost,
    ProtocolError,
    RedpollError,
    StaleHub,
    UsageError,
)
from redpoll.node import Received
from redpoll.node.door import LayerNode, Peer, peer_at, peer_of
from redpoll.node.reports import Repeated

__all__ = ["HubMember"]

_log = logging.getLogger("redpoll.bus")

#: Seconds that a short loss of the link is not noticed by anybody.
_RESUME: Final = 0.5
#: Seconds between two tries to reach a hub, at first and at most.
_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0
#: Seconds that outcomes have to be confirmed when an engine is closed.
_GOODBYE: Final = 5.0


class _Node(LayerNode):
    patience = p.PATIENCE

    def __init__(self, engine: HubMember, config: Config) -> None:
        super().__init__(config)
        self._engine = weakref.ref(engine)

    def arrived(self, messages: list[Received[Any]]) -> list[Received[Any]]:
        """Take records of the hub."""
        engine = self._engine()
        if engine is not None:
            engine.arrived(messages)
        return messages

    def _session_began(self, peer: Peer, renewed: bool) -> None:  # noqa: ARG002
        engine = self._engine()
        if engine is not None:
            engine.began(peer)

    def _session_ended(self, peer: Peer, error: RedpollError) -> None:
        engine = self._engine()
        if engine is not None:
            engine.ended(peer, error)


class HubMember(Receiving):
    """An engine's membership of its hub: its name, its requests, its consumers and subscriptions.

    Args:
        hosts: Addresses of hubs, which are tried in turn.
        wait: Whether a hub that is not there is waited for, in the background.
        connect_timeout: Seconds that starting may take, where it does not wait.
        token: The token that it shows; "" is none.
        config: Options of its node: TLS.
    """

    def __init__(
        self,
        hosts: Iterable[Address],
        *,
        wait: bool = False,
        connect_timeout: float = 5.0,
        token: str = "",
        config: Config | None = None,
    ) -> None:
        super().__init__(wait)
        self._hosts = tuple(hosts)
        self._wait = wait
        self._connect_timeout = connect_timeout
        self._token = token
        self.capabilities = Capabilities(engine="redpoll", confirm="disk", results="stored", max_body=16 * 2**20)
        self.max_body = self.capabilities.max_body
        self.status = Status()
        self._epoch = 0
        self._name = os.urandom(16).hex()
        given = Config() if config is None else config
        options = {"listen": False, "resume": _RESUME, "serializer": "raw"}
        self._config = Config.from_options(given, options)
        self._node = _Node(self, self._config)
        # Consumers that take one task.
        self._takes: set[HubConsumer] = set()
        self._unreadable = Repeated(_log_unreadable)
        # The last question of the hub what is begun; and the last one after which it was told that the loop runs.
        self._question = self._resumed = 0
        self._resuming = False
        # Peers that greeted as hubs over the sessions that they have: they may learn the token.
        self._hubs: set[Peer] = set()
        # When the hub was last heard, if its link is lost.
        self._heard = 0.0
        self._link: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[None]
        self._lost: asyncio.Future[RedpollError]
        self._welcome: asyncio.Future[None]
        self._drained: asyncio.Future[None] | None = None
        # Until when outcomes have time to be confirmed as it closes.
        self._until = 0.0

    def __del__(self) -> None:
        """Warn of one that was not closed, and release what it has: the loop's sockets, and its signs of life."""
        if getattr(self, "closed", True) or self.forked:
            return
        warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
        lifeless = life.remove(self._name)
        try:
            self.loop.call_soon_threadsafe(_release, self._node, lifeless)
        except RuntimeError:  # the loop is closed, and its sockets with it
            if asyncio.iscoroutine(lifeless):
                lifeless.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} redpoll://{','.join(map(str, self._hosts))} {self.status.state.value}>"

    @property
    def where(self) -> str:
        """The hub and its state, for errors."""
        reason = self._last_error or self.status.reason
        return f"the hub at {', '.join(map(str, self._hosts))} ({self.status.state.value}{f': {reason}' if reason else ''})"

    @property
    def rejection(self) -> RedpollError | None:
        """The error of operations that begin now, or None: closed, or not let in by the hub at the last try."""
        refusal = self.refusal()
        return self._last_error if refusal is None and isinstance(self._last_error, NotAuthorized) else refusal

    def _check(self) -> None:
        refusal = self.rejection
        if refusal is not None:
            raise refusal

    # Life

    async def __aenter__(self) -> Self:
        """Start on the running loop, and connect."""
        if self.status.state is not EngineState.CONNECTING or self._link is not None:
            raise UsageError("this engine was started before", "make another one")
        self.loop = asyncio.get_running_loop()
        await self._node.start()
        self.closed = False
        self._ready = ready = self.loop.create_future()
        self._link = with_owner(self.loop.create_task(self._keep_linked(ready)))
        if self._wait:
            return self
        try:
            async with asyncio.timeout(self._connect_timeout):
                await asyncio.shield(ready)
        except TimeoutError:
            error, silence = self._last_error, self._silence
            await self._end()
            if isinstance(error, DialFailed):
                raise error from None
            failed = DialFailed(self._hosts[0], silence if error is None else str(error))
            failed.hint = "redpoll hub --data DIR starts one" if error is None else None
            raise failed from None
        except BaseException:
            await self._end()
            raise
        return self

    def _stop_all(self) -> None:
        """End all consumers and subscriptions."""
        for subscription in list(self._subscriptions.values()):
            subscription.stop()
        for consumer in list(self._consumers.values()):
            consumer.stop()

    async def _drain(self, seconds: float | None) -> None:
        self._stop_all()
        if seconds == 0:
            return
        until = None if seconds is None else self.loop.time() + seconds
        if self._open_deliveries():
            self._drained = self.loop.create_future()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._drained
        self._until = self.loop.time() + _GOODBYE if until is None else until

    def _unconfirmed(self, *kinds: int) -> list[asyncio.Future[Any]]:
        """Return the ends of deliveries that the hub has not confirmed."""
        requests = self._requests.values()
        return [each.future for each in requests if each.record[0] in kinds and not each.future.done()]

    def _open_deliveries(self) -> list[HubDelivery]:
        return [each for consumer in self._consumers.values() for each in consumer.deliveries.values()]

    def look_drained(self) -> None:
        """Settle `_drained` if no task is held any more."""
        if self._drained is not None and not self._drained.done() and not self._open_deliveries():
            self._drained.set_result(None)

    async def _end(self) -> None:
        """Say goodbye, once outcomes are confirmed; settle what is open. Cancelled, it does the rest without waiting."""
        try:
            seconds = _GOODBYE if self.linked else 0.0
            if self._unconfirmed(p.DONE):
                # The hub may be gone, seen or not, and return: it would have the tasks done again.
                seconds = max(seconds, self._until - self.loop.time())
            if seconds and (ends := self._unconfirmed(p.DONE, p.REJECT)):
                await asyncio.wait(ends, timeout=seconds)
        finally:
            self.unrecorded = len(self._unconfirmed(p.DONE))
            self._settle_all()
            if self.linked:
                self.say(p.GOODBYE)
                self._flush()
            self.linked = False
            if self._link is not None:
                self._link.cancel()
            released = _release(self._node, life.remove(self._name), 0.5)
            try:
                await asyncio.shield(released)
                if self._link is not None:
                    await asyncio.wait([self._link])
            finally:
                self.status.change(EngineState.CLOSED)

    def _settle_all(self) -> None:
        # Those that began while it drained.
        self._stop_all()
        self.closed = True
        self._unreadable.close()
        if self._timer is not None:
            self._timer.cancel()
        error = Closed("bus")
        fail_future(self._ready, error)
        for consumer in list(self._consumers.values()):
            consumer.unlinked()
            for delivery in list(consumer.deliveries.values()):
                delivery.lose()
        self._lose_watchers(error)
        requests, self._requests = self._requests, {}
        for request in requests.values():
            self._give_up(request, error)

    def abort(self) -> None:
        """Go without goodbye, as a process that is killed. For tests."""
        if self.refusal() is None:
            self.linked = False
            if self._link is not None:
                self._link.cancel()
            if self._peer is not None:
                self._node.cut(self._peer, Closed("bus"))
            self._settle_all()
            self.status.change(EngineState.CLOSED, "aborted")
            _release(self._node, life.remove(self._name))

    # The link

    _last_error: RedpollError | None = None

    async def _keep_linked(self, ready: asyncio.Future[None]) -> None:
        """Be linked to one of the hubs, always."""
        pause = _PAUSE
        for address in itertools.cycle(self._hosts):
            self._lost = self.loop.create_future()
            self._welcome = self.loop.create_future()
            try:
                await self._node.ready(address, timeout=self._connect_timeout)
                self._peer = peer_at(self._node, address)
                if self._peer in self._hubs:
                    self._say_hello()
                async with asyncio.timeout(self._connect_timeout):
                    await self._welcomed_or_lost()
            except TimeoutError as error:
                self._failed(error if isinstance(error, RedpollError) else DialFailed(address, self._silence))
            except RedpollError as error:
                self._failed(error)
                if isinstance(error, NotAuthorized) and not self._wait:
                    fail_future(ready, error)
            else:
                pause = _PAUSE
                self._last_error = None
                self._rejoin()
                self.status.change(EngineState.READY)
                resolve(ready)
                why = await self._lost
                self._unlinked(why)
                self.status.change(EngineState.RECONNECTING, str(why))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  # no secret
            pause = min(pause * 2, _LONGEST_PAUSE)

    @property
    def _silence(self) -> str:
        """The reason for which there is no answer, as far as is known."""
        strange = self._peer is not None and self._peer not in self._hubs
        return "the node at that address did not greet as a hub" if strange else "no hub answered in time"

    def _say_hello(self) -> None:
        """Show the token to the hub, which has greeted: over this session, which ends where another node listens."""
        if self._peer is not None:
            ((hello, _),) = p.pack([[p.HELLO, p.VERSION, self._name, self._token]])
            self._node.post(self._peer, hello)

    async def _welcomed_or_lost(self) -> None:
        either: list[asyncio.Future[Any]] = [self._lost, self._welcome]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._welcome.done():
            raise self._lost.result()
        self._welcome.result()

    def _failed(self, error: RedpollError) -> None:
        self._last_error = error
        self._peer = None
        if isinstance(error, StaleHub | NotAuthorized):
            self.status.change(EngineState.DEGRADED, str(error))
        if isinstance(error, NotAuthorized):
            self._reject_all(error)

    def _reject_all(self, error: NotAuthorized) -> None:
        """Settle tasks and requests: the hub rejects this client, and gave its tasks to others. Consumers are kept."""
        for consumer in list(self._consumers.values()):
            for delivery in list(consumer.deliveries.values()):
                delivery.lose()
        self._lose_watchers(error)
        requests, self._requests = self._requests, {}
        for request in requests.values():
            self._give_up(request, NotConfirmed(None, f"the hub is gone: {error}") if request.sent else error)
        self._out.clear()
        self._waiting_bytes = 0
        for consumer in tuple(self._takes):
            consumer.stop(error)

    def began(self, peer: Peer) -> None:
        """For the node: a session, over which nothing came yet."""
        self._hubs.discard(peer)

    def ended(self, peer: Peer, error: RedpollError) -> None:
        """For the node: it is over."""
        self._hubs.discard(peer)
        if peer is self._peer:
            self._lose_hub(error, peer.last_heard)

    def _lose_hub(self, error: RedpollError, heard: float) -> None:
        self._peer = None
        self.linked = False
        self._heard = heard
        if not self._lost.done():
            self._lost.set_result(error)

    def _greet(self, known: bool) -> None:
        """Say hello: again if the hub has given up this client, whose link was there again in what it takes for good time."""
        if not self.linked:
            self._say_hello()
        elif not known and self._peer is not None:
            error = PeerLost(self._peer.address, "the hub has ended the session of this client")
            self._lose_hub(error, self.loop.time())

    def _welcomed(self, version: int, store: str, epoch: int, confirm: Any, max_body: int) -> None:
        if self._welcome.done():
            return
        if version != p.VERSION:
            self._welcome.set_exception(ProtocolError(f"the hub speaks version {version} of the bus"))
            return
        if store == self.store and epoch < self._epoch:
            self._welcome.set_exception(StaleHub(store, epoch, self._epoch))
            return
        self.store, self._epoch = store, epoch
        self.max_body = max_body
        self.capabilities = Capabilities(engine="redpoll", confirm=confirm, results="stored", max_body=max_body)
        self._welcome.set_result(None)

    def _unlinked(self, error: RedpollError) -> None:
        """Keep what may be asked for again, and settle the rest."""
        self._inputs.clear()
        for consumer in self._consumers.values():
            consumer.unlinked()
        waiting = {id(record) for record in self._out}
        self._out.clear()
        self._waiting_bytes = 0
        for number, request in list(self._requests.items()):
            # A request that the hub refused to read is not repeated: it would be refused without end.
            again = request.again and not isinstance(error, ProtocolError)
            # A hub that is gone hands nothing to a consumer: its close is not said again.
            if request.record[0] != p.CLOSE and (id(request.record) in waiting or not request.sent or again):
                self._limit_absence(number, request, self._heard)
                continue
            del self._requests[number]
            if request.anew:
                request.future.cancel()
                continue
            self._give_up(request, NotConfirmed(None, f"the hub is gone: {error}"))
        asked = {each.record[2] for each in self._requests.values() if each.record[0] == p.TAKE}
        for consumer in tuple(self._takes):
            if consumer.at_once and consumer.number not in asked and not consumer.deliveries:
                # Its task was lost with the link, and goes back; another one would be waited for.
                consumer.stop(NotConfirmed(None, f"the hub is gone: {error}"))

    def _rejoin(self) -> None:
        """Ask for everything that this engine has: consumers, what they hold, subscriptions, watchers, answers."""
        self.linked = True
        if self._consumers:
            self._show_life()
        fresh, self._out = list(self._out), deque()
        # Requests without an answer: these are repeated, once.
        open_ = {
            tuple(each.record[0:3:2]): number
            for number, each in self._requests.items()
            if each.record[0] in _NUMBERED and len(each.record) > 2
        }
        for consumer in list(self._consumers.values()):
            if (p.TAKE, consumer.number) in open_:
                continue
            asked = open_.get((p.CONSUME, consumer.number)) or self._ask_consumer(consumer)
            record = [consumer.number, consumer.queue, 0, consumer.accept, consumer.exclusive, True]
            self.say(p.CONSUME, asked, *record)
            for delivery in list(consumer.deliveries.values()):
                self.say(
                    p.RECLAIM, self._ask_reclaim(delivery), consumer.number, p.id_bytes(delivery.number), delivery.token
                )
        gone = self._reclaim_ended()
        self.say(p.SETTLE)
        # Not before: what closed consumers hold then goes back.
        for number in gone:
            self.say(p.CLOSE, 0, number)
        for consumer in list(self._consumers.values()):
            if consumer.closed:
                self.say(p.CLOSE, 0, consumer.number)
            elif consumer.credit:
                # The tasks that it reclaimed have taken their part of this already.
                self.say(p.CREDIT, consumer.number, consumer.credit)
        for subscription in self._subscriptions.values():
            asked = open_.get((p.SUBSCRIBE, subscription.number), 0)
            last = bool(asked) and self._requests[asked].record[-1]
            self.say(p.SUBSCRIBE, asked, subscription.number, list(subscription.patterns), last)
        for number, (_, task, _) in list(self._watchers.items()):
            if task:
                self.say(p.WATCH, number, p.id_bytes(task))
        if self._observers:
            self.say(p.CALL, 0, "observe", [True])
        for record in fresh:
            if record[0] not in _REJOINED and record[0] not in _OF_THE_LINK:
                self._out.append(record)
        known = {id(record) for record in self._out}
        for number, request in list(self._requests.items()):
            if number not in self._requests or id(request.record) in known:
                continue
            kind = request.record[0]
            if kind not in _REJOINED:
                self._push(request)
            elif kind in _NUMBERED and not request.anew:
                known_numbers = self._subscriptions if kind == p.SUBSCRIBE else self._consumers
                if request.record[2] not in known_numbers:
                    # It was closed before the hub had answered.
                    del self._requests[number]
                    resolve(request.future)
        self._schedule()

    def _show_life(self) -> None:
        """Tell the hub that this process lives, though its loop may be busy: it may hold tasks from now on."""
        if self._peer is not None and self._peer.address is not None:
            life.add(self._name, self._token, self._peer.address, self._config, self.suspend)

    @property
    def suspended(self) -> bool:
        """True if nothing is to be begun now: the hub was told so while the loop was blocked."""
        return self._question != self._resumed

    def suspend(self, question: int) -> list[list[int]]:
        """Begin nothing more, until the loop runs and the hub has been told so. For the thread of the signs of life.

        Returns:
            The number of each consumer, with the token up to which its tasks were begun.
        """
        # In this order: the loop notes what it begins first, and looks at this then.
        self._question = question
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._resume)
        return [[each.number, each.begun] for each in list(self._consumers.values())]

    def _resume(self) -> None:
        """Give back what is not begun, and tell the hub that the loop runs; what comes before the answer goes back too."""
        if self._resuming or not self.suspended or self.refusal() is not None:
            return
        self._resuming = True
        question = self._question
        for consumer in list(self._consumers.values()):
            consumer.withdraw()

        def resumed(_: object) -> None:
            self._resumed = question
            self._resuming = False
            for consumer in self._consumers.values():
                consumer.tell_ahead()
            # There may have been another one meanwhile.
            self._resume()

        self._ask(p.RESUME, again=True).add_done_callback(resumed)

    def _ask_consumer(self, consumer: HubConsumer) -> int:
        def answer(future: asyncio.Future[Any]) -> None:
            if not future.cancelled() and future.exception() is not None and not self.closed:
                error = future.exception()
                consumer.stop(error if isinstance(error, Exception) else None)

        return self._expect(answer, p.CONSUME)

    def _ask_reclaim(self, delivery: HubDelivery) -> int:
        def answer(future: asyncio.Future[Any]) -> None:
            if (
                not self.closed
                and not future.cancelled()
                and (future.exception() is not None or future.result() != "held")
            ):
                delivery.lose()

        return self._expect(answer, p.RECLAIM)

    def _reclaim_ended(self) -> set[int]:
        """Ask for deliveries that have ended here, and whose end the hub may not have.

        Returns:
            The numbers of the consumers that were made for that alone.
        """
        gone: set[int] = set()
        for request in list(self._requests.values()):
            if request.ended is None:
                continue
            _, _, number, token, *_ = request.record
            queue, task = request.ended
            if number not in self._consumers and number not in gone:
                gone.add(number)
                self.say(p.CONSUME, 0, number, queue, 0, False, False, False)
            self.say(p.RECLAIM, 0, number, p.id_bytes(task), token)
        return gone

    # Receiving

    def arrived(self, messages: list[Received[Any]]) -> None:
        """For the node: records of a hub; those of another one than this client is at, or dials, are passed over."""
        peer = peer_of(messages[0])
        try:
            for message in messages:
                for record in p.unpack(message.data, p.FROM_HUB):
                    if record[0] == p.GREET:
                        self._hubs.add(peer)
                    if peer is not self._peer:
                        continue
                    try:
                        _TAKE[record[0]](self, *record[1:])
                    except DecodeError as error:
                        self._unread(record, error)
        except ProtocolError as error:
            _log.warning("the hub violated the protocol: %s", error)
            self._node.cut(peer, error)

    def _unread(self, record: list[Any], error: DecodeError) -> None:
        """An envelope cannot be read, which the hub does not look into. What is beside it continues."""
        self._unreadable.note(error)
        if record[0] == p.DELIVER:
            # Nobody could read it: a dead letter.
            reason = f"its envelope cannot be read: {error}"
            self.say(p.REJECT, 0, record[1], record[2], False, 0.0, False, False, printable(reason), None)
            consumer = self._consumers.get(record[1])
            if consumer in self._takes:
                # It is given no other one.
                consumer.stop(error)
        elif record[0] == p.OUTCOME:
            watcher = self._watcher(record[1])
            if watcher is not None:
                call("a watcher", watcher.gone, NotConfirmed(None, f"its outcome cannot be read: {error}"))

    def _dismissed(self, error: RedpollError) -> None:
        """The hub does not know this client, or no more: it says hello again."""
        self.linked = False
        self._heard = self.loop.time()
        fail_future(self._welcome, error)
        if not self._lost.done():
            self._lost.set_result(error)


#: Requests whose records name a consumer or a subscription.
_NUMBERED: Final = frozenset({p.TAKE, p.CONSUME, p.SUBSCRIBE})
#: Of these, what is asked for anew where it is asked for after the link was lost.
_REJOINED: Final = frozenset({p.CONSUME, p.RECLAIM, p.SUBSCRIBE, p.WATCH})
#: Of these, what is not said any more once the link was lost.
_OF_THE_LINK: Final = frozenset({p.CREDIT, p.AHEAD, p.CLOSE, p.UNSUBSCRIBE, p.PROGRESS})

_TAKE: Final[Mapping[int, Callable[..., None]]] = {
    p.GREET: HubMember._greet,
    p.WELCOME: HubMember._welcomed,
    p.REPLY: HubMember._replied,
    p.FAILED: HubMember._refused,
    p.DELIVER: HubMember._delivered,
    p.INPUTS: HubMember._given,
    p.OUTCOME: HubMember._ended_task,
    p.PROGRESSED: HubMember._progressed,
    p.CANCELLED: HubMember._cancelled,
    p.TOLD: HubMember._told,
    p.STOPPED: HubMember._stopped,
    p.EVENTS: HubMember._events,
    p.NOTE: HubMember._noted,
}


def _log_unreadable(count: int, last: DecodeError) -> None:
    times = "" if count == 1 else f" ({count:,} times since the last warning)"
    _log.warning("a message of another client cannot be decoded%s: %s", times, last)


_released: set[asyncio.Task[None]] = set()
"""Tasks that release what members had. Nobody may wait for them: a member was dropped, or closing it was cancelled."""


def _release(node: LayerNode, lifeless: Awaitable[None], seconds: float = 0.0) -> asyncio.Task[None]:
    async def release() -> None:
        try:
            await node.stop(seconds)
        finally:
            await lifeless

    task = asyncio.get_running_loop().create_task(release())
    _released.add(task)
    task.add_done_callback(_released.discard)
    return task

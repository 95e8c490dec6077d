"""The bindings of a wiring: names are resolved, exchanges bound to queues, and bindings restored when an owner returns."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from redpoll.errors import Closed, NameTaken, RedpollError, UnknownName, WiringError
from redpoll.wiring.binding import Binding
from redpoll.wiring.board import KEPT, Board
from redpoll.wiring.connection import Answer, Connection, Subscription
from redpoll.wiring.directory.entries import Kind
from redpoll.wiring.names import Scope, check_name
from redpoll.wiring.protocol import check_answer, field
from redpoll.wiring.resolver import Resolver
from redpoll.wiring.subscribing import attach, leave
from redpoll.wiring.waiting import Turns

__all__ = ["AT_A_TIME", "FIRST_PAUSE", "LAST_PAUSE", "MAX_SUBSCRIPTIONS", "Bindings"]

#: Seconds between two attempts to establish a binding: the first pause, and the longest.
FIRST_PAUSE = 0.1
LAST_PAUSE = 5.0

#: Maximum queues that one other wiring may have bound to exchanges of this one.
MAX_SUBSCRIPTIONS = 10_000

#: Maximum bindings begun or retried in one turn of the loop.
AT_A_TIME = 100

#: Seconds for the other end to answer.
_PATIENCE = 10.0


class Bindings:
    """The bindings of one wiring.

    Args:
        board: The exchanges, queues and connections of the wiring.
        resolver: Resolves and watches names.
    """

    def __init__(self, board: Board, resolver: Resolver) -> None:
        self._board = board
        self._resolver = resolver
        self.bindings: dict[tuple[str, str], Binding] = {}
        #: The bindings that are about a name.
        self._about: dict[tuple[Kind, str], dict[Binding, None]] = {}
        #: Bindings whose names are not watched, since the maximum of watches is reached.
        self._unwatched: dict[Binding, None] = {}
        #: Lost connections whose requests are kept for a time.
        self._lost: dict[Connection, asyncio.TimerHandle] = {}
        self._closed = False
        self._next_number = count(1).__next__
        self._turns = Turns(board.loop, AT_A_TIME)
        board.lost = self._connection_lost
        board.unwired = self._unwired
        board.opened = self._opened
        board.words.update({"bind": self._asked, "unbind": self._asked_to_end, "unwired": self._told})

    # For the wiring

    async def bind(self, exchange: str, queue: str, wait: float | None, patience: float) -> Binding:
        """Bind an exchange to a queue; done when messages flow.

        Args:
            exchange: The name of the exchange.
            queue: The name of the queue.
            wait: Seconds for the names and their owners to appear; None is no limit, 0 looks them up once.
            patience: Seconds for one lookup.
        """
        if self._closed:
            raise Closed("wiring")
        await self._turns.wait()
        if self._closed:
            raise Closed("wiring")
        key = exchange, queue
        binding = self.bindings.get(key)
        if binding is None:
            binding = Binding(exchange, queue, self.unbind)
            self._watch_names(binding)
            self.bindings[key] = binding
            for about in _names(binding):
                self._about.setdefault(about, {})[binding] = None
        binding.callers += 1
        try:
            await self._first(binding, wait, patience)
        except BaseException:
            if binding.state == "connecting" and binding.callers == 1:
                await self.unbind(binding)
            raise
        finally:
            binding.callers -= 1
        return binding

    def _watch_names(self, binding: Binding) -> None:
        """Watch the names of a binding; at the limit of watches it retries by itself until others are cancelled."""
        try:
            for kind, name in _names(binding):
                binding.watches += self._resolver.watch(kind, name, partial(self._moved, binding, kind))
        except BaseException as error:
            self._end_watches(binding)
            if not isinstance(error, WiringError):
                raise
            self._unwatched[binding] = None

    @staticmethod
    def _end_watches(binding: Binding) -> None:
        watches, binding.watches = binding.watches, []
        for end in watches:
            end()

    async def _first(self, binding: Binding, wait: float | None, patience: float) -> None:
        try:
            async with asyncio.timeout(patience if wait == 0 else wait):
                while binding.connection is None:
                    if binding.ended:
                        raise Closed("binding")
                    if binding.task is None:
                        self._begin(binding)
                    await binding.attempts.wait(lambda: None)
                    if wait == 0 and binding.last_error is not None:
                        raise binding.last_error
        except TimeoutError:
            last_error = binding.last_error or self._resolver.last_error(binding.exchange, binding.queue)
            if last_error is None:
                raise WiringError(
                    f"{binding.exchange!r} was not wired to {binding.queue!r} within {wait or patience:g} s"
                ) from None
            if isinstance(last_error, UnknownName):
                raise UnknownName(last_error.kind, last_error.name, wait or 0.0, last_error.hint) from None
            raise last_error from None

    def _moved(self, binding: Binding, kind: Kind, identity: bytes | None) -> None:
        """Handle a change of the owner of one of its names: retry at once, or leave the former owner."""
        binding.retry_now.set()
        connection = binding.connection
        if connection is None or identity is None or connection.sees_process:
            return
        is_other_end = (kind == "queue") is (binding.subscription is not None)
        if identity != (connection.identity if is_other_end else binding.queue_owner or identity):
            # The former owner may still be there without the name.
            self._down(binding, connection, UnknownName(kind, getattr(binding, kind)))

    def retry(self, kind: Kind, name: str) -> None:
        """Retry bindings of a name that this wiring now has."""
        for binding in self._about.get((kind, name), ()):
            binding.retry_now.set()

    async def unbind(self, binding: Binding) -> None:
        """End a binding of this wiring."""
        if binding.ended:
            return
        binding.ended = True
        if self.bindings.get((binding.exchange, binding.queue)) is binding:
            del self.bindings[binding.exchange, binding.queue]
            for about in _names(binding):
                del self._about[about][binding]
                if not self._about[about]:
                    del self._about[about]
        self._end_watches(binding)
        self._unwatched.pop(binding, None)
        if self._unwatched:
            other = next(iter(self._unwatched))
            del self._unwatched[other]
            with suppress(RedpollError):  # the wiring may be closing
                self._watch_names(other)
        task, binding.task = binding.task, None
        try:
            if task is not None and task is not asyncio.current_task():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        finally:
            # Also where this is cancelled: nobody could end it any more, and its exchange would keep messages for it.
            connection, binding.connection = binding.connection, None
            subscription, binding.subscription = binding.subscription, None
            binding.attempts.wake_all()
            if subscription is not None:
                leave(subscription)
            asked = binding.asked if binding.asked is not None and binding.asked.up else None
            if asked is not None and asked is not connection:
                # The owner of the exchange may keep what it was up with before, or what a failed attempt requested.
                asked.tell(_unbind(binding))
        if asked is not None and asked is connection:
            with suppress(RedpollError):  # the owner ends it as soon as this wiring is gone
                await asked.request(_unbind(binding), _PATIENCE)

    # Establishing a binding

    def _begin(self, binding: Binding) -> None:
        # Not eager: the caller waits for the end of the attempt.
        binding.task = asyncio.Task(self._wire_again(binding), loop=self._board.loop)

    async def _wire_again(self, binding: Binding) -> None:
        """Retry until the binding is up."""
        pause = FIRST_PAUSE
        try:
            while not binding.ended:
                binding.attempt(self._next_number())
                await self._turns.wait()
                try:
                    connection = await self._wire(binding)
                except RedpollError as error:
                    binding.last_error = error
                    if binding.state == "lost":
                        self._board.events.tell("pipe_lost", binding, error)
                else:
                    if connection.up and binding.undone is None:
                        binding.wired(connection)
                        self._board.events.tell("pipe_up", binding)
                        return
                    binding.last_error = binding.undone or binding.last_error
                    if binding.subscription is None and connection.up:
                        # The owner may have it nevertheless, and nobody could end it there.
                        connection.tell(_unbind(binding))
                finally:
                    binding.attempts.wake_all()
                try:
                    async with asyncio.timeout(pause * random.uniform(0.5, 1.0)):  # noqa: S311
                        await binding.retry_now.wait()
                except TimeoutError:
                    pause = min(2 * pause, LAST_PAUSE)
        finally:
            binding.task = None
            binding.attempts.wake_all()

    async def _wire(self, binding: Binding) -> Connection:
        board = self._board
        exchange = board.exchanges.get(binding.exchange)
        if exchange is not None:
            connection = await self._resolver.find("queue", binding.queue)
            subscription = binding.subscription
            if subscription is None or subscription.exchange is not exchange:
                subscription = binding.subscription = Subscription(exchange, binding.queue)
            subscription.is_global = self._is_global(connection, binding.queue)
            async with connection.turn:
                return await attach(subscription, connection, _PATIENCE)
        binding.subscription = None
        connection = await self._resolver.find("exchange", binding.exchange)
        queue = board.queues.get(binding.queue)
        key = binding.exchange, binding.queue
        names = {"exchange": binding.exchange, "queue": binding.queue}
        number = {"attempt": binding.number}
        here = {"here": queue is not None, "is_global": queue is not None and queue.scope is Scope.GLOBAL}
        board.expected[key] += 1
        try:
            async with connection.turn:
                binding.asked = connection
                answer = await connection.request({"word": "bind", **names, **number, **here}, _PATIENCE)
            binding.queue_owner = field(answer, "owner", bytes) if queue is None else None
        except RedpollError as error:
            if not isinstance(error, WiringError) and connection.up:
                # The owner may have carried it out nevertheless.
                connection.tell(_unbind(binding))
            raise
        finally:
            board.expected[key] -= 1
            if not board.expected[key]:
                del board.expected[key]
        return connection

    def _is_global(self, connection: Connection, name: str) -> bool:
        """Return True if the queue of that name at the other end of a connection is GLOBAL."""
        queue = self._board.queues.get(name) if connection is self._board.local else None
        return not connection.sees_process if queue is None else queue.scope is Scope.GLOBAL

    def _down(self, binding: Binding, connection: Connection, error: RedpollError) -> None:
        """Mark a binding as lost, as its other end is gone, and retry."""
        if binding.connection is not connection or binding.ended:
            return
        binding.connection = None
        binding.last_error = error
        self._board.events.tell("pipe_lost", binding, binding.last_error)
        if binding.task is None and not self._closed:
            self._begin(binding)

    def _undo(self, binding: Binding, connection: Connection | None, error: RedpollError) -> None:
        """Mark a binding as lost over a connection; one that is being established is not up when that is done."""
        if binding.connection is None:
            binding.undone = error
        elif connection is not None:
            self._down(binding, connection, error)

    def _unwired(self, kind: Kind, exchange: str, queue: str) -> None:
        binding = self.bindings.get((exchange, queue))
        if binding is not None:
            self._undo(binding, binding.connection, UnknownName(kind, getattr(binding, kind)))

    def _opened(self, exchange: str, queue: str) -> None:
        """Note that a queue of this wiring has the pipe that is being established: what was lost is an earlier one."""
        binding = self.bindings.get((exchange, queue))
        if binding is not None:
            binding.undone = None

    def _told(self, connection: Connection, word: dict[str, Any]) -> Answer:
        """Retry a binding: the owner of its exchange has lost the other wiring's queue, or this wiring's request."""
        binding = self.bindings.get((field(word, "exchange", str), field(word, "queue", str)))
        number = word.get("attempt")
        if binding is None or number not in (None, 0, binding.number):
            # It was requested again since: the answer to that says what is bound.
            return {}
        try:
            check_answer(word)
        except RedpollError as error:
            carrier = binding.connection or binding.asked
            # The other wiring may see one connection where this one has two.
            if carrier is not None and (carrier is connection or carrier.leads_where(connection)):
                self._undo(binding, carrier, error)
        return {}

    # Requests of other wirings

    async def _asked(self, connection: Connection, word: dict[str, Any]) -> Answer:
        """Bind an exchange of this wiring at the request of another wiring, which tries again if the pipe is lost."""
        board = self._board
        name = check_name("exchange", word.get("exchange"))
        queue = check_name("queue", word.get("queue"))
        exchange = board.visible_exchange(connection, name)
        here = field(word, "here", bool)
        is_global = here and field(word, "is_global", bool)
        if not here and queue in board.queues:
            board.visible_queue(connection, queue, name)
        key = name, queue
        holder = next((each for each in connection.same if key in each.subscriptions), connection)
        requests = holder.subscriptions
        if key not in requests and len(requests) >= MAX_SUBSCRIPTIONS:
            raise WiringError(f"too many queues of this wiring are bound: the limit is {MAX_SUBSCRIPTIONS:,}")
        subscription = requests.get(key)
        new = subscription is None or subscription.exchange is not exchange
        if subscription is None or new:
            subscription = requests[key] = Subscription(exchange, queue)
        if type(number := word.get("attempt")) is int:
            subscription.attempt = max(subscription.attempt, number)
        try:
            target = connection
            if not here:
                # A wiring of another process cannot bind, by way of this one, a name that it does not see itself.
                target = await self._resolver.find("queue", queue, is_global=not connection.sees_process)
                is_global = self._is_global(target, queue)
            former = await self._take_back(target, name, queue) if new else None
            if former is not None and former.exchange is exchange:
                if requests.get(key) is subscription:
                    requests[key] = former
                former.attempt = subscription.attempt
                subscription = former
            subscription.is_global = is_global
            subscription.asker = holder
            # Without a turn: the other wiring took one for its request.
            await attach(subscription, target, _PATIENCE)
        except BaseException:
            if subscription.pipe is None and requests.get(key) is subscription:
                del requests[key]
            raise
        if requests.get(key) is not subscription:
            # The request was withdrawn meanwhile.
            leave(subscription)
            raise Closed("binding")
        return {"owner": target.identity}

    async def _take_back(self, connection: Connection, exchange: str, queue: str) -> Subscription | None:
        """Return the subscription that a lost connection left, by its identity or the queue's name."""
        key = exchange, queue
        for lost in list(self._lost):
            subscription = lost.subscriptions.get(key)
            if subscription is None:
                continue
            if lost.identity != connection.identity:
                if subscription.up or not subscription.is_global:
                    continue
                try:
                    await self._board.check_heir(connection, "queue", queue, live=False)
                except NameTaken:
                    continue
            if lost.subscriptions.get(key) is subscription:
                return lost.subscriptions.pop(key)
        return None

    def _asked_to_end(self, connection: Connection, word: dict[str, Any]) -> Answer:
        """End what another wiring requested, unless it requested that again since: what it says over two links may cross."""
        key = field(word, "exchange", str), field(word, "queue", str)
        number = word.get("attempt")
        for each in (*connection.same, *filter(connection.leads_where, self._lost)):
            subscription = each.subscriptions.get(key)
            if subscription is not None and (type(number) is not int or subscription.attempt <= number):
                del each.subscriptions[key]
                leave(subscription)
        return {}

    def _connection_lost(self, connection: Connection, error: RedpollError, final: bool) -> None:
        """Keep the requests of a lost connection for a time, or end them if the other wiring closed; retry own bindings."""
        for pipe in connection.pipes.values():
            for subscription in pipe.bound:
                subscription.tell_asker(connection, error)
        known = self._board.connections.get(connection.identity, ())
        later = [each.subscriptions for each in known if each.leads_where(connection, any_run=True)]
        again = {key for requested in later for key, subscription in requested.items() if subscription.up}
        for key in again.intersection(connection.subscriptions):
            # A later run of the other wiring has the same.
            leave(connection.subscriptions.pop(key))
        if final or self._closed:
            self._end_requests(connection)
        else:
            self._lost[connection] = self._board.loop.call_later(KEPT, self._end_requests, connection, error)
        for binding in list(self.bindings.values()):
            self._down(binding, connection, error)

    def _end_requests(self, connection: Connection, error: RedpollError | None = None) -> None:
        """End what another wiring requested over a connection; with an error, tell it, if it is there by another one."""
        self._lost.pop(connection, None)
        for subscription in connection.subscriptions.values():
            leave(subscription)
            if error is not None:
                subscription.tell_asker(None, error)
        connection.subscriptions.clear()

    async def close(self) -> None:
        """End all bindings."""
        self._closed = True
        for timer in self._lost.values():
            timer.cancel()
        self._lost.clear()
        # The other ends need no request: this wiring has said goodbye, and they may not answer.
        tasks = list(self._board.tasks)
        for task in tasks:
            task.cancel()
        for binding in self.bindings.values():
            binding.ended = True
            self._end_watches(binding)
            if binding.task is not None:
                binding.task.cancel()
                tasks.append(binding.task)
            binding.connection = None
            binding.attempts.wake_all()
        self.bindings.clear()
        self._about.clear()
        self._unwatched.clear()
        await asyncio.gather(*tasks, return_exceptions=True)


def _unbind(binding: Binding) -> dict[str, Any]:
    """Return the word that ends what the last attempt requested."""
    return {"word": "unbind", "exchange": binding.exchange, "queue": binding.queue, "attempt": binding.number}


def _names(binding: Binding) -> tuple[tuple[Kind, str], tuple[Kind, str]]:
    return ("exchange", binding.exchange), ("queue", binding.queue)

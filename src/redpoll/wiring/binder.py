"""The binder: resolves names, binds exchanges to queues, and restores bindings when an owner returns."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from redpoll.errors import Closed, NameTaken, RedpollError, UnknownName, WiringError
from redpoll.wiring.binding import Binding
from redpoll.wiring.board import KEPT, Board
from redpoll.wiring.connection import Answer, Join, Trunk
from redpoll.wiring.directory.entries import Kind
from redpoll.wiring.joining import attach, leave
from redpoll.wiring.names import Scope, check_name
from redpoll.wiring.protocol import check_answer, field, refusal
from redpoll.wiring.registry import Registry
from redpoll.wiring.waiting import Turns

__all__ = ["AT_A_TIME", "FIRST_PAUSE", "LAST_PAUSE", "MAX_JOINS", "Binder"]

#: Seconds between two attempts to establish a binding: the first pause, and the longest.
FIRST_PAUSE = 0.1
LAST_PAUSE = 5.0

#: Maximum queues that one other wiring may have bound to exchanges of this one.
MAX_JOINS = 10_000

#: Maximum bindings begun or retried in one turn of the loop.
AT_A_TIME = 100

#: Seconds for the other end to answer.
_PATIENCE = 10.0


class _Kept:
    """A request of a wiring that is gone: a join of a queue of its own, or, with None, a binding of two other names."""

    def __init__(self, join: Join | None, identity: bytes, end: Callable[[], object]) -> None:
        self.join = join
        self.identity = identity
        self.end = end
        self.timer: asyncio.TimerHandle


class Binder:
    """The bindings of one wiring.

    Args:
        board: The exchanges, queues and trunks of the wiring.
        registry: Resolves and watches names.
    """

    def __init__(self, board: Board, registry: Registry) -> None:
        self._board = board
        self._registry = registry
        self.bindings: dict[tuple[str, str], Binding] = {}
        #: The bindings that are about a name.
        self._about: dict[tuple[Kind, str], dict[Binding, None]] = {}
        #: Bindings whose names are not watched, since the maximum of watches is reached.
        self._unwatched: dict[Binding, None] = {}
        #: Requests of wirings that are gone, kept for a time, by the names of exchange and queue.
        self._kept: dict[tuple[str, str], dict[_Kept, None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._turns = Turns(board.loop, AT_A_TIME)
        board.lost = self._trunk_lost
        board.unwired = self._unwired
        board.words.update({"bind": self._asked, "unbind": self._asked_to_end, "unwired": self._told})

    # For the wiring

    async def bind(
        self, exchange: str, queue: str, wait: float | None, patience: float, holder: Trunk | None = None
    ) -> Binding:
        """Bind an exchange to a queue; done when messages flow.

        Args:
            exchange: The name of the exchange.
            queue: The name of the queue.
            wait: Seconds for the names and their owners to appear; None is no limit, 0 looks them up once.
            patience: Seconds for one lookup.
            holder: The other wiring that requested it; None for this one.
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
        binding.holders.add(holder)
        binding.asking.append(holder)
        try:
            await self._first(binding, wait, patience)
        except BaseException:
            if binding.state == "connecting" and binding.asking.count(holder) == 1:
                await self._release(binding, holder)
            raise
        finally:
            binding.asking.remove(holder)
        return binding

    def _watch_names(self, binding: Binding) -> None:
        """Watch the names of a binding; at the limit of watches it retries by itself until others are cancelled."""
        try:
            for kind, name in _names(binding):
                binding.watches.append(self._registry.watch(kind, name, partial(self._moved, binding, kind)))
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
                while binding.trunk is None:
                    if binding.ended:
                        raise Closed("binding")
                    if binding.task is None:
                        self._begin(binding)
                    await binding.attempts.wait(lambda: None)
                    if wait == 0 and binding.trouble is not None:
                        raise binding.trouble
        except TimeoutError:
            trouble = binding.trouble or self._registry.trouble(binding.exchange, binding.queue)
            if trouble is None:
                raise WiringError(
                    f"{binding.exchange!r} was not wired to {binding.queue!r} within {wait or patience:g} s"
                ) from None
            if isinstance(trouble, UnknownName):
                raise UnknownName(trouble.kind, trouble.name, wait or 0.0, trouble.hint) from None
            raise trouble from None

    def _moved(self, binding: Binding, kind: Kind, identity: bytes | None) -> None:
        """Handle a change of the owner of one of its names: retry at once, or leave the former owner."""
        binding.kicked.set()
        trunk = binding.trunk
        about = "queue" if binding.join is not None else "exchange"
        if trunk is None or identity is None or kind != about or trunk.sees_process:
            return
        if trunk.identity != identity:
            # The former owner may still be there without the name.
            self._down(binding, trunk, UnknownName(kind, getattr(binding, kind)))

    def kick(self, kind: Kind, name: str) -> None:
        """Retry bindings of a name that this wiring now has."""
        for binding in self._about.get((kind, name), ()):
            binding.kicked.set()

    async def unbind(self, binding: Binding) -> None:
        """End a binding of this wiring."""
        await self._release(binding, None)

    async def _release(self, binding: Binding, holder: Trunk | None) -> None:
        binding.holders.discard(holder)
        if binding.holders or binding.ended:
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
            trunk = self._unwatch(binding)
            join, binding.join = binding.join, None
            binding.attempts.wake_all()
            if join is not None:
                leave(join)
        if join is None and trunk is not None and trunk.up:
            with suppress(RedpollError):  # the owner ends it as soon as this wiring is gone
                word = {"word": "unbind", "exchange": binding.exchange, "queue": binding.queue}
                await trunk.request(word, _PATIENCE)

    # Establishing a binding

    def _begin(self, binding: Binding) -> None:
        # Not eager: the caller waits for the end of the attempt.
        binding.task = asyncio.Task(self._wire_again(binding), loop=self._board.loop)

    async def _wire_again(self, binding: Binding) -> None:
        """Retry until the binding is up."""
        pause = FIRST_PAUSE
        try:
            while not binding.ended:
                binding.kicked.clear()
                await self._turns.wait()
                try:
                    trunk = await self._wire(binding)
                except RedpollError as error:
                    binding.trouble = error
                    if binding.state == "lost":
                        self._board.events.tell("pipe_lost", binding, error)
                else:
                    if trunk.up:
                        binding.wired(trunk)
                        binding.watcher = partial(self._down, binding, trunk)
                        trunk.watchers[binding.watcher] = None
                        self._board.events.tell("pipe_up", binding)
                        return
                finally:
                    binding.attempts.wake_all()
                try:
                    async with asyncio.timeout(pause * random.uniform(0.5, 1.0)):  # noqa: S311
                        await binding.kicked.wait()
                except TimeoutError:
                    pause = min(2 * pause, LAST_PAUSE)
        finally:
            binding.task = None
            binding.attempts.wake_all()

    async def _wire(self, binding: Binding) -> Trunk:
        board = self._board
        exchange = board.exchanges.get(binding.exchange)
        if exchange is not None:
            # A wiring of another process cannot bind, by way of this one, a name that it does not see itself.
            far = not any(holder is None or holder.sees_process for holder in binding.holders)
            trunk = await self._registry.find("queue", binding.queue, everywhere=far)
            join = binding.join
            if join is None or join.exchange is not exchange:
                join = binding.join = Join(exchange, binding.queue)
            queue = board.queues.get(binding.queue) if trunk is board.local else None
            join.everywhere = not trunk.sees_process if queue is None else queue.scope is Scope.GLOBAL
            async with trunk.turn:
                return await attach(join, trunk, _PATIENCE)
        binding.join = None
        trunk = await self._registry.find("exchange", binding.exchange)
        queue = board.queues.get(binding.queue)
        key = binding.exchange, binding.queue
        names = {"exchange": binding.exchange, "queue": binding.queue}
        here = {"here": queue is not None, "everywhere": queue is not None and queue.scope is Scope.GLOBAL}
        board.expected[key] += 1
        try:
            async with trunk.turn:
                await trunk.request({"word": "bind", **names, **here}, _PATIENCE)
        except BaseException as error:
            if not isinstance(error, WiringError) and trunk.up:
                # The owner may have carried it out nevertheless.
                trunk.tell({"word": "unbind", **names})
            raise
        finally:
            board.expected[key] -= 1
            if not board.expected[key]:
                del board.expected[key]
        return trunk

    def _down(self, binding: Binding, trunk: Trunk, error: RedpollError) -> None:
        """Mark a binding as lost, as its other end is gone, and retry."""
        if binding.trunk is not trunk or binding.ended:
            return
        self._unwatch(binding)
        binding.trouble = error
        for holder in binding.holders:
            if holder is not None and holder.up:
                holder.tell({"word": "unwired", "exchange": binding.exchange, "queue": binding.queue, **refusal(error)})
        self._board.events.tell("pipe_lost", binding, binding.trouble)
        if binding.task is None and not self._closed:
            self._begin(binding)

    @staticmethod
    def _unwatch(binding: Binding) -> Trunk | None:
        """Detach a binding from its trunk; return the trunk."""
        trunk, binding.trunk = binding.trunk, None
        if trunk is not None:
            trunk.watchers.pop(binding.watcher, None)
        return trunk

    def _unwired(self, kind: Kind, exchange: str, queue: str) -> None:
        binding = self.bindings.get((exchange, queue))
        if binding is None:
            return
        if binding.trunk is not None:
            self._down(binding, binding.trunk, UnknownName(kind, getattr(binding, kind)))
        if kind == "exchange":
            # Other wirings were told, and ask the next owner.
            for holder in [each for each in binding.holders if each is not None]:
                self._let_go(binding, holder)

    def _told(self, trunk: Trunk, word: dict[str, Any]) -> Answer:
        """Retry a binding: the owner of its exchange has lost the other wiring's queue."""
        binding = self.bindings.get((field(word, "exchange", str), field(word, "queue", str)))
        try:
            check_answer(word)
        except RedpollError as error:
            if binding is not None:
                self._down(binding, trunk, error)
        return {}

    # Requests of other wirings

    async def _asked(self, trunk: Trunk, word: dict[str, Any]) -> Answer:
        """Bind an exchange of this wiring at the request of another wiring."""
        board = self._board
        name = check_name("exchange", word.get("exchange"))
        queue = check_name("queue", word.get("queue"))
        exchange = board.visible_exchange(trunk, name)
        if not field(word, "here", bool):
            if queue in board.queues:
                board.visible_queue(trunk, queue, name)
            await self.bind(name, queue, 0, _PATIENCE, trunk)
            return {}
        key = name, queue
        if key not in trunk.joins and len(trunk.joins) >= MAX_JOINS:
            raise WiringError(f"too many queues of this wiring are bound: the limit is {MAX_JOINS:,}")
        everywhere = field(word, "everywhere", bool)
        join = trunk.joins.get(key)
        new = join is None or join.exchange is not exchange
        if join is None or new:
            join = trunk.joins[key] = Join(exchange, queue)
        try:
            former = await self._take_back(trunk, name, queue) if new else None
            if former is not None and former.exchange is exchange:
                if trunk.joins.get(key) is join:
                    trunk.joins[key] = former
                join = former
            join.everywhere = everywhere
            join.asker = trunk
            await attach(join, trunk, _PATIENCE)
        except BaseException:
            if join.pipe is None and trunk.joins.get(key) is join:
                del trunk.joins[key]
            raise
        if trunk.joins.get(key) is not join:
            # The request was withdrawn meanwhile.
            leave(join)
            raise Closed("binding")
        return {}

    async def _attach_again(self, join: Join, asker: Trunk) -> None:
        """Attach a join to the trunk that requested it, since the trunk that carried it is lost."""
        key = join.exchange.name, join.queue
        pause = FIRST_PAUSE
        while asker.up and asker.joins.get(key) is join and not join.up:
            try:
                async with asker.turn:
                    await attach(join, asker, _PATIENCE)
            except RedpollError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LAST_PAUSE)
            else:
                if asker.joins.get(key) is not join:
                    leave(join)

    async def _take_back(self, trunk: Trunk, exchange: str, queue: str) -> Join | None:
        """Return the kept join of a former request of the same queue, by its owner's identity or the queue's name."""
        for kept in list(self._kept.get((exchange, queue), ())):
            join = kept.join
            if join is None or join.up:
                continue
            if kept.identity != trunk.identity:
                if not join.everywhere:
                    continue
                try:
                    await self._board.check_heir(trunk, "queue", queue, live=False)
                except NameTaken:
                    continue
            if self._forget((exchange, queue), kept):
                return join
        return None

    async def _asked_to_end(self, trunk: Trunk, word: dict[str, Any]) -> Answer:
        key = field(word, "exchange", str), field(word, "queue", str)
        join = trunk.joins.pop(key, None)
        if join is not None:
            leave(join)
        binding = self.bindings.get(key)
        if binding is not None:
            await self._release(binding, trunk)
        return {}

    def _trunk_lost(self, trunk: Trunk, final: bool) -> None:
        """Keep the requests of a lost trunk for a time, or end them if the other wiring closed."""
        for pipe in () if final else list(trunk.pipes.values()):
            for join in pipe.bound:
                if join.asker not in (None, trunk):
                    self._start(self._attach_again(join, join.asker))
        for join in trunk.joins.values():
            self._keep(trunk, final, (join.exchange.name, join.queue), join, partial(leave, join))
        trunk.joins.clear()
        for binding in list(self.bindings.values()):
            if trunk in binding.holders:
                names = binding.exchange, binding.queue
                self._keep(trunk, final, names, None, partial(self._let_go, binding, trunk))

    def _keep(
        self, trunk: Trunk, final: bool, names: tuple[str, str], join: Join | None, end: Callable[[], object]
    ) -> None:
        if final:
            end()
            return
        kept = _Kept(join, trunk.identity, end)
        kept.timer = self._board.loop.call_later(KEPT, self._expired, names, kept)
        self._kept.setdefault(names, {})[kept] = None

    def _expired(self, names: tuple[str, str], kept: _Kept) -> None:
        self._forget(names, kept)
        kept.end()

    def _forget(self, names: tuple[str, str], kept: _Kept) -> bool:
        """Stop keeping a request; return True if it was kept."""
        known = self._kept.get(names, {})
        if kept not in known:
            return False
        kept.timer.cancel()
        del known[kept]
        if not known:
            del self._kept[names]
        return True

    def _let_go(self, binding: Binding, holder: Trunk) -> None:
        self._start(self._release(binding, holder))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._board.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all bindings."""
        self._closed = True
        for kept in [kept for known in self._kept.values() for kept in known]:
            kept.timer.cancel()
        self._kept.clear()
        # The other ends need no request: this wiring has said goodbye, and they may not answer.
        tasks = [*self._tasks, *self._board.tasks]
        for task in tasks:
            task.cancel()
        for binding in self.bindings.values():
            binding.ended = True
            self._end_watches(binding)
            if binding.task is not None:
                binding.task.cancel()
                tasks.append(binding.task)
            self._unwatch(binding)
            binding.attempts.wake_all()
        self.bindings.clear()
        self._about.clear()
        self._unwatched.clear()
        await asyncio.gather(*tasks, return_exceptions=True)


def _names(binding: Binding) -> tuple[tuple[Kind, str], tuple[Kind, str]]:
    return ("exchange", binding.exchange), ("queue", binding.queue)

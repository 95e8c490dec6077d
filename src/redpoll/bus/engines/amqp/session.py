"""The two connections of an engine, and everything that is wanted at the broker: made again whenever one of them is lost.

There is one loop: connect, restore, wait for the loss of this generation's links. The loss is a future of the generation, so
that none is overlooked, whenever it comes. An entity that cannot be restored is parked and tried again; the others go on.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import uuid
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol

from redpoll.bus.awaitables import with_owner
from redpoll.bus.engines.amqp.dialing import Hosts, open_link
from redpoll.bus.engines.amqp.link import Broken, Channel, Link, Login, Rejected
from redpoll.bus.engines.amqp.topology import (
    FIXED,
    FOREVER,
    SERVER_TIMEOUT,
    Declaration,
    Exchange,
    newest,
    timeout_arguments,
)
from redpoll.bus.state import EngineState, Status
from redpoll.errors import (
    BusError,
    Closed,
    DialFailed,
    NoRoute,
    NotAuthorized,
    ProtocolError,
    RedpollError,
    SpecConflict,
    TLSError,
)
from redpoll.transport.dial import in_words

__all__ = ["Entity", "Session", "refusal_of"]

_log = logging.getLogger("redpoll.bus")

#: Seconds that one of several hosts has to answer.
_ATTEMPT: Final = 2.0
#: Seconds that restoring something may take, before it is tried again beside the others; and that it may take then.
_RESTORING: Final = 0.8
_RESTORING_AGAIN: Final = 15.0
#: Seconds between two tries to restore what could not be, at first and at most.
_AGAIN: Final = 1.0
_SELDOM: Final = 60.0
#: Seconds after which a request that is not answered is reported; and between two looks.
_SLOW: Final = 3.0
_LOOK: Final = 0.5
#: Seconds that confirmations may take where the other link is lost.
_PARTING: Final = 0.5
#: Seconds that closing waits for the server.
_GOODBYE: Final = 2.0


class Entity(Protocol):
    """Something that is wanted at the broker: a consumer, a subscription, a queue. The session holds on to it."""

    @property
    def label(self) -> str:
        """Its name in reports."""

    async def restore(self) -> None:
        """Set it up on the links of the session; called after each connect, and when it was parked.

        Raises:
            Broken: The link was lost.
            Rejected: The server refuses it.
            RedpollError: It cannot be restored.
        """

    def suspend(self, error: Exception) -> None:
        """Note that the links are gone, with its channels."""


async def _nothing() -> None:
    """Wait for nothing."""


def refusal_of(error: Rejected, queue: str) -> RedpollError:
    """Return the error of the library for one of the server's about a queue."""
    if error.code == 404:
        return NoRoute(queue)
    if error.code == 403 and "exclusive" not in error.text:
        return NotAuthorized(error.text)
    if error.code in {403, 405}:
        return SpecConflict(queue, "exclusive", True, False)
    if error.code == 406 and "inequivalent arg" in error.text:
        # inequivalent arg 'x-max-length' for queue 'q' in vhost '/': received the value '1' … but current is none
        argument = error.text.split("'")[1]
        return SpecConflict(
            queue, FIXED.get(argument, argument), error.text.rpartition("current is ")[2], "another one"
        )
    return ProtocolError(error.text)


class Session:
    """Two links to one host of a broker, or one for both, and what is restored on them.

    Args:
        hosts: Hosts and ports.
        login: Data of the handshake.
        tls: For encrypted connections.
        status: Is told the state.
        split: True for a connection for what is consumed beside the one for what is published, so that
            acknowledgements do not wait behind publishes that the server does not read.
        consumer_timeout: Seconds for which the server leaves a delivery open, as its operator set it. None: its default.

    Attributes:
        outgoing: The link for publishing.
        incoming: The link for all else, which the server reads also while it reads no publishes.
        generation: Counts connects.
        several: True if it has several hosts, which are a cluster.
        ready: True while all is restored that can be.
        is_blocked: True while the server reads no publishes.
        is_full: True while it does not read them as fast as they are written.
        settled: Waits for the confirmations of what was published.
        failed: The defect that ended the connecting for good; None if there was none.
        unanswered: Functions that return the seconds for which something waits for the server, and its name.
    """

    def __init__(
        self,
        hosts: tuple[tuple[str, int], ...],
        login: Login,
        tls: ssl.SSLContext | None,
        status: Status,
        split: bool,
        consumer_timeout: float | None,
    ) -> None:
        self.outgoing: Link
        self.incoming: Link
        self.generation = 0
        self.ready = False
        self.is_blocked = self.is_full = False
        self.unanswered: list[Callable[[], tuple[float, str] | None]] = [self._longest_ask]
        self.settled: Callable[[], Coroutine[Any, Any, None]] = _nothing
        self.last_error: Exception | None = None
        self.failed: BusError | None = None
        self._hosts = Hosts(hosts)
        self.several = len(set(hosts)) > 1
        self._login = login
        self._tls = tls
        self._status = status
        self._split = split
        self._consumer_timeout = consumer_timeout
        self._warned = False
        self._entities: dict[Entity, None] = {}
        self._parked: dict[Entity, str] = {}
        self._own: frozenset[Entity] = frozenset()
        self._links: tuple[Link, ...] = ()
        self._lost: asyncio.Future[Exception]
        self._waiters: set[asyncio.Future[None]] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._runner: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        self._asked_at = 0.0
        self._declaring: Channel | None = None
        self._reasons: dict[str, str] = {}
        self._closed = False
        self._began = False
        self._timer: asyncio.TimerHandle | None = None

    # -- life

    async def open(self, timeout: float, wait: bool) -> None:
        """Begin to connect on the running loop, and wait for that.

        Args:
            timeout: Seconds that it may take, and that the only host has to answer.
            wait: True to return at once, and connect in the background.

        Raises:
            DialFailed: No host was reached in time.
            NotAuthorized: The login was refused.
        """
        self._loop = asyncio.get_running_loop()
        self._lost = self._loop.create_future()
        self._timeout = min(timeout, _ATTEMPT) if self.several else timeout
        self._runner = with_owner(self._loop.create_task(self._run()))
        self._runner.add_done_callback(self._ended)
        self._look()
        if wait:
            return
        try:
            async with asyncio.timeout(timeout):
                await self.linked(first=True)
        except TimeoutError:
            error = self.last_error
            if isinstance(error, RedpollError):
                raise error from None
            host, port = self._hosts.current
            raise DialFailed(f"{host}:{port}", "no RabbitMQ answered in time") from error

    @property
    def hold(self) -> float | None:
        """Seconds for which the server leaves a delivery open; None where it is told otherwise."""
        if self.generation and timeout_arguments(self.incoming.version, FOREVER):
            return None
        return self._consumer_timeout or SERVER_TIMEOUT

    def consumer_arguments(self) -> dict[str, Any]:
        """Return the arguments of a consumer of tasks, by which they stay with it; warn once where the server knows none."""
        arguments = timeout_arguments(self.incoming.version, self._consumer_timeout or FOREVER)
        if not arguments and self._consumer_timeout is None and not self._warned:
            self._warned = True
            _log.warning(
                "RabbitMQ takes a task away from a worker that has it for longer than %g s, unless its operator changed"
                " consumer_timeout; pass consumer_timeout= where that was done",
                SERVER_TIMEOUT,
            )
        return arguments

    def time(self) -> float:
        """Return the time of the loop, in seconds."""
        return self._loop.time()

    async def linked(self, *, first: bool = False) -> None:
        """Wait until it is ready.

        Args:
            first: True to fail as soon as the login is refused, or the only host's certificate is.

        Raises:
            Closed: It was closed.
            NotAuthorized: The login was refused.
            TLSError: The certificate was, or there is no TLS.
            BusError: A defect has ended the connecting.
        """
        while not self.ready:
            if self._closed:
                raise Closed("bus")
            if self.failed is not None:
                raise self.failed
            if first and isinstance(self.last_error, NotAuthorized | TLSError):
                raise self.last_error
            waiter = self._loop.create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    async def close(self) -> None:
        """Disconnect, and wait for it."""
        self._end()
        try:
            await asyncio.gather(*(link.close(_GOODBYE) for link in self._links))
        finally:
            tasks = self.abort()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abort(self) -> list[asyncio.Task[Any]]:
        """Disconnect without goodbye, and return the tasks that end of it."""
        self._end()
        links, self._links = self._links, ()
        for link in links:
            link.abort(Broken("it was closed"))
        for task in self._tasks:
            task.cancel()
        return [*self._tasks, *([] if self._runner is None else [self._runner])]

    def _end(self) -> None:
        self._closed, self.ready = True, False
        if self._timer is not None:
            self._timer.cancel()
        if self._runner is not None:
            self._runner.cancel()
            if not self._lost.done():
                self._lost.set_result(Closed("bus"))
        self._wake()

    def _ended(self, runner: asyncio.Task[None]) -> None:
        """Fail all that waits, or will wait, for a connection if a defect has ended the task that connects."""
        error = None if runner.cancelled() else runner.exception()
        if error is None:
            return
        _log.error("no connection to RabbitMQ is made any more", exc_info=error)
        self.failed = self.last_error = BusError(f"no connection to RabbitMQ is made any more: {error!r}")
        self.ready = False
        self._show()
        self._wake()
        self._let_go(self.failed)
        for entity in list(self._entities):
            fail = getattr(entity, "fail", None)
            if fail is not None:
                fail(self.failed)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def spawn(self, coroutine: Coroutine[Any, Any, object]) -> asyncio.Task[None]:
        """Run something beside all else, until the session is closed. What it raises is logged."""
        task = with_owner(self._loop.create_task(self._quietly(coroutine)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # One that is cancelled before it begins has not begun this either.
        task.add_done_callback(lambda _: coroutine.close())
        return task

    async def _quietly(self, coroutine: Coroutine[Any, Any, object]) -> None:
        try:
            await coroutine
        except (Broken, Rejected, RedpollError) as error:
            _log.debug("a request to RabbitMQ failed: %s", error)

    # -- links

    async def _run(self) -> None:
        while True:
            await self._connect()
            self._began = True
            lost = self._lost
            try:
                await self._restore_all()
            except (Broken, Rejected, RedpollError) as error:
                # Of the engine's own, as a queue whose node is not up yet: another try, on another connection.
                if not lost.done():
                    lost.set_result(error)
            if not lost.done():
                self._hosts.succeeded()
                self.ready = True
                _log.info("connected to RabbitMQ at %s:%s", *self._hosts.current)
                self._show()
                self._wake()
            reason = await lost
            self.ready = False
            self.last_error = reason
            host, port = self._hosts.current
            _log.warning("the connection to RabbitMQ at %s:%s is lost: %s", host, port, reason)
            self._show()
            await self._part()
            self._let_go(reason)
            await asyncio.sleep(self._hosts.failed(self._loop.time()))

    async def _part(self) -> None:
        """Wait a moment for the confirmations of the other link, if that is there; nothing more is published on it."""
        if self.outgoing.error is None:
            self.is_blocked = True
            with suppress(TimeoutError):
                async with asyncio.timeout(_PARTING):
                    await self.settled()

    def _let_go(self, error: Exception) -> None:
        links, self._links = self._links, ()
        for link in links:
            link.abort(Broken(f"the other connection is lost: {error}"))
        self._declaring = None
        self.is_blocked = self.is_full = False
        for key in self._reasons.keys() - {"hub"}:
            del self._reasons[key]
        self._parked.clear()
        for entity in list(self._entities):
            entity.suspend(error)

    async def _connect(self) -> None:
        while True:
            host, port = self._hosts.current
            self._lost = self._loop.create_future()
            opened: list[Link] = []
            try:
                for use in ("publishing", "consuming") if self._split else ("all",):
                    login = replace(self._login, name=f"{self._login.name}, {use}")
                    opened.append(await open_link(host, port, login, self, self._tls, self._timeout))
            except (OSError, Rejected, RedpollError) as error:
                for link in opened:
                    link.abort(Broken("the other connection could not be made"))
                refused = isinstance(error, Rejected)
                if refused:
                    self.last_error = NotAuthorized(str(error), f"{host}:{port}")
                elif isinstance(error, TLSError):
                    self.last_error = error
                else:
                    self.last_error = DialFailed(f"{host}:{port}", in_words(error))
                    if isinstance(error, ConnectionRefusedError):
                        self.last_error.hint = "start RabbitMQ, or correct the host or the port"
                self._show()
                if refused or (isinstance(error, TLSError) and not self.several):
                    self._wake()
                _log.debug("RabbitMQ at %s:%s was not reached: %s", host, port, error)
                await asyncio.sleep(self._hosts.failed(self._loop.time(), refused=refused))
                continue
            except BaseException:
                for link in opened:
                    link.abort(Broken("it was given up"))
                raise
            self._links = tuple(opened)
            self.outgoing, self.incoming = opened[0], opened[-1]
            self.generation += 1
            for link in opened:
                if link.error is not None and not self._lost.done():
                    self._lost.set_result(link.error)
            return

    # Of `Owner`:

    def lost(self, link: Link, error: Exception) -> None:
        """End the generation."""
        if link in self._links and not self._closed and not self._lost.done():
            self._lost.set_result(error)

    def blocked(self, link: Link, reason: str | None) -> None:
        """Show that publishes are not read."""
        if link is self.outgoing or not self._split:
            self.is_blocked = reason is not None
        self.reason("blocked", None if reason is None else f"RabbitMQ reads no publishes: {reason}")
        if reason is None:
            self._unblocked()

    def filled(self, link: Link, full: bool) -> None:
        """Have publishes wait."""
        if link is self.outgoing:
            self.is_full = full
            if not full:
                self._unblocked()

    def _unblocked(self) -> None:
        for entity in list(self._entities):
            resume = getattr(entity, "resume", None)
            if resume is not None:
                resume()

    def suspected(self, link: Link, seconds: float | None) -> None:
        """Show that the server is silent."""
        text = None if seconds is None else f"RabbitMQ was silent for {seconds:.1f} s"
        self.reason(f"silent {id(link)}", text)

    # -- the state

    def reason(self, key: str, text: str | None) -> None:
        """Report something that is amiss beside the connection, by its key, or that it is not any more."""
        if text is None:
            self._reasons.pop(key, None)
        else:
            self._reasons[key] = text
        self._show()

    def _show(self) -> None:
        if self._closed:
            return
        if not self.ready:
            state = EngineState.RECONNECTING if self._began else EngineState.CONNECTING
            self._status.change(state, "" if self.last_error is None else str(self.last_error))
            return
        reasons = [*self._reasons.values(), *self._parked.values()]
        if reasons:
            self._status.change(EngineState.DEGRADED, reasons[0])
        else:
            self._status.change(EngineState.READY)

    def _look(self) -> None:
        if self._loop.is_closed():
            return
        slow = None
        if self.ready and not self.is_blocked:
            waits = [each for each in (look() for look in self.unanswered) if each is not None and each[0] > _SLOW]
            slow = max(waits, default=None)
        self.reason("slow", None if slow is None else f"{slow[1]} was not answered")
        self._timer = self._loop.call_later(_LOOK, self._look)

    def _longest_ask(self) -> tuple[float, str] | None:
        return (self._loop.time() - self._asked_at, "a request") if self._asked_at else None

    # -- what is wanted

    async def add(self, entity: Entity) -> None:
        """Set something up, now and after each reconnect. Where there is no connection, wait for it.

        Raises:
            Rejected: The server refuses it; it is not kept.
            RedpollError: It cannot be; it is not kept.
        """
        # Entities are restored on a connection if they were there before it was ready.
        await self.linked()
        generation = self.generation
        self._entities[entity] = None
        try:
            with suppress(Broken):
                await entity.restore()
                return
            # It was lost meanwhile, and is restored with all others on the next one.
            await self._over(generation)
            await self.linked()
        except BaseException:
            self.discard(entity)
            raise

    async def _over(self, generation: int) -> None:
        """Wait until a generation whose link is lost is over."""
        if self.generation == generation and self.ready:
            await asyncio.shield(self._lost)
            await asyncio.sleep(0)

    def discard(self, entity: Entity) -> None:
        """Do not restore something any more."""
        self._entities.pop(entity, None)
        if self._parked.pop(entity, None) is not None:
            self._show()

    async def _restore_all(self) -> None:
        # The first ones are the engine's own, in the order in which they need each other.
        for entity in list(self._entities):
            if entity in self._own:
                await entity.restore()
        others = [each for each in self._entities if each not in self._own]
        await asyncio.gather(*(self._restore(each, _AGAIN, _RESTORING) for each in others))

    def begin_with(self, *entities: Entity) -> None:
        """Name what is restored first, in this order, and whose failure ends the connection."""
        self._entities |= dict.fromkeys(entities)
        self._own = frozenset(entities)

    def want(self, entity: Entity) -> None:
        """Have something restored with each connection, from the first on."""
        self._entities[entity] = None

    async def _restore(self, entity: Entity, pause: float, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                await entity.restore()
        except (Rejected, RedpollError, TimeoutError) as error:
            if entity in self._entities:
                reason = str(error) or "it was not answered"
                self._parked[entity] = f"{entity.label} could not be restored: {reason}"
                _log.warning("%s could not be restored: %s", entity.label, reason)
                self.spawn(self._try_again(entity, pause, self.generation))
        else:
            self._parked.pop(entity, None)

    async def _try_again(self, entity: Entity, pause: float, generation: int) -> None:
        await asyncio.sleep(pause)
        if generation == self.generation and self.ready and entity in self._entities:
            with suppress(Broken):  # it will be restored on the next connection
                await self._restore(entity, min(pause * 2 or _AGAIN, _SELDOM), _RESTORING_AGAIN)
            self._show()

    def restore_soon(self, entity: Entity, reason: str, pause: float = 0.0) -> None:
        """Restore something whose channel, or whose consumer, was ended by the server."""
        if self.ready and entity in self._entities and entity not in self._parked:
            self._parked[entity] = f"{entity.label} is being restored: {reason}"
            self._show()
            self.spawn(self._try_again(entity, pause, self.generation))

    # -- requests

    async def ask(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """Send a request on a channel of its own kind: where the server refuses it, nothing else is on that channel.

        Raises:
            Rejected: The server refuses it.
            Broken: The link was lost.
        """
        async with self._asking:
            if not self._links:
                raise Broken("there is no connection")
            if self._declaring is None or self._declaring.error is not None:
                self._declaring = await self.incoming.channel()
            self._asked_at = self._loop.time()
            try:
                return await self._declaring.ask(name, *arguments)
            except asyncio.CancelledError:
                # The next one does not wait for an answer that may take long.
                self._declaring.retire()
                self._declaring = None
                raise
            finally:
                self._asked_at = 0.0

    async def ask_again(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        """Send a request, and send it again where the link is lost before the answer; wait for a connection.

        Raises:
            Rejected: The server refuses it.
            Closed: The session was closed.
        """
        while True:
            await self.linked()
            generation = self.generation
            with suppress(Broken):
                return await self.ask(name, *arguments)
            await self._over(generation)

    async def look(self, queue: str) -> tuple[int, int]:
        """Return how many messages are ready in a queue, and how many consumers it has.

        Raises:
            Rejected: With 404, it does not exist.
        """
        _, messages, consumers = await self.ask_again("queue.declare", 0, queue, 1, {})
        return messages, consumers

    async def has_queue(self, queue: str) -> bool:
        """Return True if a queue is there."""
        try:
            await self.ask("queue.declare", 0, queue, 1, {})
        except Rejected as error:
            if error.code != 404:
                raise
            return False
        return True

    async def declare_exchanges(self, exchanges: tuple[Exchange, ...]) -> None:
        """Declare exchanges and what they get from others."""
        for each in exchanges:
            await self.ask("exchange.declare", 0, each.name, each.kind, 2, {})
        for each in exchanges:
            for source, key in each.sources:
                await self.ask("exchange.bind", 0, each.name, source, key, 0, {})

    async def declare_queue(self, declaration: Declaration, *, any_kind: bool = False) -> None:
        """Declare a queue and its bindings.

        Args:
            declaration: The queue.
            any_kind: True to take one of that name as it is: another program has chosen its kind.
        """
        name, bits, arguments, bindings = declaration
        try:
            await self.ask("queue.declare", 0, name, bits, arguments)
        except Rejected as error:
            if error.code != 406 or not any_kind:
                raise
        for exchange, key in bindings:
            await self.ask("queue.bind", 0, name, exchange, key, 0, {})

    async def secure_queues(self) -> None:
        """Make sure that quorum queues which were just made outlive a server that is killed.

        RabbitMQ notes that one is there as it makes the next one, or up to a second later. Killed before that it has lost the
        messages of the last one, confirmed or not, and never serves it again.

        Raises:
            Rejected: The server refuses the next one, but for its name, which may not be allowed.
            Broken: The link was lost.
        """
        declaration = newest(uuid.uuid4().hex)
        try:
            await self.declare_queue(declaration)
            await self.ask("queue.delete", 0, declaration.name, 0)
        except Rejected as error:
            if error.code != 403:
                raise

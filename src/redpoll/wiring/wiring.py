"""Wiring: exchanges and queues of one process, by name, wired to those of others."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Literal, Self

from redpoll.address import Address
from redpoll.config import Config
from redpoll.errors import Closed, RedpollError, ScopeError, UnknownName, UsageError
from redpoll.node.sending import UNSET, Unset, check_seconds
from redpoll.wiring.binder import Binder
from redpoll.wiring.binding import Binding
from redpoll.wiring.board import Board
from redpoll.wiring.events import WiringEvents
from redpoll.wiring.exchange import Exchange, check_style
from redpoll.wiring.gap import Gap
from redpoll.wiring.limits import Limits
from redpoll.wiring.names import LOCAL, AtLimit, Scope, Style, check_name
from redpoll.wiring.queue import Queue
from redpoll.wiring.trunk import Trunk

__all__ = ["Wiring"]

_NO_LIMITS = Limits()


class Wiring:
    """Exchanges and queues by name. Messages flow directly between those who have them; a directory only knows addresses.

    Use it as an async context manager, or call `start` and `close`. All methods belong to the event loop it was started on.

    Args:
        directory: Where the directory is, "host:port" or an `Address`; None (default) is none, and nothing is GLOBAL.
        host: Where to listen, as in `Config`.
        port: The port for that; 0 (default) is any free one.
        advertise: Where others can reach what is made here, "host" or "host:port", where that is not where it listens.
        tls: As in `Config`, for all links, that to the directory too.
        encryption: As in `Config`.
        token: What the directory asks for; None is nothing.
        bind_timeout: Seconds that `bind` waits for names and their owners unless told otherwise (default 5).
        resume: Seconds that a lost link loses nothing, as in `Config`; None (default): what was on the way is missing.
        config: Further options of the node under it; those above go before them.

    Raises:
        ConfigError: An option has a value that it cannot have.
    """

    def __init__(
        self,
        directory: str | Address | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        tls: Any = None,
        encryption: bool | Literal["auto"] = "auto",
        token: str | None = None,
        bind_timeout: float | None = 5.0,
        resume: float | None = None,
        config: Config | None = None,
    ) -> None:
        if bind_timeout is not None:
            check_seconds(bind_timeout, "bind_timeout")
        self._directory_address = None if directory is None else Address.parse(directory)
        self._bind_timeout = bind_timeout
        self._events = WiringEvents()
        self._state: Literal["new", "running", "closing", "closed"] = "new"
        self._board: Board
        self._binder: Binder

    # Life

    async def start(self) -> None:
        """Be there."""
        if self._state != "new":
            raise UsageError(f"this wiring is {self._state}: a wiring is started once")
        self._board = Board(b"\0" * 16, self._events)
        self._binder = Binder(self._board, self._find, self._watch)
        self._state = "running"

    async def close(self, linger: float | None = 5.0) -> None:
        """End all.

        Args:
            linger: Seconds that messages which were sent have to be handed to the network; None is no limit.
        """
        if self._state != "running":
            self._state = "closed"
            return
        self._state = "closing"
        try:
            async with asyncio.timeout(linger):
                for exchange in list(self._board.exchanges.values()):
                    await exchange.flush()
        except (TimeoutError, RedpollError):
            pass
        finally:
            await self._binder.close()
            self._board.close()
            self._state = "closed"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(0 if error is not None else 5.0)

    # Making

    async def create_exchange(
        self,
        name: str,
        *,
        scope: Scope = LOCAL,
        style: Style = Style.DISTRIBUTE,
        limits: Limits = _NO_LIMITS,
        at_limit: AtLimit = AtLimit.WAIT,
    ) -> Exchange:
        """Make an exchange, or return the one that was made alike."""
        self._check()
        check_style(style, at_limit)
        self._check_scope(scope)
        return self._board.add_exchange(
            check_name("exchange", name), scope, style, limits, at_limit, self._delete_exchange
        )

    async def create_queue(
        self, name: str, *, scope: Scope = LOCAL, limits: Limits = _NO_LIMITS, gaps: bool = False
    ) -> Queue:
        """Make a queue, or return the one that was made alike."""
        self._check()
        self._check_scope(scope)
        return self._board.add_queue(check_name("queue", name), scope, limits, gaps, self._delete_queue)

    def _check_scope(self, scope: object) -> None:
        if not isinstance(scope, Scope):
            raise UsageError(f"scope is a Scope, not {scope!r}")
        if scope is Scope.GLOBAL and self._directory_address is None:
            raise ScopeError("GLOBAL names need a directory", 'Wiring(directory="host:5682")')

    async def _delete_exchange(self, exchange: Exchange) -> None:
        self._board.remove_exchange(exchange)

    async def _delete_queue(self, queue: Queue) -> None:
        self._board.remove_queue(queue)

    # Wiring

    async def bind(
        self, exchange: str | Exchange, queue: str | Queue, *, wait: float | None | Unset = UNSET
    ) -> Binding:
        """Wire an exchange to a queue; done when the queue's owner has opened the pipe, so that what is sent then arrives.

        Args:
            exchange: The exchange, or its name: of this wiring, of another one, or of the directory.
            queue: The queue, or its name.
            wait: Seconds that names and owners have to appear; unset is `bind_timeout`, None is no limit, 0 looks once.

        Returns:
            The binding; the same one if they are bound already. It is wired again whenever an owner is back.

        Raises:
            UnknownName: Nobody has that name, as far as can be seen from here.
            LinkError: Who has it cannot be reached.
        """
        self._check()
        if not isinstance(wait, Unset) and wait is not None:
            check_seconds(wait, "wait")
        seconds = self._bind_timeout if isinstance(wait, Unset) else wait
        names = self._name(exchange, "exchange"), self._name(queue, "queue")
        return await self._binder.bind(*names, seconds, self._bind_timeout or 5.0)

    async def unbind(self, exchange: str | Exchange, queue: str | Queue) -> None:
        """End a binding that `bind` made: what was sent before still arrives, nothing after.

        Raises:
            UnknownName: They are not bound by this wiring.
        """
        self._check()
        names = self._name(exchange, "exchange"), self._name(queue, "queue")
        binding = self._binder.bindings.get(names)
        if binding is None:
            raise UnknownName("binding", " -> ".join(names))
        await binding.unbind()

    @staticmethod
    def _name(given: object, kind: str) -> str:
        if isinstance(given, Exchange if kind == "exchange" else Queue):
            return given.name
        return check_name(kind, given)

    async def _find(self, kind: str, name: str) -> Trunk:
        if name in (self._board.exchanges if kind == "exchange" else self._board.queues):
            return self._board.local
        raise UnknownName(kind, name)

    def _watch(self, kind: str, name: str, changed: Any) -> Any:
        return lambda: None

    # Sending and receiving

    async def send(self, exchange: str | Exchange, data: Any, *, timeout: float | None = None) -> None:
        """Send a message by an exchange of this wiring: `exchange.send`.

        Raises:
            UnknownName: It is none of this wiring's; also what `Exchange.send` raises.
        """
        if not isinstance(exchange, Exchange):
            found = self._board.exchanges.get(exchange)
            if found is None:
                self._check()
                raise UnknownName("exchange", exchange, hint="only who made it sends by it")
            exchange = found
        await exchange.send(data, timeout=timeout)

    async def receive(self, timeout: float | None = None) -> bytes:
        """Take the next message of any queue of this wiring; those that have any take turns. A `Gap` is passed over.

        Args:
            timeout: Seconds to wait for it; None (default) is no limit, 0 only looks.

        Raises:
            TimeoutError: None came in time.
            Closed: The wiring is closed.

        Cancelling it loses no message.
        """
        message = self._next()
        if message is not None:
            return message
        if timeout is not None:
            check_seconds(timeout)
        try:
            async with asyncio.timeout(timeout):
                while (message := self._next()) is None:
                    self._check()
                    waiter: asyncio.Future[None] = self._board.loop.create_future()
                    self._board.waiters.append(waiter)
                    try:
                        await waiter
                    except asyncio.CancelledError:
                        if waiter in self._board.waiters:
                            self._board.waiters.remove(waiter)
                        elif not waiter.cancelled():
                            self._board.wake()
                        raise
        except TimeoutError:
            raise TimeoutError(f"no message came within {timeout:g} s") from None
        return message

    def receive_nowait(self) -> bytes | None:
        """Take the next message of any queue, as `receive`, if one is there; else None."""
        message = self._next()
        if message is None:
            self._check()
        return message

    def _next(self) -> bytes | None:
        ready = self._board.ready
        while ready:
            queue = next(iter(ready))
            for message in queue._batch:
                if len(ready) > 1:
                    del ready[queue]
                    ready[queue] = None
                if type(message) is Gap:
                    break
                return message
            else:
                if not queue._refill():
                    del ready[queue]
        return None

    # Looking

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges that were made here."""
        return tuple(self._board.exchanges.values()) if self._state != "new" else ()

    @property
    def queues(self) -> tuple[Queue, ...]:
        """The queues that were made here."""
        return tuple(self._board.queues.values()) if self._state != "new" else ()

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The bindings that were made here."""
        return tuple(self._binder.bindings.values()) if self._state != "new" else ()

    @property
    def events(self) -> WiringEvents:
        """Its hooks."""
        return self._events

    def _check(self) -> None:
        if self._state != "running":
            raise Closed("wiring")

    def __repr__(self) -> str:
        return f"<Wiring {self._state}>"

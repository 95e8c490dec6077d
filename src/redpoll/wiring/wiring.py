"""Wiring: the exchanges and queues of one process, bound by name to those of others."""

from __future__ import annotations

import asyncio
import warnings
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, Self
from weakref import WeakSet

from redpoll.address import Address
from redpoll.config import Config
from redpoll.errors import Closed, RedpollError, UnknownName, UsageError
from redpoll.node.sending import UNSET, Unset, check_seconds
from redpoll.platforms import after_fork
from redpoll.wiring.binding import Binding
from redpoll.wiring.bindings import Bindings
from redpoll.wiring.board import Board, MadeT
from redpoll.wiring.directory.client import DirectoryClient
from redpoll.wiring.directory.entries import Kind
from redpoll.wiring.directory.tokens import token_bytes
from redpoll.wiring.events import WiringEvents
from redpoll.wiring.exchange import Exchange
from redpoll.wiring.inprocess import Neighbour
from redpoll.wiring.names import LOCAL, AtLimit, Gap, Limits, Scope, Style, check_kind, check_name
from redpoll.wiring.network import Net, config_of
from redpoll.wiring.queue import Queue
from redpoll.wiring.reach import advertised as _advertised
from redpoll.wiring.reach import check_reach
from redpoll.wiring.resolver import Resolver

__all__ = ["Wiring"]

_NO_LIMITS = Limits()

_DEFAULTS = MappingProxyType({"host": "127.0.0.1", "port": 0, "tls": None, "encryption": "auto", "resume": None})

#: Seconds in which the node sends its last messages.
_GOODBYE = 1.0


class Wiring:
    """Exchanges and queues by name. Messages flow directly between their owners; a directory only maps names to addresses.

    Use it as an async context manager, or call `start` and `close`. Call all methods on the event loop on which it was
    started.

    Args:
        directory: The address of the directory, "host:port" or an `Address`; None (default) for none: no name is GLOBAL then.
        host: The address to listen at, as in `Config`.
        port: The port to listen on; 0 (default) is any free port.
        advertise: The address at which others reach this process, "host" or "host:port", if it differs from the one listened
            at.
        tls: As in `Config`, for all links, including the one to the directory.
        encryption: As in `Config`.
        token: The secret that the directory requires, and that wirings require of each other over the network; None for none.
        bind_timeout: Default seconds that `bind` waits for names and their owners (default 5).
        resume: Seconds for which a lost link loses no message, as in `Config`; None (default): messages in flight are lost.
        config: Further options of the node below, which also dials the directory; the arguments above override them.

    Raises:
        ConfigError: An option has an invalid value.
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
        token: str | bytes | None = None,
        bind_timeout: float | None = 5.0,
        resume: float | None = None,
        config: Config | None = None,
    ) -> None:
        check_seconds(bind_timeout, "bind_timeout")
        self._bind_timeout = bind_timeout
        given = {"host": host, "port": port, "tls": tls, "encryption": encryption, "resume": resume}
        base = Config(port=0) if config is None else config
        # Arguments that were not given are taken from the Config.
        options = {name: value for name, value in given.items() if value != _DEFAULTS[name] or config is None}
        base = base.replace(port=base.port or 0)
        self._max_size = base.max_message_size
        self._config = config_of(base, options)
        self._advertise = None if advertise is None else _advertised(advertise)
        self._events = WiringEvents()
        self._state: Literal["new", "running", "closing", "closed"] = "new"
        self._net = Net(self._config, token_bytes(token))
        self._directory: DirectoryClient | None = None
        if directory is not None:
            node = self._net.node
            self._directory = DirectoryClient(directory, token=token, owner_identity=node.identity, node=node)
            self._net.directory = self._directory.session
            self._directory.lost = partial(self._events.tell, "directory_lost")
            self._directory.back = partial(self._events.tell, "directory_back")
            self._directory.taken = partial(self._events.tell, "taken")
        self._board: Board
        self._bindings: Bindings
        self._neighbour: Neighbour
        self._resolver: Resolver
        #: Creations in progress, by kind and name; each event is set at its end.
        self._claiming: dict[tuple[Kind, str], asyncio.Event] = {}

    # Start and close

    async def start(self) -> None:
        """Start to listen, and to dial the directory, without waiting for it.

        Raises:
            ConfigError: It cannot listen at its address; or that can only be reached from this machine, and the directory is
                on another one.
            UsageError: It was started before.
        """
        if self._state != "new":
            raise UsageError(f"this wiring is {self._state}: a wiring is started once")
        self._state = "closed"
        net = self._net
        net.board = self._board = Board(net.node.identity, self._events)
        await net.start()
        try:
            if self._directory is not None:
                check_reach(self._config.hosts, self._advertise, self._directory.address)
                await self._directory.start()
        except BaseException:
            await net.stop(0)
            raise
        self._neighbour = Neighbour(self._board)
        hosts = self._config.hosts
        self._resolver = resolver = Resolver(
            self._board, net, self._neighbour, self._directory, self._advertise, hosts, self._bind_timeout
        )
        self._board.address = str(resolver.address)
        self._board.owner = resolver.owner
        self._bindings = Bindings(self._board, resolver)
        self._state = "running"
        _started.add(self)

    async def close(self, linger: float | None = 5.0) -> None:
        """Release the names, flush sent messages, and end everything. A second call does nothing.

        Args:
            linger: Seconds for sent messages to be handed to the network (default 5); None is no limit.

        Waits in `send`, `receive` and `bind` end with `Closed`. Messages that wait in a queue can still be taken with
        `receive_nowait`. If it is cancelled, it ends everything at once.
        """
        check_seconds(linger, "linger")
        if self._state != "running":
            return
        self._state = "closing"
        self._neighbour.release_all()
        began = self._board.loop.time()
        drain: float | None = 0.0
        try:
            if self._directory is not None:
                await self._directory.close()
            async with asyncio.timeout(linger):
                for exchange in list(self._board.exchanges.values()):
                    await exchange.flush()
            # Messages were handed to the network: they have the rest of the time to leave.
            drain = None if linger is None else began + linger - self._board.loop.time()
        except (TimeoutError, RedpollError):
            drain = _GOODBYE if linger is None else min(linger, _GOODBYE)
        finally:
            await self._end(None if drain is None else max(0.0, drain))

    def _inherit(self) -> None:
        """Refuse all use in a forked child: the wiring is the parent's."""
        self._state = "closed"
        for exchange in self._board.exchanges.values():
            exchange.inherit()
        for queue in self._board.queues.values():
            queue.inherit()

    async def _end(self, drain: float | None) -> None:
        self._board.settle()
        self._net.say_bye()
        self._board.close()
        self._events.close()
        try:
            await self._bindings.close()
        except BaseException:
            drain = 0.0
            raise
        finally:
            self._neighbour.close()
            try:
                await self._net.stop(drain)
            finally:
                self._state = "closed"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close(0 if error is not None else 5.0)

    # Creation

    async def create_exchange(
        self,
        name: str,
        *,
        scope: Scope = LOCAL,
        style: Style = Style.DISTRIBUTE,
        limits: Limits = _NO_LIMITS,
        at_limit: AtLimit = AtLimit.WAIT,
    ) -> Exchange:
        """Create an exchange.

        If the owner of a GLOBAL name vanished without a goodbye, the call waits until the lease of that owner expires at the
        directory (15 s by default). A process that restarts with the same `Config.identity` gets its names at once.

        Args:
            name: Its name, 1 to 255 bytes in UTF-8. Exchanges and queues have separate names.
            scope: The visibility of the name: `LOCAL` (default) in this wiring, `PROCESS` in this process, `GLOBAL`
                for all wirings with the same directory.
            style: How it distributes messages.
            limits: The limits of each pipe at this end: of messages that wait for room at the other end.
            at_limit: The action on a message without room.

        Returns:
            The exchange; an existing one of this wiring, if it has the same settings.

        Raises:
            NameTaken: Another live owner has the name, or this wiring has it with other settings.
            ScopeError: The scope is GLOBAL and there is no directory.
            DirectoryUnavailable: The directory did not answer within `bind_timeout`.
            ConfigError: Other processes could not reach this one.
            UsageError: An argument is invalid.
            Closed: The wiring is not running.
        """
        self._check()
        self._resolver.check_scope(scope)
        for option, value, kind in (
            ("style", style, Style),
            ("at_limit", at_limit, AtLimit),
            ("limits", limits, Limits),
        ):
            check_kind(option, value, kind)
        check_name("exchange", name)
        return await self._create(Exchange(name, scope, style, limits, at_limit, self._max_size, self._delete))

    async def create_queue(
        self, name: str, *, scope: Scope = LOCAL, limits: Limits = _NO_LIMITS, gaps: bool = False
    ) -> Queue:
        """Create a queue. It waits for the lease of a vanished owner of a GLOBAL name, as `create_exchange` does.

        Args:
            name: Its name, 1 to 255 bytes in UTF-8. Exchanges and queues have separate names.
            scope: The visibility of the name, as for `create_exchange`.
            limits: The limits of each pipe at this end: of messages that were not received.
            gaps: Whether to insert a `Gap` where messages are missing. They are counted either way, and passed to
                the hook `gap`.

        Returns:
            The queue; an existing one of this wiring, if it has the same settings.

        Raises:
            NameTaken: As for `create_exchange`, also the other errors.
        """
        self._check()
        self._resolver.check_scope(scope)
        check_kind("limits", limits, Limits)
        check_name("queue", name)
        board = self._board
        return await self._create(Queue(name, scope, limits, gaps, board.arrived, board.missing, self._delete))

    async def _create(self, made: MadeT) -> MadeT:
        """Add an exchange or a queue, and claim its name; return the existing one of its name."""
        key: tuple[Kind, str] = made.kind, made.name
        while (done := self._claiming.get(key)) is not None:
            # Another call creates it.
            await done.wait()
            self._check()
        known = self._board.add(made)
        if known is not made:
            return known
        self._bindings.retry(*key)
        done = self._claiming[key] = asyncio.Event()
        try:
            await self._resolver.claim(*key, made.scope, getattr(made, "style", None))
            # Messages for a former owner of the name now go to this one.
            self._bindings.retry(*key)
        except BaseException:
            self._board.remove(made)
            raise
        finally:
            del self._claiming[key]
            done.set()
        return made

    async def _delete(self, made: Exchange | Queue) -> None:
        if self._board.owns(made):
            await self._resolver.give_up(made.kind, made.name, made.scope)
            self._board.remove(made)

    # Wiring

    async def bind(
        self, exchange: str | Exchange, queue: str | Queue, *, wait: float | Unset | None = UNSET
    ) -> Binding:
        """Bind an exchange to a queue; return when its owner has opened the pipe, so that messages sent from then on arrive.

        Args:
            exchange: The exchange, or its name: of this wiring, of another one, or of the directory.
            queue: The queue, or its name.
            wait: Seconds for names and owners to appear; unset is `bind_timeout`, None is no limit, 0 looks them up once. A
                lookup may take `bind_timeout` (5 if that is None), if the directory does not answer, or has just started and
                does not know all names yet.

        Returns:
            The binding; the same one if they are already bound. It is restored whenever an owner returns.

        Raises:
            UnknownName: No visible object has that name.
            UsageError: The exchange or queue is LOCAL in another wiring.
            LinkError: An owner cannot be reached.
        """
        self._check()
        seconds = self._bind_timeout if isinstance(wait, Unset) else wait
        check_seconds(seconds, "wait")
        names = self._name(exchange, "exchange"), self._name(queue, "queue")
        for given in (exchange, queue):
            if isinstance(given, Exchange | Queue) and given.scope is Scope.LOCAL and not self._board.owns(given):
                raise UsageError(
                    f"{given!r} belongs to another wiring", "a LOCAL name can be bound by its own wiring only"
                )
        return await self._bindings.bind(*names, seconds, self._bind_timeout or 5.0)

    async def unbind(self, exchange: str | Exchange, queue: str | Queue) -> None:
        """End a binding of this wiring: earlier messages still arrive, later ones do not.

        Raises:
            UnknownName: This wiring has no such binding.
        """
        self._check()
        names = self._name(exchange, "exchange"), self._name(queue, "queue")
        binding = self._bindings.bindings.get(names)
        if binding is None:
            raise UnknownName("binding", " -> ".join(names))
        await binding.unbind()

    @staticmethod
    def _name(given: object, kind: str) -> str:
        if isinstance(given, Exchange if kind == "exchange" else Queue):
            return given.name
        return check_name(kind, given)

    # Sending and receiving

    async def send(self, exchange: str | Exchange, data: Any, *, timeout: float | None = None) -> None:
        """Send a message to an exchange of this wiring, as `Exchange.send`, with its errors.

        Raises:
            UnknownName: This wiring has no such exchange.
            Closed: The wiring is not running.
        """
        if not isinstance(exchange, Exchange):
            found = self._begun().exchanges.get(exchange)
            if found is None:
                self._check()
                raise UnknownName("exchange", exchange, hint="only the wiring that created an exchange can send to it")
            exchange = found
        await exchange.send(data, timeout=timeout)

    async def receive(self, timeout: float | None = None) -> bytes:
        """Return the next message of any queue of this wiring; queues with messages take turns. A `Gap` is skipped.

        Args:
            timeout: Seconds to wait; None (default) is no limit, 0 does not wait.

        Raises:
            TimeoutError: No message arrived in time.
            Closed: The wiring is not running, and its queues are empty.

        Cancelling it loses no message.
        """
        message = self._next()
        if message is not None:
            return message
        check_seconds(timeout)
        try:
            async with asyncio.timeout(timeout):
                while (message := self._next()) is None:
                    self._check()
                    await self._board.waiters.wait(self._board.waiters.wake)
        except TimeoutError:
            raise TimeoutError(f"no message came within {timeout:g} s") from None
        if self._board.waiters and self._board.ready:
            # A burst wakes one waiting task, which wakes the next.
            self._board.waiters.wake()
        return message

    def receive_nowait(self) -> bytes | None:
        """Return the next message of any queue, or None if there is none."""
        message = self._next()
        if message is None:
            self._check()
        return message

    def _next(self) -> bytes | None:
        ready = self._begun().ready
        while ready:
            queue = next(iter(ready))
            for message in queue._batch:
                if len(ready) > 1:
                    del ready[queue]
                    ready[queue] = None
                if type(message) is Gap:
                    break
                return message  # type: ignore[no-any-return]  # bytes, then
            else:
                if not queue._refill():
                    del ready[queue]
        return None

    # Properties

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges of this wiring."""
        return tuple(self._board.exchanges.values()) if self._state != "new" else ()

    @property
    def queues(self) -> tuple[Queue, ...]:
        """The queues of this wiring."""
        return tuple(self._board.queues.values()) if self._state != "new" else ()

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The bindings of this wiring."""
        return tuple(self._bindings.bindings.values()) if hasattr(self, "_bindings") else ()

    @property
    def address(self) -> Address:
        """The address at which others reach this wiring.

        If it listens on all interfaces, the address is known after the first contact with the directory.

        Raises:
            Closed: It is not running.
        """
        if self._state not in {"running", "closing"}:
            raise Closed("wiring")
        return self._resolver.address

    @property
    def identity(self) -> bytes:
        """The identity of its node, 16 bytes."""
        return self._net.node.identity

    @property
    def directory_state(self) -> str:
        """The state of the link to the directory: "up", "lost", … as `DirectoryClient.state`; "none" without one."""
        return "none" if self._directory is None else self._directory.state

    def describe(self) -> dict[str, Any]:
        """Return plain data about all exchanges with their pipes, all queues, and their counters.

        Raises:
            Closed: It was not started.
        """
        return self._begun().describe()

    @property
    def events(self) -> WiringEvents:
        """The hooks."""
        return self._events

    def __del__(self) -> None:
        if getattr(self, "_state", "new") == "running":
            warnings.warn(f"{self!r} was dropped without being closed", ResourceWarning, stacklevel=2)

    def _begun(self) -> Board:
        """Return the exchanges and queues, also after closing."""
        if self._state == "new":
            raise Closed("wiring")
        return self._board

    def _check(self) -> None:
        if self._state != "running":
            raise Closed("wiring")

    def __repr__(self) -> str:
        return f"<Wiring {self._state}>"


#: The wirings of this process. A child has copies of what waits in them, which would be received in both.
_started: Final[WeakSet[Wiring]] = WeakSet()


@after_fork
def _leave() -> None:
    for wiring in _started:
        wiring._inherit()
    _started.clear()

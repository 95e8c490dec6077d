"""The part of an object of the old module that lives on the loop thread; separate, so that a dropped object is noticed."""

from __future__ import annotations

import asyncio
import threading
from _thread import start_new_thread
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from redpoll.blocking.loop_thread import AT_EXIT, LoopThread, enter
from redpoll.blocking.resident import when_dropped
from redpoll.errors import Closed, NameTaken, UsageError
from redpoll.wiring.names import Scope, check_name
from redpoll.wiring.zmq.inbox import Inbox
from redpoll.wiring.zmq.interfaces import NOWHERE, Place
from redpoll.wiring.zmq.outbox import Outbox, as_bytes

if TYPE_CHECKING:
    from redpoll.blocking.handover import Handover
    from redpoll.wiring.wiring import Wiring

__all__ = ["Kind", "WiringResident"]

Kind = Literal["exchange", "queue"]

#: Numbers before the first ones: a queue's begin at 1, as 0 means that no message was received.
_FIRST: Final = {"exchange": 0, "queue": 1}


@dataclass(frozen=True, slots=True)
class _Made:
    """An exchange or a queue.

    Attributes:
        kind: "exchange" or "queue".
        name: Its name.
        number: Its number in the program.
        options: The options with which it was created.
    """

    kind: Kind
    name: str
    number: int
    options: dict[str, Any]


class WiringResident:
    """The `Wiring` of one object, on the loop thread.

    The `Wiring` is made when it is needed: the first name that others can see determines where it listens; LOCAL names may be
    created before.

    Args:
        make: Makes the `Wiring`; called on the loop.
        label: Name of the object, for errors.
        gaps: Hand over messages with the numbers of their queues, and gaps between them.

    Attributes:
        inbox: Received messages.
        outboxes: Messages to be sent, by the number of the exchange.
        closed: True if it is closed.
    """

    def __init__(self, make: Callable[[Place], Wiring], label: str, gaps: bool) -> None:
        self._make = make
        self._label = label
        self.inbox = Inbox(self._want, self.check_blocking, label, numbered=gaps)
        self.outboxes: dict[int, Outbox] = {}
        self.closed = False
        self._gaps = gaps
        # Reentrant: a signal handler may run while its thread holds it.
        self._life = threading.RLock()
        self._made: dict[tuple[Kind, str], _Made] = {}
        #: Exchanges and queues created before there was a `Wiring`.
        self._planned: list[_Made] = []
        self._thread: LoopThread | None = None
        self._wiring: Wiring | None = None
        self._runs = False
        self._place = NOWHERE
        self._closing: asyncio.Event | None = None
        self._watch: object = None

    # Start and close

    def _started(self, place: Place = NOWHERE) -> Handover:
        """Start the `Wiring`, unless it has started; listen at `place` if it is given."""
        if place == NOWHERE and self._wiring is not None and self._thread is not None:
            # Without the lock: another thread may hold it while waiting for a directory.
            self.check_blocking()
            return self._thread.handover
        with self._life:
            self.check_blocking()
            if self._thread is None:
                thread = enter(self)
                self._thread = thread
                self._place = place
                try:
                    thread.handover.run(self._start, place)
                except BaseException:
                    # Ctrl-C may come when it has just begun to run. Else nothing comes in between before this one call.
                    if not self._runs:
                        start_new_thread(thread.evict, (self,))
                        self._thread = None
                        thread.wait(self)
                    raise
                if self.closed:  # by another thread, which did not see it yet
                    thread.evict(self)
                    raise Closed(self._label)
            elif place not in {self._place, NOWHERE, Place(self._place.host, 0)}:
                raise UsageError(
                    f"one object listens at one place: it does {_at(self._place)}, and not {_at(place)}",
                    "give the interface to the object, or make the names that have one first",
                )
            return self._thread.handover

    async def _start(self, place: Place) -> None:
        wiring = self._make(place)
        await wiring.start()
        self._wiring = wiring
        try:
            for made in self._planned:
                await self._create(made)
            self._planned.clear()
            self._runs = True
        except BaseException:
            self._wiring = None
            await wiring.close(linger=0)
            raise

    def close(self, linger: float) -> None:
        """Accept no more messages, let sent ones leave, and close.

        Args:
            linger: Seconds for sent messages to leave.
        """
        thread = self._thread
        if thread is not None:
            if thread.handover.forked:
                return
            thread.handover.check_thread()
        self.closed = True
        # Another thread may have started it meanwhile.
        thread = self._thread
        if thread is None:
            self.inbox.close()
            self._watch = None
            return
        if thread.see_off(self, partial(self._close, linger), linger):
            self._thread = self._watch = None

    async def evict(self, patience: float) -> None:
        """End at once: the program or the loop ends, the object was dropped, or it has not started."""
        if self._runs or self.closed:
            self.closed = True
            await self._close(patience)

    async def _close(self, linger: float) -> None:
        if self._closing is not None:
            # Another thread closes it: wait for that.
            await self._closing.wait()
            return
        self._closing = asyncio.Event()
        end = asyncio.get_running_loop().time() + linger
        outboxes = list(self.outboxes.values())
        try:
            async with asyncio.timeout_at(end):
                for outbox in outboxes:
                    await outbox.sent()
        except TimeoutError:
            pass
        except asyncio.CancelledError:  # Ctrl-C
            end = 0
            raise
        finally:
            try:
                for outbox in outboxes:
                    await outbox.close()
                if self._wiring is not None:
                    await self._wiring.close(linger=max(0.0, end - asyncio.get_running_loop().time()))
            finally:
                self.inbox.close()
                self._closing.set()

    def stop(self, drain: float | None = 0) -> None:  # noqa: ARG002  # as `Resident` declares it
        """Close, as the program ends; it was evicted before."""
        self.close(0)

    def inherit(self) -> None:
        """Close inherited resources in a forked child."""
        self._watch = None
        self._life = threading.RLock()
        self.inbox.inherit()
        for outbox in self.outboxes.values():
            outbox.inherit()

    @property
    def is_open(self) -> bool:
        """True if it has started, and lives in this process."""
        thread = self._thread
        return thread is not None and not self.closed and not thread.handover.forked

    def watch(self, owner: object) -> None:
        """Close when the owner is dropped."""
        self._watch = when_dropped(owner, self._abandon)

    def _abandon(self) -> None:
        thread = self._thread
        if thread is not None and self.is_open:
            self.closed = True
            thread.evict(self, AT_EXIT)

    def check(self) -> None:
        """Raise an error if it is closed, or belongs to another process.

        Raises:
            Closed: It is closed.
            UsageError: This is a forked child of the process that created it.
        """
        thread = self._thread
        if thread is not None and thread.handover.forked:
            raise UsageError(
                f"this {self._label} belongs to the process that forked this one", "make one of its own in the child"
            )
        if self.closed:
            raise Closed(self._label)

    def check_blocking(self) -> None:
        """As `check`; also refuse to wait for the loop where that may never end."""
        self.check()
        if self._thread is not None:
            self._thread.handover.check_blocking()

    def __repr__(self) -> str:
        return f"<{self._label}>"

    # Names

    def create(self, kind: Kind, name: str, place: Place, options: dict[str, Any]) -> int:
        """Create an exchange or a queue, or find the existing one.

        Returns:
            Its number.

        Raises:
            NameTaken: One of that name exists with other options, or another process has the name.
        """
        with self._life:
            self.check()
            known = self._made.get((kind, name))
            if known is not None:
                if known.options != options:
                    raise NameTaken(kind, name, f"this {self._label} has it, made differently")
                return known.number
            check_name(kind, name)
            number = _FIRST[kind] + sum(each.kind == kind for each in self._made.values())
            made = _Made(kind, name, number, options)
            if self._thread is None and options["scope"] is Scope.LOCAL and place == NOWHERE:
                self._planned.append(made)
            else:
                self._started(place).run(self._create, made)
            self._made[kind, name] = made
            return number

    async def _create(self, made: _Made) -> None:
        wiring, thread = self._wiring, self._thread
        if wiring is None or thread is None:
            raise Closed(self._label)
        if made.kind == "exchange":
            exchange = await wiring.create_exchange(made.name, **made.options)
            self.outboxes[made.number] = Outbox(exchange, thread.handover)
        else:
            queue = await wiring.create_queue(made.name, gaps=self._gaps, **made.options)
            self.inbox.add(made.number, queue)

    def bind(self, exchange: str, queue: str, options: dict[str, Any]) -> None:
        """See `Wires.bind`."""
        self._started().run(self._bind, exchange, queue, options)

    async def _bind(self, exchange: str, queue: str, options: dict[str, Any]) -> None:
        if self._wiring is None:
            raise Closed(self._label)
        await self._wiring.bind(exchange, queue, **options)
        # The exchange may have less room now, or more.
        for outbox in self.outboxes.values():
            outbox.forget_room()

    # Messages

    def send(self, number: object, data: Any, wait: bool = True) -> bool:
        """Send a message off the fast path; return False if there is no room and `wait` is False."""
        message = as_bytes(data)
        self.check_blocking()
        if self._planned:
            self._started()
        outbox = self.outboxes.get(number) if isinstance(number, int) else None
        if outbox is None:
            raise UsageError(f"there is no exchange {number!r}", "create_exchange returns its number")
        if outbox.put(message):
            return True
        if wait:
            outbox.send(message)
            return True
        return outbox.try_send(message)

    def receive(self, timeout: float | None) -> Any:
        """Wait for a message that is not here yet."""
        if timeout == 0:
            # Messages on the loop are fetched, as there is no time for them to be handed over.
            found = self.look()
            if found is not None:
                return found
        self._started()
        return self.inbox.wait(timeout)

    def look(self) -> Any:
        """Fetch messages from the loop; return one, or None if there is none."""
        self._started().run(self.inbox.feed)
        try:
            for found in self.inbox.pop:
                return found
        except IndexError:
            pass
        return None

    def mask(self, gaps: bool) -> None:
        """Hand over gaps or drop them."""
        self.check()
        self.inbox.gaps = gaps

    def _want(self) -> None:
        """Request messages from the loop, as a thread waits."""
        if self._thread is None:
            raise Closed(self._label)
        self._thread.handover.post(self.inbox.want)


def _at(place: Place) -> str:
    return f"at {place.host or 'the default'}, port {place.port or 'any'}"

"""A pipe at the exchange's end: an outlet, the queues that are bound by it, and the trunk that carries it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redpoll.wiring.names import Style
from redpoll.wiring.outlet import Outlet

if TYPE_CHECKING:
    from redpoll.wiring.exchange import Exchange
    from redpoll.wiring.trunk import Trunk

__all__ = ["Join", "Pipe"]


class Join:
    """One queue that is bound to an exchange, at the exchange's end.

    Attributes:
        exchange: Whose messages it gets.
        queue: The queue's name.
        everywhere: Whether that name means one queue alone, wherever it is: its scope is GLOBAL.
        pipe: What brings them; None before the first time.
        base: Where the pipe is lost: the number before which the queue's owner had taken all.
        up: Whether the queue's owner has opened it.
        asker: The trunk over which the queue's owner asked for it; None if it did not.
    """

    __slots__ = ("asker", "base", "everywhere", "exchange", "pipe", "queue", "up")

    def __init__(self, exchange: Exchange, queue: str) -> None:
        self.exchange = exchange
        self.queue = queue
        self.everywhere = False
        self.pipe: Pipe | None = None
        self.base = 0
        self.up = False
        self.asker: Trunk | None = None


class Pipe:
    """One pipe.

    Attributes:
        exchange: Where it begins.
        number: What both ends call it, in one run of its owner.
        outlet: Its state.
        trunk: Where it leads now; None where that is lost.
        carrier: The trunk that it leads by, or led by last; None before the first one.
        run: The run of the wiring where it leads, or led.
        handle: What the other end calls it.
        joins: The queues that it brings messages to, by name.
        also: Further joins of these, where more than one bound the same queue.
        disputed: Whether the other end was asked, as it was opened, if another one leads there.
        ending: Whether it only sends what waits.
    """

    __slots__ = (
        "_left",
        "also",
        "carrier",
        "disputed",
        "ending",
        "exchange",
        "handle",
        "joins",
        "number",
        "opening",
        "outlet",
        "queue",
        "run",
        "starved",
        "trunk",
    )

    def __init__(self, exchange: Exchange, number: int, outlet: Outlet) -> None:
        self.exchange = exchange
        self.number = number
        self.outlet = outlet
        self.trunk: Trunk | None = None
        self.carrier: Trunk | None = None
        self.disputed = False
        self.run = b""
        self.handle = 0
        self.joins: dict[str, Join] = {}
        self.also: list[Join] = []
        self.ending = False
        #: The queue that it is for, where its exchange balances.
        self.queue = ""
        #: The joins for which it is being opened just now.
        self.opening: list[Join] = []
        #: The queue that left last.
        self._left: tuple[str, ...] = ()
        #: Whether it waits for its trunk to take more.
        self.starved = False

    def add(self, join: Join) -> None:
        """It brings messages to a queue."""
        if self.joins.setdefault(join.queue, join) is not join and join not in self.also:
            self.also.append(join)

    def drop(self, join: Join) -> bool:
        """A join ends: whether nobody else has bound its queue."""
        if join in self.also:
            self.also.remove(join)
            return False
        if self.joins.get(join.queue) is not join:
            return False
        del self.joins[join.queue]
        self._left = (join.queue,)
        for other in self.also:
            if other.queue == join.queue:
                self.also.remove(other)
                self.joins[join.queue] = other
                return False
        return True

    @property
    def queues(self) -> tuple[str, ...]:
        """The names of the queues that have what was sent: those that it leads to, or the one that left last."""
        return tuple(self.joins) or self._left or tuple(each.queue for each in self.opening)

    def led_where(self, trunk: Trunk) -> bool:
        """Return True if it led to the wiring to which a trunk leads."""
        return self.carrier is not None and self.carrier.leads_where(trunk)

    def leads_to(self, queue: str) -> bool:
        """Return whether it brings messages to a queue, or is being opened for it."""
        return queue in self.joins or any(each.queue == queue for each in self.opening)

    @property
    def promised(self) -> int:
        """The number before which all messages come by this pipe, or are missing; what waits may go by another one yet."""
        return self.outlet.sent if self.exchange.style is Style.BALANCE else self.outlet.next

    def pump(self) -> None:
        """Send what waits, as far as the other end has room and the trunk takes it."""
        outlet = self.outlet
        trunk = self.trunk
        if trunk is None or not outlet.up:
            return
        while trunk.writable:
            chunk = outlet.take()
            if chunk is None:
                break
            trunk.send_data(self, chunk)
            if not outlet.waiting:
                break
        else:
            trunk.starve(self)
            return
        if outlet.tail:
            trunk.send_mark(self, outlet.mark())
        if self.ending and outlet.empty:
            self.exchange.ended(self)
        elif self.exchange.drainers:
            self.exchange.drained()

    def credited(self, taken: int) -> None:
        """The other end has room again."""
        if self.outlet.credit(taken):
            self.pump()
            if self.exchange.waiters:
                self.exchange.room_changed()

    def lost(self) -> None:
        """The other end is gone, for now at least: the exchange is to be told that its pipes changed."""
        self.trunk = None
        self.starved = False
        self.outlet.lost()
        base = self.outlet.taken
        for join in (*self.joins.values(), *self.also):
            if join.up:
                join.up = False
                join.base = base
        if self.ending:
            self.exchange.count_unconfirmed(self.outlet.give_up())
            self.exchange.take_back(self)
            self.exchange.ended(self)
        elif self.exchange.style is Style.BALANCE and not self.outlet.empty:
            self.exchange.stranded[self] = None

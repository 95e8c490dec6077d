"""A pipe at the exchange's end: an outlet, the queues that are bound by it, and the trunk that carries it."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """

    __slots__ = ("base", "everywhere", "exchange", "pipe", "queue", "up")

    def __init__(self, exchange: Exchange, queue: str) -> None:
        self.exchange = exchange
        self.queue = queue
        self.everywhere = False
        self.pipe: Pipe | None = None
        self.base = 0
        self.up = False


class Pipe:
    """One pipe.

    Attributes:
        exchange: Where it begins.
        number: What both ends call it, in one run of its owner.
        outlet: Its state.
        trunk: Where it leads now; None where that is lost.
        run: The run of the wiring where it leads, or led.
        handle: What the other end calls it.
        joins: The queues that it brings messages to, by name.
        also: Further joins of these, where more than one bound the same queue.
        ending: Whether it only sends what waits.
    """

    __slots__ = (
        "also",
        "ending",
        "exchange",
        "handle",
        "joins",
        "number",
        "opening",
        "outlet",
        "run",
        "starved",
        "trunk",
    )

    def __init__(self, exchange: Exchange, number: int, outlet: Outlet) -> None:
        self.exchange = exchange
        self.number = number
        self.outlet = outlet
        self.trunk: Trunk | None = None
        self.run = b""
        self.handle = 0
        self.joins: dict[str, Join] = {}
        self.also: list[Join] = []
        self.ending = False
        #: How many queues are being bound by it just now.
        self.opening = 0
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
        for other in self.also:
            if other.queue == join.queue:
                self.also.remove(other)
                self.joins[join.queue] = other
                return False
        return True

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
        """The other end is gone, for now at least."""
        self.trunk = None
        self.starved = False
        self.outlet.lost()
        base = self.outlet.taken
        for join in (*self.joins.values(), *self.also):
            if join.up:
                join.up = False
                join.base = base
        if self.ending:
            self.exchange.take_back(self)
            self.exchange.ended(self)
        else:
            self.exchange.pipe_changed()

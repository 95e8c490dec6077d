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
    """A queue bound to an exchange, at the exchange's end.

    Attributes:
        exchange: The exchange.
        queue: The name of the queue.
        everywhere: True if the queue's scope is GLOBAL, so that its name denotes one queue only.
        pipe: The pipe to the queue; None before it is first opened.
        base: The number before which the queue's owner had taken all messages when the pipe was lost.
        up: True while the queue's owner has the pipe open.
        asker: The trunk over which the queue's owner requested it; None if it did not.
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
    """A pipe, at the exchange's end.

    Attributes:
        exchange: The exchange.
        number: Its number at both ends, in one run of its owner.
        outlet: Its sending half.
        trunk: The trunk that carries it; None while that is lost.
        carrier: The trunk that carries it, or carried it last; None before the first one.
        run: The run of the wiring at its other end, now or last.
        handle: Its handle at the other end.
        joins: Its queues, by name.
        also: Further joins of these queues, if several bindings have the same queue.
        disputed: True if the other end was asked on opening whether another pipe leads there.
        ending: True while it only sends waiting messages.
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
        #: Name of its queue, if its exchange balances.
        self.queue = ""
        #: Joins for which it is being opened.
        self.opening: list[Join] = []
        #: Name of the queue that left last.
        self._left: tuple[str, ...] = ()
        #: True while it waits for its trunk to become writable.
        self.starved = False

    def add(self, join: Join) -> None:
        """Add a queue to its receivers."""
        if self.joins.setdefault(join.queue, join) is not join and join not in self.also:
            self.also.append(join)

    def drop(self, join: Join) -> bool:
        """Remove a join; return True if its queue has no other join."""
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
        """The names of the queues that received the messages sent: its receivers, or the queue that left last."""
        return tuple(self.joins) or self._left or tuple(each.queue for each in self.opening)

    def led_where(self, trunk: Trunk) -> bool:
        """Return True if it led to the wiring to which a trunk leads."""
        return self.carrier is not None and self.carrier.leads_where(trunk)

    def leads_to(self, queue: str) -> bool:
        """Return whether it brings messages to a queue, or is being opened for it."""
        return queue in self.joins or any(each.queue == queue for each in self.opening)

    @property
    def promised(self) -> int:
        """The number before which all messages arrive by this pipe, or are missing.

        With `Style.BALANCE`, waiting messages may still be given to another pipe.
        """
        return self.outlet.sent if self.exchange.style is Style.BALANCE else self.outlet.next

    def pump(self) -> None:
        """Send waiting messages, as far as the other end has room and the trunk is writable."""
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
        """Process credit of the other end."""
        if self.outlet.credit(taken):
            self.pump()
            if self.exchange.waiters:
                self.exchange.room_changed()

    def lost(self) -> None:
        """Detach the trunk, which is lost; the caller tells the exchange that its pipes changed."""
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

"""A pipe at the queues' end: an inlet, and the trunk that carries it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from redpoll.wiring.inlet import Inlet
from redpoll.wiring.limits import Limits

if TYPE_CHECKING:
    from redpoll.wiring.trunk import Trunk

__all__ = ["TELL_AFTER", "Port"]

#: Seconds after which the other end is told what was taken, where that is too little to be told at once.
TELL_AFTER = 0.05


class Port:
    """One pipe that ends here.

    Attributes:
        inlet: Its state.
        number: What both ends call the pipe, in one run of its owner.
        run: That run.
        identity: Of who opened it.
        handle: What this end calls it.
        trunk: What brings it now; None where that is lost.
        quiet: Whether the other end is not told what is taken: it is about to be told more than that.
        lost_at: When it was lost, on the loop's clock.
    """

    __slots__ = (
        "_loop",
        "_timer",
        "_widen",
        "handle",
        "identity",
        "inlet",
        "lost_at",
        "number",
        "quiet",
        "run",
        "trunk",
    )

    def __init__(
        self,
        exchange: str,
        key: tuple[str, ...],
        first: int,
        limits: Limits,
        trunk: Trunk,
        number: int,
        handle: int,
        widen: Callable[[Port], None],
    ) -> None:
        self.inlet = Inlet(exchange, key, first, limits, self._freed)
        self.inlet.owner = self
        self.number = number
        self.run = trunk.run
        self.identity = trunk.identity
        self.handle = handle
        self.trunk: Trunk | None = trunk
        self.quiet = False
        self.lost_at = 0.0
        #: Called once the other end may have to be told of more room, as a queue left.
        self._widen = widen
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def _freed(self) -> None:
        """More was taken: tell it now if that is much, else soon."""
        if self.trunk is None or self.quiet:
            return
        if self.inlet.due:
            self.tell()
        elif self._timer is None:
            self._timer = self._loop.call_later(TELL_AFTER, self._tell_late)

    def _tell_late(self) -> None:
        self._timer = None
        if self.inlet.taken > self.inlet.told:
            self.tell()

    def tell(self) -> None:
        """Tell the other end what was taken."""
        if self.trunk is not None:
            self.trunk.send_credit(self.number, self.inlet.tell())
            if self.inlet.shrunk and self.inlet.sources:
                self._widen(self)

    def lose(self) -> None:
        """What brought it is gone."""
        self.trunk = None
        self.lost_at = self._loop.time()
        self.stop()

    def stop(self) -> None:
        """Tell nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

"""A pipe at the queues' end: its receiving half, and the trunk that carries it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from redpoll.wiring.inlet import Inlet
from redpoll.wiring.limits import Limits

if TYPE_CHECKING:
    from redpoll.wiring.trunk import Trunk

__all__ = ["TELL_AFTER", "Port"]

#: Seconds after which the other end is sent a small credit.
TELL_AFTER = 0.05


class Port:
    """A pipe, at the queues' end.

    Attributes:
        inlet: Its receiving half.
        number: Its number at both ends, in one run of its owner.
        run: That run.
        identity: The identity of the wiring that opened it.
        handle: Its handle at this end.
        trunk: The trunk that carries it; None while that is lost.
        quiet: True while credit is held back, as a word with more information is about to be sent.
        lost_at: Time when the trunk was lost, on the loop's clock.
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
        #: Called when the other end may have to be granted more, as a queue has left.
        self._widen = widen
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def _freed(self) -> None:
        """Send credit to the other end: now if it is much, else soon."""
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
        """Send credit to the other end."""
        if self.trunk is not None:
            self.trunk.send_credit(self.number, self.inlet.tell())
            if self.inlet.shrunk and self.inlet.sources:
                self._widen(self)

    def lose(self) -> None:
        """Detach the trunk, which is lost."""
        self.trunk = None
        self.lost_at = self._loop.time()
        self.stop()

    def stop(self) -> None:
        """Send no more credit."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

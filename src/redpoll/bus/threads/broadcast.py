"""Broadcasts, for threads."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Self

from redpoll.blocking.iteration import Iteration
from redpoll.blocking.verbs import Attribute, Face, verb
from redpoll.bus.broadcast import Broadcast, Broadcasts, BroadcastSubscription
from redpoll.bus.records import QueueSpec
from redpoll.bus.threads.home import Home, Running
from redpoll.checks import is_async

__all__ = ["BlockingBroadcasts", "BlockingSubscription"]


class BlockingSubscription(Running[BroadcastSubscription]):
    """Takes broadcasts while it is open: see `redpoll.bus.BroadcastSubscription`.

    It is iterated by any number of threads, each broadcast goes to one of them.
    """

    def __init__(self, home: Home, target: BroadcastSubscription) -> None:
        super().__init__(home, target)
        self._iteration: Iteration[Broadcast] | None = None

    delivered = Attribute[int]()
    """Broadcasts that were handed over."""

    failed = Attribute[int]()
    """Broadcasts that the callback failed with, or that could not be read."""

    dropped = Attribute[int]()
    """Broadcasts that were lost here because they were taken too slowly."""

    def start(self) -> Self:
        """Begin to take broadcasts. See `redpoll.bus.BroadcastSubscription.start`."""
        return self.__enter__()

    def __iter__(self) -> Self:
        """Return itself; there is one iteration."""
        return self

    def __next__(self) -> Broadcast:
        """Wait for the next broadcast; Ctrl-C loses none."""
        if self._iteration is None:
            self._iteration = self._home.iterate(self._target)
        # Not by `next`, at whose end Ctrl-C may come in.
        return self._iteration.__next__()


class BlockingBroadcasts(Face[Broadcasts]):
    """Sends broadcasts, and lets them be received: see `redpoll.bus.Broadcasts`."""

    _home: Home

    send = verb(Broadcasts.send)
    forget = verb(Broadcasts.forget)

    def subscribe(
        self,
        callback: Callable[[Broadcast], object] | None = None,
        *,
        subject: str | Sequence[str] | re.Pattern[str] | None = None,
        sender: Any = None,
        where: Callable[[Broadcast], bool] | None = None,
        last: bool = False,
        durable: str | QueueSpec | None = None,
        buffer: int = 1_000,
    ) -> BlockingSubscription:
        """Make a subscription. See `redpoll.bus.Broadcasts.subscribe`.

        Args:
            callback: A plain function, which is called in a thread with one broadcast after the other, and may call the bus;
                or a coroutine function, which runs on the loop. Without it, iterate.
            subject: As there, as is all that follows. `where` is called on the loop.
            sender: As there.
            where: As there.
            last: As there.
            durable: As there.
            buffer: As there.
        """
        if callable(callback) and not is_async(callback):
            callback = self._home.in_thread(callback)
        made = self._target.subscribe(
            callback, subject=subject, sender=sender, where=where, last=last, durable=durable, buffer=buffer
        )
        return BlockingSubscription(self._home, made)

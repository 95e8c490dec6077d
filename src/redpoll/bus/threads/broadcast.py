"""Broadcasts, for threads."""

from __future__ import annotations

from typing import Any, Self

from redpoll.blocking.iteration import Iteration
from redpoll.blocking.verbs import Attribute, Face, maker, verb
from redpoll.bus.broadcast import Broadcast, Broadcasts, BroadcastSubscription
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


def _subscription(home: Any, made: BroadcastSubscription) -> BlockingSubscription:
    callback = made.callback
    if callback is not None and not is_async(callback):
        made.callback = home.in_thread(callback)
    return BlockingSubscription(home, made)


class BlockingBroadcasts(Face[Broadcasts]):
    """Sends broadcasts, and lets them be received: see `redpoll.bus.Broadcasts`.

    A callback that is a plain function is called in a thread with one broadcast after the other, and may call the bus; a
    coroutine function runs on the loop, as a function that is given as `where` does.
    """

    send = verb(Broadcasts.send)
    forget = verb(Broadcasts.forget)

    subscribe = maker(Broadcasts.subscribe, _subscription)

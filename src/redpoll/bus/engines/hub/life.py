"""Signs of life: a thread of this process tells the hubs of its workers that they live.

A handler that computes on the event loop for a minute keeps it from answering the hub's pings; this thread has a link of
its own to each hub. A frozen process, or a call that keeps the interpreter lock, stops it as well.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from redpoll.address import Address
from redpoll.bus.engines.hub import protocol as p
from redpoll.config import Config
from redpoll.message import Message
from redpoll.node import Node
from redpoll.platforms import after_fork

__all__ = ["Life", "life"]

#: Seconds between two signs, of each that a keep-alive has.
_SHARE: Final = 0.4
#: The keep-alive, in seconds, of a node without one.
_LONG: Final = 5.0


class Life:
    """The members of hubs in this process that live, and the thread that says so while there are any."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[Address, Config]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wake: Callable[[], object] | None = None

    def add(self, name: str, address: Address, config: Config) -> None:
        """Send signs of a member to the hub at an address, with the options of its node."""
        with self._changed:
            self._members[name] = address, config
            if self._thread is None:
                self._wake = None
                self._thread = threading.Thread(target=self._run, name="redpoll life", daemon=True)
                self._thread.start()

    def remove(self, name: str) -> None:
        """Send none any more; the thread has ended with the last member when this returns."""
        with self._changed:
            known = self._members.pop(name, None)
            thread = self._thread
            if known is None or self._members or thread is None:
                return
            self._thread = None
            self._changed.notify()
            if self._wake is not None:
                self._wake()
        thread.join()

    @property
    def _period(self) -> float:
        return _SHARE * min((config.keepalive or _LONG for _, config in self._members.values()), default=_LONG)

    def _run(self) -> None:
        own = threading.current_thread()
        with self._changed:
            # Most engines of short programs have ended by then.
            if self._changed.wait_for(lambda: self._thread is not own, self._period):
                return
        asyncio.run(self._beat(own))

    async def _beat(self, own: threading.Thread) -> None:
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        nodes: dict[tuple[Address, Config], Node[Any]] = {}
        try:
            while True:
                with self._changed:
                    if self._thread is not own:
                        return
                    self._wake = partial(loop.call_soon_threadsafe, over.set)
                    groups: dict[tuple[Address, Config], list[str]] = {}
                    for name, where in self._members.items():
                        groups.setdefault(where, []).append(name)
                    period = self._period
                for where, names in groups.items():
                    node = nodes.get(where)
                    if node is None:
                        node = nodes[where] = Node(_ignore, where[1])
                        await node.start()
                    for name in names:
                        ((body, _),) = p.pack([[p.ALIVE, name]])
                        node.send(Message(body, where[0]), timeout=period).add_done_callback(_sent)
                with suppress(TimeoutError):
                    async with asyncio.timeout(period):
                        await over.wait()
        finally:
            for node in nodes.values():
                await node.stop(0)


def _sent(future: asyncio.Future[None]) -> None:
    """Pass over a sign that was not sent: the next one is soon."""
    if not future.cancelled():
        future.exception()


def _ignore(_: object) -> None:
    """Pass over what the hub says, which takes this for a client."""


life: Final = Life()
"""That of this process."""


after_fork(life.__init__)  # type: ignore[misc]  # the threads of the parent are not here

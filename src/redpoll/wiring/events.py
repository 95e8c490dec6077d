"""What a wiring tells those who want to know: hooks, called on the loop as things happen."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from redpoll.errors import RedpollError, UsageError

if TYPE_CHECKING:
    from redpoll.wiring.binding import Binding
    from redpoll.wiring.exchange import Exchange
    from redpoll.wiring.gap import Gap
    from redpoll.wiring.queue import Queue

__all__ = ["WiringEvents"]

_logger = logging.getLogger("redpoll.wiring")


class WiringEvents:
    """The hooks of a wiring: assign a function to one.

    Hooks are plain functions, called on the event loop; they must return soon. One that raises is logged and does no
    harm. What each is called with:

    - `gap(queue, gap)`: messages are missing in a queue.
    - `unconfirmed(exchange, queues, count)`: the owner of queues, a tuple of names, is gone, or took the queue away, and had
      not said that it took so many messages which were sent to it: they may be lost. `ExchangeStats.unconfirmed` counts them.
    - `pipe_up(binding)`: a binding is wired, for the first time or again.
    - `pipe_lost(binding, error)`: a binding lost an owner, or is not wired yet, and why; it is tried again.
    - `directory_lost(error)`: the directory does not answer; what is wired goes on.
    - `directory_back()`: it answers again, and knows the names of this wiring.
    - `taken(kind, name, error)`: a `GLOBAL` name of this wiring, of kind "exchange" or "queue", is another's now: a later
      run with the same identity has it, or one who came while this wiring was out of reach for longer than the lease. What
      is wired goes on until the other is wired to it. The name is asked for again and again, in vain while the other lives.
    """

    NAMES = ("gap", "unconfirmed", "pipe_up", "pipe_lost", "directory_lost", "directory_back", "taken")
    __slots__ = NAMES

    gap: Callable[[Queue, Gap], object] | None
    unconfirmed: Callable[[Exchange, tuple[str, ...], int], object] | None
    pipe_up: Callable[[Binding], object] | None
    pipe_lost: Callable[[Binding, RedpollError], object] | None
    directory_lost: Callable[[RedpollError], object] | None
    directory_back: Callable[[], object] | None
    taken: Callable[[str, str, RedpollError], object] | None

    def __init__(self) -> None:
        for name in self.NAMES:
            setattr(self, name, None)

    def tell(self, name: str, *arguments: Any) -> None:
        """Call a hook, if there is one.

        Raises:
            UsageError: There is none of that name.
        """
        if name not in self.NAMES:
            raise UsageError(f"no hook is called {name!r}", f"there are {', '.join(self.NAMES)}")
        hook = getattr(self, name)
        if hook is None:
            return
        try:
            hook(*arguments)
        except Exception:
            _logger.exception("the hook %s raised", name)

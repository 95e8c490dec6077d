"""The hooks of a wiring."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from redpoll.errors import RedpollError, UsageError
from redpoll.node.hooks import log_raised
from redpoll.node.reports import Repeated

if TYPE_CHECKING:
    from redpoll.wiring.binding import Binding
    from redpoll.wiring.exchange import Exchange
    from redpoll.wiring.names import Gap
    from redpoll.wiring.queue import Queue

__all__ = ["WiringEvents"]

_logger = logging.getLogger("redpoll.wiring")


class WiringEvents:
    """The hooks of a wiring: assign a function to one.

    Hooks are plain functions, called on the event loop; they must return soon. Exceptions are logged. The hooks
    and their arguments:

    - `gap(queue, gap)`: messages are missing in a queue.
    - `unconfirmed(exchange, queues, count)`: the owner of the named queues is lost, or deleted them, and had not confirmed
      `count` messages: they may be lost. `ExchangeStats.unconfirmed` counts them.
    - `pipe_up(binding)`: a binding is up, for the first time or again.
    - `pipe_lost(binding, error)`: a binding lost an owner, or cannot be established; it is retried.
    - `directory_lost(error)`: the directory does not answer; existing bindings stay up.
    - `directory_back()`: the directory answers again, and has the names of this wiring.
    - `taken(kind, name, error)`: a `GLOBAL` name of this wiring, of kind "exchange" or "queue", now belongs to another owner:
      a later run with the same identity, or one that registered it while this wiring was unreachable for longer than the
      lease. Existing bindings stay up until they move to the new owner. This wiring keeps requesting the name.
    """

    NAMES = ("gap", "unconfirmed", "pipe_up", "pipe_lost", "directory_lost", "directory_back", "taken")
    __slots__ = (*NAMES, "_raised")

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
        self._raised = {name: Repeated(partial(log_raised, name, logger=_logger)) for name in self.NAMES}

    def close(self) -> None:
        """Log what is left: the wiring was closed."""
        for each in self._raised.values():
            each.close()

    def tell(self, name: str, *arguments: Any) -> None:
        """Call a hook, if it is set.

        Raises:
            UsageError: There is no hook of that name.
        """
        if name not in self.NAMES:
            raise UsageError(f"there is no hook {name!r}", f"the hooks are {', '.join(self.NAMES)}")
        hook = getattr(self, name)
        if hook is None:
            return
        try:
            hook(*arguments)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # a hook may raise anything
            self._raised[name].note(error)

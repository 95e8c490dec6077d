"""From inbox to handler: begins messages as slots allow, runs the handler, and ends each message by how that went."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from redpoll.errors import Cancelled, HandlerFailed, SendError
from redpoll.transport.connection import EARLY_FLUSH
from redpoll.wire.link import Link
from redpoll.wire.output import OUTPUT_LIMIT
from redpoll.wire.peer import Peer
from redpoll.wire.slots import Slots
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    from redpoll.node.peers import Peers
    from redpoll.node.received import Received

__all__ = ["MAX_HANDLERS_PER_TURN", "MAX_SECONDS_PER_TURN", "Dispatcher"]

#: At most so many handlers start, or so many seconds go by, before the loop gets its turn.
MAX_HANDLERS_PER_TURN = 256
MAX_SECONDS_PER_TURN = 0.001

#: After so many the output and the clock are looked at.
_LOOK_EVERY = 16

_EAGER = sys.version_info >= (3, 12)

_logger = logging.getLogger("redpoll.node")


class Dispatcher:
    """Runs one node's handler.

    Peers take turns where the node's slots are short. A coroutine starts at once (eagerly, from Python 3.12 on), each
    handler in its own copy of the context that the node was started in: links are read in that of whoever dialled.
    """

    def __init__(self, handler: Callable[[Any], Any], peers: Peers, loop: asyncio.AbstractEventLoop) -> None:
        self._handler = handler
        self._peers = peers
        self._ends = peers.ends
        self._loop = loop
        self._new_context = copy_context().copy
        self._tasks: dict[asyncio.Task[Any], Received[Any]] = {}
        self._is_async = _is_coroutine_function(handler)
        self._raw = peers.raw
        self._releasing = peers.config.auto_release is not False
        #: Peers whose messages wait for their turn, in order.
        self._waiting: dict[Peer, None] = {}
        self._scheduled = False

    @property
    def tasks(self) -> dict[asyncio.Task[Any], Received[Any]]:
        """Handlers in progress, and the message that each of them has."""
        return self._tasks

    def arrived(self, peer: Peer, now: float) -> None:
        """Messages of a peer wait: begin what may be begun."""
        if self._scheduled:
            self._waiting[peer] = None
            return
        if self._run(peer, now):
            self._waiting[peer] = None
            self._schedule()

    def freed(self, peer: Peer) -> None:
        """A slot came free outside of `arrived()`: more may be begun, of this peer and of those that the node held."""
        if peer.slots.inbox:
            self._waiting[peer] = None
        if self._waiting:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        now = self._loop.time()
        waiting = list(self._waiting)
        self._waiting.clear()
        pool = self._peers.pool
        share = max(1, min(MAX_HANDLERS_PER_TURN, pool.free) // max(1, len(waiting)))
        for number, peer in enumerate(waiting):
            if pool.free <= 0:
                # Who had no turn comes first in the next one, before those that had.
                self._waiting = dict.fromkeys((*waiting[number:], *self._waiting))
                return
            if self._run(peer, now, share):
                self._waiting[peer] = None
            self._peers.after_dispatch(peer)
        if self._waiting and pool.free > 0:
            self._schedule()

    def _run(self, peer: Peer, now: float, most: int = MAX_HANDLERS_PER_TURN) -> bool:
        """Begin messages of one peer; True if more could have been begun, but others have to have their turn."""
        slots = peer.slots
        if any(link.owner.outflow.backed_up for link in peer.links):
            # It asks and does not read the answers: when it does, `freed` is called.
            return False
        if not (self._run_coroutines if self._is_async else self._run_plain)(slots, now, most):
            return bool(slots.inbox)
        # With a slot of its own free, what still waits waits for a slot of the node.
        return bool(slots.inbox) and slots.running < slots.limit

    def _run_coroutines(self, slots: Slots, now: float, most: int) -> bool:
        """Start coroutines; False if the turn is over before slots or messages are."""
        for number in range(most):
            message: Any = slots.begin(now)
            if message is None:
                return True
            if self._raw or self._ends.readable(message):
                try:
                    coroutine = self._handler(message)
                except Exception as error:  # noqa: BLE001  # whatever a handler raises ends its message
                    self.failed(message, error)
                else:
                    self._start(message, coroutine, self._new_context())
            if _has_much(message.link) and self._over(message.link, number, most, now):
                return False
            if number % _LOOK_EVERY == _LOOK_EVERY - 1 and self._loop.time() - now > MAX_SECONDS_PER_TURN:
                return False
        return False

    def _run_plain(self, slots: Slots, now: float, most: int) -> bool:
        """Call a plain function on message after message, all in one slot as long as each has ended when it returns."""
        handler = self._handler
        new_context = self._new_context
        readable = None if self._raw else self._ends.readable
        releasing = self._releasing
        inbox = slots.inbox
        message: Any = slots.begin(now)
        # Places of unacknowledged messages of one link, which come back in one go.
        link = None
        count = size = 0
        number = 0
        look = min(most, _LOOK_EVERY)
        while message is not None:
            number += 1
            if readable is not None and not readable(message):
                message = slots.begin(now)
                continue
            context = new_context()
            try:
                result = context.run(handler, message)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # as above
                self.failed(message, error)
                message = slots.begin(now)
                continue
            frame = message.frame
            own_slot = result is not None or message.phase or not releasing
            if own_slot:
                link_of = message.link
                self._returned(message, result, context)
            elif frame[4] or message.link is not link:
                link_of = message.link
                if frame[4] or link_of.state is not LinkState.OPEN:
                    slots.finish(message)
                else:
                    slots.credit(link, count, size)
                    link = link_of
                    message.phase = 1
                    count, size = 1, frame[2]
            else:
                link_of = link
                message.phase = 1
                count += 1
                size += frame[2]
            if number >= look or (own_slot and (link_of.transfers or link_of.out_bytes > OUTPUT_LIMIT)):
                look = min(most, number + _LOOK_EVERY)
                if self._over(link_of, number, most, now):
                    if not own_slot:
                        slots.leave()
                    break
            if own_slot:
                message = slots.begin(now)
            elif inbox and not slots.irregular:
                message = inbox.popleft()
            else:
                message = slots.next(now)
        slots.credit(link, count, size)
        return message is None

    def _over(self, link: Link, number: int, most: int, now: float) -> bool:
        """Let output leave while more is made; whether the turn is over, or the other end takes nothing more."""
        if len(link.out) >= EARLY_FLUSH or _has_much(link):
            link.owner.flush()
            if link.owner.outflow.backed_up:
                return True
        return number >= most or self._loop.time() - now > MAX_SECONDS_PER_TURN

    def _returned(self, message: Received[Any], result: Any, context: Context) -> None:
        """A plain function returned something, or ended its message itself, or is not to have it ended."""
        if type(result) is not bytes and inspect.isawaitable(result):
            self._start(message, result, context)
        else:
            self.finish(message, result)

    def _start(self, message: Received[Any], coroutine: Any, context: Context) -> None:
        if not inspect.iscoroutine(coroutine):
            coroutine = _awaiting(coroutine)
        if _EAGER:
            # mypy reads it as of 3.11.
            task = asyncio.Task(coroutine, loop=self._loop, eager_start=True, context=context)  # type: ignore[call-arg]
            if task.done():
                self._done(message, task)
                return
        else:
            task = self._loop.create_task(coroutine, context=context)
        message._run_by(task)
        self._tasks[task] = message
        task.add_done_callback(partial(self._done, message))

    def _done(self, message: Received[Any], task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            self.failed(message, asyncio.CancelledError())
        else:
            error = task.exception()
            if error is None:
                self.finish(message, task.result())
            else:
                self.failed(message, error)

    def finish(self, message: Received[Any], result: Any) -> None:
        """The handler returned: send back what it returned if that is wanted, and release."""
        if result is None:
            if not message.phase:
                self._ends.handled(message)
            return
        try:
            self._ends.answer(message, result)
        except Exception as error:  # noqa: BLE001  # a serializer may be anybody's
            self.failed(message, error)

    def failed(self, message: Received[Any], error: BaseException) -> None:
        """The handler raised: refuse."""
        if isinstance(error, asyncio.CancelledError) and self._peers.stopping:
            self._ends.refuse(message, Cancelled.code, "the node stopped while it was handled")
            return
        if isinstance(error, SendError):
            # A hop further on failed: its text names that hop, not this one.
            self._ends.refuse(message, HandlerFailed.code, str(error))
        else:
            message._refuse_for(error)
        if not isinstance(error, asyncio.CancelledError):
            self._ends.handler_failed(message, error)


def _has_much(link: Link) -> bool:
    """Whether there is much output, or a large answer came last that waits apart from it."""
    return link.out_bytes > OUTPUT_LIMIT or (bool(link.transfers) and link.transfers[-1].answer)


def _is_coroutine_function(handler: Callable[..., Any]) -> bool:
    while isinstance(handler, partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


async def _awaiting(awaitable: Any) -> Any:
    return await awaitable

"""From inbox to handler: begins messages as slots allow, runs the handler, and ends each message by its outcome."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
from asyncio import Task
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from time import monotonic
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Protocol

from redpoll.checks import call_problem, is_async
from redpoll.errors import Cancelled, HandlerFailed, SendError, UsageError
from redpoll.transport.writing import EARLY_FLUSH
from redpoll.wire.frames import ACK, WANTED
from redpoll.wire.link import Link
from redpoll.wire.output import OUTPUT_LIMIT
from redpoll.wire.peer import Peer
from redpoll.wire.slots import Slots
from redpoll.wire.states import LinkState

if TYPE_CHECKING:
    from redpoll.node.completion import Completion
    from redpoll.node.received import ReceivedMessage
    from redpoll.wire.slots import SlotPool

__all__ = ["MAX_HANDLERS_PER_TURN", "MAX_SECONDS_PER_TURN", "Dispatcher", "TurnDispatcher", "check_handler"]

#: Maximum handlers started, and maximum time in seconds, before the event loop gets its turn.
MAX_HANDLERS_PER_TURN = 256
MAX_SECONDS_PER_TURN = 0.001

#: The output and the clock are examined every so many messages.
_CHECK_EVERY = 16

#: Interval in seconds at which the loop is checked while handlers run, and the lag in seconds that means that one
#: blocked it.
_WATCH_EVERY = 0.5
_BLOCKED = 1.0


_EAGER = sys.version_info >= (3, 12)

# In place of the result of a handler: it is still running; or its message was refused.
_RUNNING: Any = object()
_ENDED: Any = object()

_logger = logging.getLogger("redpoll.node")


class _Owner(Protocol):
    """The peers of a node, as a dispatcher uses them."""

    raw: bool
    stopping: bool
    completion: Completion
    pool: SlotPool
    loop: asyncio.AbstractEventLoop

    def after_dispatch(self, peer: Peer) -> None:
        """Write what a turn of the dispatcher, outside of reading, produced."""


class Dispatcher:
    """Runs one node's handler.

    Peers take turns where the slots of the node run short. A coroutine starts at once (eagerly, from Python 3.12 on),
    each handler in its own copy of the context that the node was started in, not that of the task that dialled the
    link.

    Args:
        handler: The handler of the node.
        owner: The peers whose messages it handles.
        hand_out: Wraps a message for a handler that has to end it; None where the end of the handler ends it.
        releasing: Whether the end of the handler ends its message.
        watched: Whether to warn, once, when the loop blocks while messages are being handled.

    Attributes:
        tasks: The running handlers, and the message of each.
        claiming: Whether anything begins what waits: as of consumers, of which there may be none.
    """

    claiming = True

    def __init__(
        self,
        handler: Callable[[Any], Any],
        owner: _Owner,
        *,
        hand_out: Callable[[Any], Any] | None = None,
        releasing: bool = True,
        watched: bool = True,
    ) -> None:
        self._handler = handler
        self._owner = owner
        self._completion = owner.completion
        self._pool = owner.pool
        self._loop = owner.loop
        self._new_context = copy_context().copy
        self.tasks: dict[asyncio.Task[Any], ReceivedMessage[Any]] = {}
        self._is_async = is_async(handler)
        self._raw = owner.raw
        self._releasing = releasing
        self._hand_out = None if releasing else hand_out
        #: Peers whose messages wait for their turn, in order.
        self._waiting: dict[Peer, None] = {}
        self._scheduled = False
        #: True if a check of the loop is scheduled, or none is needed; its start, and its timer.
        self._watches = not watched
        self._watched_at = 0.0
        self._watch: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Stop watching the loop: the node stopped."""
        self._watches = True
        if self._watch is not None:
            self._watch.cancel()

    def arrived(self, peer: Peer, now: float) -> None:
        """Begin the messages of a peer as far as slots allow."""
        if self._scheduled:
            self._waiting[peer] = None
            return
        if self._run(peer, now):
            self._waiting[peer] = None
            self._schedule()

    def freed(self, peer: Peer) -> None:
        """Begin more messages, of this peer and of waiting ones: a slot was freed outside of `arrived()`."""
        if peer.slots.inbox:
            self._waiting[peer] = None
        if self._waiting:
            self._schedule()

    def forget(self, peer: Peer) -> None:
        """Forget a peer, of which no message waits."""
        self._waiting.pop(peer, None)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        now = self._loop.time()
        waiting = list(self._waiting)
        self._waiting.clear()
        pool = self._pool
        share = max(1, min(MAX_HANDLERS_PER_TURN, pool.free) // max(1, len(waiting)))
        for number, peer in enumerate(waiting):
            if pool.free <= 0:
                # Peers that had no turn come first in the next one, before those that had.
                self._waiting = dict.fromkeys((*waiting[number:], *self._waiting))
                return
            if self._run(peer, now, share):
                self._waiting[peer] = None
            self._owner.after_dispatch(peer)
        if self._waiting and pool.free > 0:
            self._schedule()

    def _run(self, peer: Peer, now: float, most: int = MAX_HANDLERS_PER_TURN) -> bool:
        """Begin messages of one peer; return True if more could begin, but other peers have their turn."""
        slots = peer.slots
        if not self._watches:
            self._begin_watch()
        for link in peer.links:
            if not link.writable and link.connection.backpressure.backed_up:
                # The peer sends requests and does not read the answers: `freed` is called when it does.
                return False
        if not self._run_handlers(slots, now, most):
            return bool(slots.inbox)
        # The peer has a free slot, so its messages wait for a slot of the node.
        return bool(slots.inbox) and slots.running < slots.limit

    def _begin_watch(self) -> None:
        self._watches = True
        self._watched_at = monotonic()
        self._watch = self._loop.call_later(_WATCH_EVERY, self._check_lag)

    def _check_lag(self) -> None:
        """Warn if the loop ran its timers very late: something blocked it."""
        late = monotonic() - self._watched_at - _WATCH_EVERY
        if late >= _BLOCKED:
            _logger.warning(
                "the event loop was blocked for at least %.1f s while %s, which stalls the whole"
                " node: await blocking calls, or run them in threads (asyncio.to_thread, redpoll.blocking.PoolNode)",
                late,
                self._busy_with(),
            )
            return
        self._watches = False
        if self.tasks:
            self._begin_watch()

    def _busy_with(self) -> str:
        return f"the handler {_name(self._handler)} had messages"

    def _run_handlers(self, slots: Slots, now: float, most: int) -> bool:
        """Handle messages one after another, in one slot as long as each has ended when its handler returns.

        Returns:
            False if the turn ends while slots and messages are left.
        """
        handler = self._handler
        is_async = self._is_async
        loop = self._loop
        new_context = self._new_context
        readable = None if self._raw else self._completion.readable
        releasing = self._releasing
        hand_out = self._hand_out
        # The handler's handle on a message that it has to end; kept until the handler's end is processed.
        given = None
        inbox = slots.inbox
        message: Any = slots.begin(now)
        # Window places of unacknowledged messages of one link, returned together.
        link = None
        count = size = 0
        number = 0
        next_check = min(most, _CHECK_EVERY)
        while message is not None:
            number += 1
            try:
                if readable is not None and not readable(message):
                    result = _ENDED
                else:
                    context = new_context()
                    result = context.run(handler, message if hand_out is None else (given := hand_out(message)))
                    if is_async or (result is not None and type(result) is not bytes and inspect.isawaitable(result)):
                        if _EAGER and type(result) is CoroutineType:
                            # As `_start` does. mypy checks for 3.11.
                            task = Task(result, loop=loop, eager_start=True, context=context)  # type: ignore[call-arg]
                            result = task.result() if task.done() else self._running(task, message, given)
                        else:
                            result = self._start(message, result, context, given)
                in_slot = releasing and not message.phase
                if result is not None and in_slot:
                    in_slot = result is not _RUNNING and self._completion.answer_at_once(slots, message, result)
            except BaseException as error:  # noqa: BLE001  # whatever a handler raises ends its message
                self.failed(message, error)
                self._pass_on(error)
                result, in_slot = _ENDED, False
            link_of = message.link
            if not in_slot:
                if result is not _RUNNING and result is not _ENDED:
                    self.finish(message, result)
            elif result is None:
                frame = message.frame
                if frame[4] or link_of.state is not LinkState.OPEN:
                    slots.finish(message, self._completion.unanswered(message) if frame[4] & WANTED else ACK)
                else:
                    if link_of is not link:
                        slots.credit(link, count, size)
                        link = link_of
                        count = size = 0
                    message.phase = 1
                    count += 1
                    size += frame[2]
            if number >= next_check or link_of.transfers or link_of.output_size > OUTPUT_LIMIT:
                next_check = min(most, number + _CHECK_EVERY)
                if self._over(link_of, number, most, now):
                    if in_slot:
                        slots.free_slot()
                    break
            if not in_slot:
                message = slots.begin(now)
            elif inbox and not inbox.irregular:
                message = inbox.popleft()
            else:
                message = slots.next(now)
        if count:
            slots.credit(link, count, size)
        return message is None

    def _over(self, link: Link, number: int, most: int, now: float) -> bool:
        """Flush output while more is made; return True if the turn is over, or the peer does not read."""
        large_answer = link.transfers and link.transfers[-1].answer
        if len(link.output) >= EARLY_FLUSH or link.output_size > OUTPUT_LIMIT or large_answer:
            link.connection.flush()
            if link.connection.backpressure.backed_up:
                return True
        return number >= most or self._loop.time() - now > MAX_SECONDS_PER_TURN

    def _start(self, message: ReceivedMessage[Any], coroutine: Any, context: Context, given: Any) -> Any:
        """Run an awaitable as a task; return its result if it ended at once, otherwise `_RUNNING`."""
        if not inspect.iscoroutine(coroutine):
            coroutine = _awaiting(coroutine)
        if _EAGER:
            task = Task(coroutine, loop=self._loop, eager_start=True, context=context)  # type: ignore[call-arg]
            if task.done():
                return task.result()
        else:
            task = self._loop.create_task(coroutine, context=context)
        return self._running(task, message, given)

    def _running(self, task: Task[Any], message: ReceivedMessage[Any], given: Any) -> Any:
        """Note the task of a message that did not end at once; return `_RUNNING`."""
        message._task = task
        self.tasks[task] = message
        task.add_done_callback(partial(self._done, message, given))
        return _RUNNING

    def answers(self, link: Link) -> bool:
        """Return True if a running handler may still answer a request of a link that it released."""
        return any(message.link is link and message.kind & WANTED for message in self.tasks.values())

    def _done(self, message: ReceivedMessage[Any], given: Any, task: asyncio.Task[Any]) -> None:  # noqa: ARG002  # held till now
        self.tasks.pop(task, None)
        if message.phase and message.link.state is LinkState.PARTING:
            # The message was released before, and its link waits for the handler.
            message.link.connection.wake()
        if task.cancelled():
            self.failed(message, asyncio.CancelledError())
        else:
            error = task.exception()
            if error is None:
                self.finish(message, task.result())
            else:
                self.failed(message, error)

    def finish(self, message: ReceivedMessage[Any], result: Any) -> None:
        """Send back the handler's result if the sender wants it, and release the message."""
        if result is None:
            if not message.phase:
                self._completion.handled(message, self._completion.unanswered(message))
            return
        try:
            self._completion.answer(message, result)
        except Exception as error:  # noqa: BLE001  # a serializer may be anybody's
            self.failed(message, error)

    def failed(self, message: ReceivedMessage[Any], error: BaseException) -> None:
        """Refuse the message of a handler that raised."""
        if isinstance(error, asyncio.CancelledError) and self._owner.stopping:
            self._completion.refuse(message, Cancelled.code, "the node stopped while it was handled")
            return
        if isinstance(error, SendError):
            # A message to the next hop failed: the text names that hop, not this one.
            self._completion.refuse(message, HandlerFailed.code, str(error))
        else:
            message._refuse_for(error)
        if not isinstance(error, asyncio.CancelledError):
            self._completion.handler_failed(message, error)

    def _pass_on(self, error: BaseException) -> None:
        """Let SystemExit and KeyboardInterrupt end the event loop, from a turn of its own: a read must not raise."""
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            self._loop.call_soon(_raise, error)


class TurnDispatcher(Dispatcher):
    """Gives the handler the messages of a peer that slots allow as a list; it returns those that are done.

    The others are the handler's to end. Nothing is decoded.
    """

    def _busy_with(self) -> str:
        # The handler is a layer's, which its users do not know.
        return "messages arrived"

    def _run_handlers(self, slots: Slots, now: float, most: int) -> bool:
        messages: list[Any] = slots.begin_many(now, most)
        if not messages:
            return True
        peer = messages[0].link.peer
        done = None
        failed = False
        try:
            done = self._handler(messages)
            slots.release_many(done)
        except BaseException as error:  # noqa: BLE001  # as of any handler: what has not ended is refused
            failed = True
            if inspect.iscoroutine(done):
                done.close()
            for message in messages:
                if not message.phase:
                    self.failed(message, error)
            self._pass_on(error)
        if len(peer.links) > 1:
            # They may have arrived over any of these.
            self._owner.after_dispatch(peer)
        return not failed and len(messages) < most

    def conclude(self, message: ReceivedMessage[Any], result: Any) -> None:
        """End a message with the answer to it, now or once an awaitable is done; an exception refuses it."""
        if inspect.isawaitable(result):
            try:
                result = self._start(message, result, self._new_context(), None)
            except BaseException as error:  # noqa: BLE001  # whatever the work raised
                self.failed(message, error)
                self._pass_on(error)
                return
        if result is not _RUNNING:
            self.finish(message, result)


def check_handler(handler: Any) -> None:
    """Validate a handler.

    Raises:
        UsageError: It cannot be called with one message, or it is a generator function; the text says what to pass.
    """
    if inspect.isawaitable(handler):
        if inspect.iscoroutine(handler):
            handler.close()
        hint = "pass the function itself: Node(handler), not Node(handler(...))"
        raise UsageError(f"a handler must be a function, not the {type(handler).__name__} that one returned", hint)
    if not callable(handler):
        raise UsageError(f"a handler must be a function, not {type(handler).__name__}", "pass options as keywords")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise UsageError(f"a handler must return its answer: {_name(handler)} is a generator function")
    problem = call_problem(handler)
    if problem is not None:
        hint = "def handler(message): ...; bind others with functools.partial"
        raise UsageError(f"a handler must accept one argument, the message: {_name(handler)} does not: {problem}", hint)


def _name(handler: Any) -> str:
    while isinstance(handler, partial):
        handler = handler.func
    return repr(getattr(handler, "__qualname__", type(handler).__qualname__))


def _raise(error: BaseException) -> None:
    raise error


async def _awaiting(awaitable: Any) -> Any:
    return await awaitable

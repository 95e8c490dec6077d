"""Messages of one exchange on their way from threads to the loop: a burst of them wakes it once."""

from __future__ import annotations

import asyncio
from _thread import start_new_thread
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from redpoll.errors import Closed, MessageTooLarge, UsageError
from redpoll.locks import new_lock

if TYPE_CHECKING:
    from redpoll.blocking.handover import Handover
    from redpoll.wiring.exchange import Exchange

__all__ = ["BURST", "LARGE", "LARGE_BYTES", "Data", "Outbox", "as_bytes"]

Data: TypeAlias = bytes | bytearray | memoryview
"""Data that can be sent: any object that is viewed as bytes."""

#: Maximum messages of one exchange on their way to the loop, if it has room for as many.
BURST: Final = 8192

#: Size in bytes above which a message is large, and maximum total size of large ones of one exchange on their way.
LARGE: Final = 4096
LARGE_BYTES: Final = 8 * 2**20


class Outbox:
    """Accepts messages of threads for an exchange.

    A thread posts while fewer than `room` messages wait, which is that of the exchange when the loop looked last; without
    room, a thread asks the loop. Large messages, and objects other than bytes, are handed over by `put`.

    Args:
        exchange: The exchange.
        handover: Calls to its loop.

    Attributes:
        waiting: Messages that the loop has not seen.
        room: Maximum messages in `waiting`.
        small: Maximum size in bytes of a message that is posted.
        woken: True if the loop's look is scheduled.
    """

    __slots__ = ("_closed", "_exchange", "_handover", "_large", "_lock", "_task", "room", "small", "waiting", "woken")

    def __init__(self, exchange: Exchange, handover: Handover) -> None:
        self._exchange = exchange
        self._handover = handover
        self.waiting: list[bytes] = []
        self.room = 0
        self.small = min(LARGE, exchange.max_size)
        self.woken = False
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        #: Total size of waiting large messages. A signal handler may send as well.
        self._large = 0
        self._lock = new_lock()

    # For threads

    def takes(self, message: Any) -> bool:
        """Return True if a message may be posted: it is small, and there is room."""
        return type(message) is bytes and len(message) <= self.small and len(self.waiting) < self.room

    def post(self, message: Any) -> None:
        """Hand over a message that it `takes`. If Ctrl-C interrupts it, the message is sent, or was not handed over."""
        try:
            self.waiting.append(message)
            if not self.woken:
                self.wake()
        except UsageError:
            raise
        except BaseException:  # Ctrl-C, maybe before it was woken
            start_new_thread(self.wake, ())
            raise

    def put(self, message: bytes) -> bool:
        """Hand over a message of any legal size; return False if there is no room.

        Raises:
            MessageTooLarge: It is above `Config.max_message_size`; the loop could not report that to the caller.
        """
        if len(message) > self._exchange.max_size:
            raise MessageTooLarge("message", len(message), self._exchange.max_size)
        if len(self.waiting) >= self.room:
            return False
        if len(message) > LARGE:
            with self._lock:
                if self._large and self._large + len(message) > LARGE_BYTES:
                    return False
                self._large += len(message)
        self.post(message)
        return True

    def wake(self) -> None:
        """Schedule the loop's look."""
        if self._handover.forked:
            self.waiting.clear()
            self._handover.check()
        self.woken = True
        try:
            self._handover.post(self._look)
        except BaseException:
            # Ctrl-C, perhaps before it was posted; it cannot interrupt before the next call.
            start_new_thread(self._handover.post, (self._look,))
            raise

    def send(self, message: bytes) -> None:
        """Wait until the exchange has accepted a message.

        Raises:
            Closed: It is closed.
            UsageError: This is the loop's thread, or a forked child.

        Ctrl-C ends the wait; the message was then not sent, or had just been sent.
        """
        self._handover.run(self._send, message)

    def try_send(self, message: bytes) -> bool:
        """Return True if the exchange accepted a message at once."""
        sent: bool = self._handover.run(self._try_send, message)
        return sent

    # For the loop

    def _look(self) -> None:
        """Send waiting messages; if the exchange lacks room for some, send these when it has room."""
        self.woken = False
        # Threads see no room until it is measured again. Messages that they append meanwhile are seen in the next look.
        self.room = 0
        if self._task is None:
            waiting = self.waiting
            if waiting and not self._closed:
                try:
                    self._send_some()
                except Closed:
                    self._closed = True
            if self._closed:
                waiting.clear()
            if waiting:
                self._task = asyncio.get_running_loop().create_task(self._hold())
            else:
                self._measure()

    async def _hold(self) -> None:
        """Send waiting messages one by one, as there is room."""
        try:
            waiting = self.waiting
            while waiting:
                await self._exchange.send(waiting[0])
                self._forget(1)
                self._send_some()
        except Closed:
            self._closed = True
            self.waiting.clear()
        finally:
            self._task = None
            self._measure()

    def _send_some(self) -> None:
        self._forget(self._exchange.send_some(self.waiting[:]))

    def _forget(self, count: int) -> None:
        """Remove the first messages, which the exchange has accepted."""
        waiting = self.waiting
        if self._large:
            with self._lock:
                self._large -= sum(filter(LARGE.__lt__, map(len, waiting[:count])))
        del waiting[:count]

    async def _send(self, message: bytes) -> None:
        await self.sent()
        await self._exchange.send(message)
        self._measure()

    def _try_send(self, message: bytes) -> bool:
        self._look()
        taken = self._task is None and self._exchange.send_nowait(message)
        if taken:
            self._measure()
        return taken

    def _measure(self) -> None:
        """Update the number of messages that threads may hand over."""
        self.room = 0 if self._closed else min(BURST, self._exchange.room)

    async def sent(self) -> None:
        """Wait until the exchange has accepted all messages handed over so far."""
        self._look()
        while self._task is not None:
            # Not awaited itself: the caller may be cancelled, and the task continues.
            await asyncio.wait((self._task,))

    def forget_room(self) -> None:
        """Note that the room of the exchange may have changed: the next thread that sends asks."""
        self.room = 0

    def inherit(self) -> None:
        """Empty it in a forked child: nothing is handed over here."""
        self._lock = new_lock()
        self.room = 0
        self.waiting = []

    async def close(self) -> None:
        """Drop waiting messages."""
        self._closed = True
        self.room = 0
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        self.waiting.clear()


def as_bytes(message: Any) -> bytes:
    """Return a message as bytes: a copy, unless it is bytes.

    Raises:
        UsageError: It is not bytes-like.
    """
    if type(message) is bytes:
        return message
    if isinstance(message, str):
        raise UsageError("a message is bytes, not str", "encode it: text.encode()")
    try:
        return bytes(memoryview(message))
    except TypeError:
        raise UsageError(f"a message is bytes, not {type(message).__name__}") from None

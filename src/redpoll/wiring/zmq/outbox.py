"""Messages of one exchange on their way from threads to the loop: a burst of them wakes it once."""

from __future__ import annotations

import asyncio
import threading
from _thread import start_new_thread
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from redpoll.errors import Closed, MessageTooLarge, UsageError

if TYPE_CHECKING:
    from redpoll.blocking.handover import Handover
    from redpoll.wiring.exchange import Exchange

__all__ = ["BURST", "LARGE", "LARGE_BYTES", "Data", "Outbox", "as_bytes"]

Data: TypeAlias = bytes | bytearray | memoryview
"""What can be sent: anything that can be looked at as bytes."""

#: Messages of one exchange that may be on their way to the loop, if it has room for as many.
BURST: Final = 8192

#: Bytes above which a message is large, and what large ones of one exchange that are on their way may have together.
LARGE: Final = 4096
LARGE_BYTES: Final = 8 * 2**20


class Outbox:
    """Takes the messages of threads for an exchange.

    A thread appends to `waiting` while that has fewer than `room`, and wakes the loop unless it is `woken`. There is room
    for what the exchange had when the loop looked last; where there is none, a thread asks the loop. Large messages, and
    what is no bytes, go by `put`.

    Args:
        exchange: Whose.
        handover: Leads to its loop.

    Attributes:
        waiting: What the loop has not seen.
        room: How many may be in there.
        small: Bytes up to which a message is appended; a larger one goes by `put`.
        woken: Whether the loop will look.
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
        #: Bytes of large messages that wait. Reentrant: a signal's handler may send as well.
        self._large = 0
        self._lock = threading.RLock()

    # For threads

    def put(self, message: bytes) -> bool:
        """Hand over a message of any size that the exchange takes; False if there is no room.

        Raises:
            MessageTooLarge: It is above `Config.max_message_size`: the loop would find that with nobody to be told.
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
        self.waiting.append(message)
        if not self.woken:
            self.wake()
        return True

    def wake(self) -> None:
        """Have the loop look."""
        if self._handover.forked:
            self.waiting.clear()
            self._handover.check()
        self.woken = True
        try:
            self._handover.post(self._look)
        except BaseException:
            # Ctrl-C, maybe before it was posted. Nothing comes in between before this one call.
            start_new_thread(self._handover.post, (self._look,))
            raise

    def send(self, message: bytes) -> None:
        """Wait until the exchange has a message.

        Raises:
            Closed: It is closed.
            UsageError: This is the loop's thread, or a child of the process.

        Ctrl-C ends the waiting; the message was not sent then, unless that had just happened.
        """
        self._handover.run(self._send, message)

    def try_send(self, message: bytes) -> bool:
        """Whether the exchange took a message at once."""
        sent: bool = self._handover.run(self._try_send, message)
        return sent

    # For the loop

    def _look(self) -> None:
        """Send what waits; if the exchange has no room for all of it, the rest when it has."""
        self.woken = False
        # Until it is known again. What threads append meanwhile is seen with the next look.
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
        """Send what waits, one after another as there is room."""
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
        """The exchange has the first ones."""
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
        """See how many messages threads may hand over."""
        self.room = 0 if self._closed else min(BURST, self._exchange.room)

    async def sent(self) -> None:
        """Wait until the exchange has all that threads had handed over."""
        self._look()
        while self._task is not None:
            # Not awaited itself: who waits may be cancelled, and it goes on.
            await asyncio.wait((self._task,))

    def forget_room(self) -> None:
        """What the exchange can take has changed: the next thread that sends asks."""
        self.room = 0

    def inherit(self) -> None:
        """This is a child of the process: nothing is handed over here."""
        self._lock = threading.RLock()
        self.room = 0
        self.waiting = []

    async def close(self) -> None:
        """Drop what waits."""
        self._closed = True
        self.room = 0
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
        self.waiting.clear()


def as_bytes(message: Any) -> bytes:
    """What is sent: a copy, unless it is bytes.

    Raises:
        UsageError: It is nothing that can be sent.
    """
    if type(message) is bytes:
        return message
    if isinstance(message, str):
        raise UsageError("a message is bytes, not str", "encode it: text.encode()")
    try:
        return bytes(memoryview(message))
    except TypeError:
        raise UsageError(f"a message is bytes, not {type(message).__name__}") from None

"""One link on one gRPC stream: what the node writes goes out in messages, what comes in is fed to the node.

A side holds at most: what the transport takes until it pauses the link (`WRITE_HIGH_WATER` and one piece of a body), one
message that gRPC has not accepted yet, one that was received and waits for the node to read, and what HTTP/2's window
lets the other end send ahead: one message more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from redpoll.nq.grpc.library import KEPT, load
from redpoll.nq.grpc.options import ACCEPTED
from redpoll.transport.carried import CarriedTransport

__all__ = ["ENDING_GRACE", "DialledLink", "Link", "ServedLink", "refuse"]

#: Seconds that the other end has to say that it has read the end of a link.
ENDING_GRACE = 0.5


class Link:
    """Carries one link.

    Attributes:
        transport: What the node has of it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BufferedProtocol,
        size: int,
        extra: dict[str, object] | None = None,
    ) -> None:
        """Tell the protocol that it is connected.

        Args:
            loop: Where it runs.
            protocol: The node's.
            size: Bytes of the largest message that is sent.
            extra: What the transport knows.
        """
        self._grpc = load()
        #: What gRPC raises on a stream that has ended.
        self._errors = (self._grpc.RpcError, self._grpc.aio.BaseError, asyncio.InvalidStateError)
        self._loop = loop
        self._size = size
        #: What the writer and the reader wait for: bytes to write, or the end; that all was read.
        self._work: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._over = False
        self.transport = CarriedTransport(loop, protocol, self._wake, self._eased, extra)
        self.transport.begin()

    def _wake(self) -> None:
        if self.transport.aborted:
            self._end(None)
            self._cut()
        _set(self._work)

    def _eased(self) -> None:
        _set(self._room)

    def _cut(self) -> None:
        """Give up what is being written."""

    @property
    def over(self) -> bool:
        """Whether the node has been told that it is lost."""
        return self._over

    def _end(self, error: Exception | None) -> None:
        """The link is over: the node is told, and whoever waits."""
        self._over = True
        self.transport.end(error)
        _set(self._work)
        _set(self._room)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._loop.create_task(work, name="redpoll grpc stream")

    def _failure(self, tasks: Iterable[asyncio.Task[None]]) -> Exception | None:
        """What ended one of these, if anything did; what gRPC does not raise is told to the loop."""
        found: Exception | None = None
        for task in tasks:
            error = task.exception() if task.done() and not task.cancelled() else None
            if isinstance(error, self._errors):
                found = ConnectionError(self._in_words(error))
                # Without its traceback, which refers to gRPC's objects: it keeps its thread and sockets as long as these are.
                found.__cause__ = error.with_traceback(None)
            elif error is not None:
                message = "redpoll could not take what gRPC brought"
                self._loop.call_exception_handler({"message": message, "exception": error, "task": task})
                found = ConnectionError(str(error))
        return found

    def _in_words(self, error: Exception) -> str:
        """What gRPC says of the end of a stream; where a write fails first it does not say what ended it."""
        if not isinstance(error, self._grpc.RpcError):
            return str(error)
        details: str = error.details()
        return "the stream was cut" if error.code() is self._grpc.StatusCode.INTERNAL else details

    async def _write(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send what the node writes, until it closes or the link is over."""
        transport = self.transport
        size = self._size
        while not self._over:
            parts = transport.take(size)
            if parts:
                await send(_joined(parts))
            elif transport.is_closing():
                return
            else:
                self._work = self._loop.create_future()
                await self._work
                self._work = None

    async def _read(self, receive: Callable[[], Awaitable[Any]]) -> None:
        """Feed the node what comes, no faster than it reads, until the other end closes."""
        transport = self.transport
        end = self._grpc.aio.EOF
        while True:
            data = await receive()
            if data is end:
                return
            transport.feed(data)
            if transport.unread and not self._over:
                self._room = self._loop.create_future()
                await self._room
                self._room = None


class DialledLink(Link):
    """The end that dialled: it owns its call and its channel."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BufferedProtocol,
        size: int,
        call: Any,
        channel: Any,
    ) -> None:
        """Begin.

        Args:
            loop: Where it runs.
            protocol: The node's.
            size: Bytes of the largest message that is sent.
            call: The stream, which has been answered.
            channel: Its channel, for this link alone. Both are among what is `KEPT`, until they have ended.
        """
        self._call = call
        self._channel = channel
        super().__init__(loop, protocol, size)
        self.task = loop.create_task(self._run(), name="redpoll grpc link")

    def _cut(self) -> None:
        if self._call is not None:
            self._call.cancel()

    async def _run(self) -> None:
        call = self._call
        reader, writer = tasks = self._begin(self._read(call.read)), self._begin(self._write(call.write))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            closed = writer.done() and not (writer.cancelled() or writer.exception() or self._over)
            self._end(self._failure(tasks))
            if closed:
                # What was written is still on its way: cancelling the call would drop it.
                async with asyncio.timeout(ENDING_GRACE):
                    await call.done_writing()
                    await asyncio.wait((reader,))
        except (TimeoutError, asyncio.CancelledError, *self._errors):
            self._end(None)
        finally:
            call.cancel()
            await self._channel.close()
            # Who is frozen holds what is being written until the system gives the connection up: `STUCK`.
            await asyncio.wait(tasks)
            KEPT.difference_update((call, self._channel))
            self._failure(tasks)
            self._call = self._channel = None


class ServedLink(Link):
    """The end that was dialled: it lasts as long as the handler of its call."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BufferedProtocol,
        size: int,
        context: Any,
        extra: dict[str, object],
    ) -> None:
        """Begin.

        Args:
            loop: Where it runs.
            protocol: The node's.
            size: Bytes of the largest message that is sent.
            context: What the handler has of the call.
            extra: What the transport knows.
        """
        self._context = context
        self._writer: asyncio.Task[None] | None = None
        super().__init__(loop, protocol, size, extra)

    def _cut(self) -> None:
        if self._writer is not None:
            self._writer.cancel()

    async def run(self) -> None:
        """Carry until the link is over; to be awaited by the handler, which returns then.

        It is cancelled when the client goes without a word.

        Raises:
            grpc.aio.AbortError: This end gave the link up; grpc.aio expects it from the handler.
        """
        tasks: list[asyncio.Task[None]] = []
        failure: Exception | None = None
        try:
            # Who dialled waits for it.
            await self._context.send_initial_metadata((ACCEPTED,))
            tasks = [self._begin(self._read(self._context.read)), self._begin(self._write(self._context.write))]
            self._writer = tasks[1]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            failure = ConnectionResetError("the stream was cut")
            raise
        except self._errors as error:
            failure = error
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
            failure = self._failure(tasks) or failure
            self._end(failure)
        if self.transport.aborted or failure is not None:
            await refuse(self._context, self._grpc.StatusCode.CANCELLED, "the link was cut")


async def refuse(context: Any, code: Any, text: str) -> None:
    """End a call with an error; the last thing that its handler does.

    Raises:
        grpc.aio.AbortError: It was told.
        asyncio.CancelledError: Nobody is there to be told, which grpc.aio logs unless it is this.
    """
    aio = load().aio
    try:
        await context.abort(code, text)
    except aio.AbortError:
        raise
    except aio.BaseError as error:
        raise asyncio.CancelledError from error


def _set(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


def _joined(parts: list[memoryview]) -> bytes:
    """One message; what is a whole bytes object goes as it is."""
    if len(parts) == 1:
        whole = parts[0].obj
        return whole if type(whole) is bytes and len(whole) == len(parts[0]) else bytes(parts[0])
    return b"".join(parts)

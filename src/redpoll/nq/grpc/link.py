"""One link on one gRPC stream: bytes of the node are sent in messages, received messages are fed to the node.

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

#: Seconds that the other end has to confirm that it has read the end of a link.
ENDING_GRACE = 0.5


class Link:
    """One link, of either end.

    Attributes:
        transport: Its transport, as the node sees it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: asyncio.BufferedProtocol,
        size: int,
        extra: dict[str, object] | None = None,
    ) -> None:
        """Open the link: `connection_made` of the protocol is called.

        Args:
            loop: Its event loop.
            protocol: The protocol of the node.
            size: Maximum size of a sent message, in bytes.
            extra: Information that the transport gives.
        """
        self._grpc = load()
        #: Errors of gRPC on a stream that has ended.
        self._errors = (self._grpc.RpcError, self._grpc.aio.BaseError, asyncio.InvalidStateError)
        self._loop = loop
        self._size = size
        #: Futures of the writer, which waits for bytes or the end, and of the reader, which waits until all was read.
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
        """Abandon the message being written."""

    @property
    def over(self) -> bool:
        """True if the link is lost, as its protocol was told."""
        return self._over

    def _end(self, error: Exception | None) -> None:
        """End the link: its protocol, the writer and the reader are told."""
        self._over = True
        self.transport.end(error)
        _set(self._work)
        _set(self._room)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._loop.create_task(work, name="redpoll grpc stream")

    def _failure(self, tasks: Iterable[asyncio.Task[None]]) -> Exception | None:
        """Return the error that ended one of these tasks, if any; errors not of gRPC are passed to the loop's handler."""
        found: Exception | None = None
        for task in tasks:
            error = task.exception() if task.done() and not task.cancelled() else None
            if isinstance(error, self._errors):
                found = ConnectionError(self._in_words(error))
                # Without the traceback, which refers to gRPC's objects: these keep gRPC's thread and sockets.
                found.__cause__ = error.with_traceback(None)
            elif error is not None:
                message = "redpoll could not process a message of gRPC"
                self._loop.call_exception_handler({"message": message, "exception": error, "task": task})
                found = ConnectionError(str(error))
        return found

    def _in_words(self, error: Exception) -> str:
        """Return gRPC's text about the end of a stream; after a failed write it does not name the reason."""
        if not isinstance(error, self._grpc.RpcError):
            return str(error)
        details: str = error.details()
        return "the stream was cut" if error.code() is self._grpc.StatusCode.INTERNAL else details

    async def _write(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send the node's bytes, until it closes or the link is over."""
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
        """Feed received messages to the node, no faster than it reads, until the other end closes."""
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
        """Open the link.

        Args:
            loop: Its event loop.
            protocol: The protocol of the node.
            size: Maximum size of a sent message, in bytes.
            call: The stream, which has been answered.
            channel: Its channel, for this link alone. Both are in `KEPT` until they have ended.
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
                # Written data is still in transit: cancelling the call would drop it.
                async with asyncio.timeout(ENDING_GRACE):
                    await call.done_writing()
                    await asyncio.wait((reader,))
        except (TimeoutError, asyncio.CancelledError, *self._errors):
            self._end(None)
        finally:
            call.cancel()
            await self._channel.close()
            # Data for a frozen peer is held until the system closes the connection: `STUCK`.
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
        """Open the link.

        Args:
            loop: Its event loop.
            protocol: The protocol of the node.
            size: Maximum size of a sent message, in bytes.
            context: The context of the call, as its handler has it.
            extra: Information that the transport gives.
        """
        self._context = context
        self._writer: asyncio.Task[None] | None = None
        super().__init__(loop, protocol, size, extra)

    def _cut(self) -> None:
        if self._writer is not None:
            self._writer.cancel()

    async def run(self) -> None:
        """Transfer data until the link is over; awaited by the handler, which then returns.

        gRPC cancels it when the client's connection is lost.

        Raises:
            grpc.aio.AbortError: This end aborted the link; grpc.aio expects it from the handler.
        """
        tasks: list[asyncio.Task[None]] = []
        failure: Exception | None = None
        try:
            # The dialling end waits for this.
            await self._context.send_initial_metadata((ACCEPTED,))
            tasks = [self._begin(self._read(self._context.read)), self._begin(self._write(self._context.write))]
            self._writer = tasks[1]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except self._errors as error:
            failure = error
        except asyncio.CancelledError:
            failure = ConnectionResetError("the stream was cut")
            raise
        finally:
            for task in tasks:
                task.cancel()
            try:
                if tasks:
                    await asyncio.wait(tasks)
            except asyncio.CancelledError:
                # The connection was lost meanwhile, or for the second time.
                failure = failure or ConnectionResetError("the stream was cut")
                raise
            finally:
                failure = self._failure(tasks) or failure
                self._end(failure)
        if self.transport.aborted or failure is not None:
            await refuse(self._context, self._grpc.StatusCode.CANCELLED, "the link was cut")


async def refuse(context: Any, code: Any, text: str) -> None:
    """End a call with an error: the last action of its handler.

    Raises:
        grpc.aio.AbortError: The client is told.
        asyncio.CancelledError: The client is gone; grpc.aio would log any other error.
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
    """Return the parts as one message; a part that is a whole bytes object is not copied."""
    if len(parts) == 1:
        whole = parts[0].obj
        return whole if type(whole) is bytes and len(whole) == len(parts[0]) else bytes(parts[0])
    return b"".join(parts)

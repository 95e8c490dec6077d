"""`send_many`: sends a stream of messages with at most one window of them open."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from redpoll.errors import BatchError, Expired, RedpollError, UsageError
from redpoll.message import Message
from redpoll.wire.runs import NO_MESSAGE, transmit_run

if TYPE_CHECKING:
    from redpoll.node.dialler import Dialler
    from redpoll.node.sending import Sending
    from redpoll.serializers.base import Serializer
    from redpoll.wire.outgoing import Payload
    from redpoll.wire.peer import Peer
    from redpoll.wire.routes import Routes

__all__ = ["Stream"]

#: Maximum open sends to a peer whose window is not known yet.
_OPEN_AT_FIRST = 64

#: Maximum messages written in one run before the event loop gets its turn.
_RUN = 2048

#: The sentinel for the end of an iterable.
_END: Any = object()

_Messages = Iterable[Message[Any]] | AsyncIterable[Message[Any]]


class _Owner(Protocol):
    """The peers of a node, as a batch uses them."""

    raw: bool
    serializer: Serializer[Any]
    dialler: Dialler
    routes: Routes

    def forget_if_idle(self, peer: Peer) -> None:
        """Forget a peer that nothing is kept for."""


@dataclass(eq=False)
class Stream:
    """One call of `send_many`.

    Args:
        owner: The peers of the node.
        submit: Submits one message, with the encoded data if there is some.
        seconds: The timeout of each.
        acknowledge: Whether to wait for the release of each.
    """

    _owner: _Owner
    _submit: Callable[[Message[Any], Payload | None], Sending]
    _seconds: float | None
    _acknowledge: bool

    def __post_init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._open: deque[Sending] = deque()
        self._completed = 0

    async def run(self, messages: _Messages) -> int:
        """Send all messages and return their number; see `Node.send_many`."""
        if not isinstance(messages, (AsyncIterable, Iterable)):
            raise UsageError(f"expected an iterable of messages, not {type(messages).__name__}")
        try:
            if isinstance(messages, AsyncIterable):
                async for message in messages:
                    await self._send(message)
            else:
                await self._send_iterable(iter(messages))
            await self._settle(0)
        except BaseException:
            for future in self._open:
                future.cancel()
            raise
        return self._completed

    async def _send_iterable(self, messages: Iterator[Message[Any]]) -> None:
        message: Any = next(messages, _END)
        body: Payload | None = None
        while message is not _END:
            await self._send(message, body)
            # A message that does not fit a run is sent singly; the next run begins after it.
            leftover, body = (_END, None) if self._acknowledge else await self._run_of_small(message, messages)
            message = leftover if leftover is not _END else next(messages, _END)

    async def _run_of_small(self, like: Message[Any], messages: Iterator[Message[Any]]) -> tuple[Any, Payload | None]:
        """Write small unacknowledged messages to one peer without a future for each.

        Returns:
            The first message that does not fit the run, and its encoded data, if it was encoded.
        """
        address = like.address
        if address is None or type(like) is not Message:
            return _END, None
        await self._settle(0)
        owner = self._owner
        peer = owner.routes.at(address)
        while True:
            link = peer.link
            if link is None or link.libchirp:
                owner.forget_if_idle(peer)
                return _END, None
            places = peer.free_window
            if places <= 0:
                # Wait only if there is another message: the last one is done once it is written.
                waiting = next(messages, _END)
                if waiting is not _END and not await owner.dialler.wait_room(peer, self._seconds):
                    late = Expired(waiting, self._seconds, "waiting for room in the window", peer.address)
                    raise BatchError(self._completed, self._completed, late) from peer.last_error
                return waiting, None
            if link.window.oversized:
                # Beside a message larger than the window, the window is enforced to the byte.
                return _END, None
            try:
                written, leftover, body, ended = transmit_run(
                    peer, link, messages, address, owner.serializer.encode, min(places, _RUN), raw=owner.raw
                )
            finally:
                # Even if the iterable raises: its earlier messages are in the output.
                link.connection.flush()
                if peer.queue:
                    # The iterable sent to this peer as well.
                    peer.pump(self._time())
            # Otherwise a link with nothing but runs would be closed as idle, in the middle of one.
            link.liveness.last_used = self._time()
            self._completed += written
            if leftover is not None:
                return (None if leftover is NO_MESSAGE else leftover), body
            if ended:
                return _END, None
            if link.writable:
                await asyncio.sleep(0)

    async def _send(self, message: Message[Any], body: Payload | None = None) -> None:
        try:
            future = self._submit(message, body)
        except Exception as error:
            # Earlier messages may fail as well, and would be the first failure.
            await self._settle(0)
            raise BatchError(self._completed, self._completed, error) from error
        self._open.append(future)
        link = future.peer.link
        limit = _OPEN_AT_FIRST if link is None or link.libchirp else link.announced.window
        await self._settle(max(limit, 1) - 1)

    async def _settle(self, most: int) -> None:
        """Wait until at most so many messages are open."""
        while len(self._open) > most:
            try:
                await self._open[0]
            except RedpollError as error:
                index = self._completed
                self._open.popleft()
                rest = await asyncio.gather(*self._open, return_exceptions=True)
                self._open.clear()
                completed = index + sum(not isinstance(result, BaseException) for result in rest)
                raise BatchError(index, completed, error) from error
            self._open.popleft()
            self._completed += 1

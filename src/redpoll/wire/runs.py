"""Writing of runs of small unacknowledged messages, without an object per sending."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any

from redpoll.address import Address
from redpoll.message import Message, identity_prefix
from redpoll.wire.bodies import LARGE
from redpoll.wire.frames import PREAMBLE_SIZE, own_struct
from redpoll.wire.link import Link
from redpoll.wire.outgoing import Payload
from redpoll.wire.peer import Peer

__all__ = ["NO_MESSAGE", "transmit_run"]

#: Returned by `transmit_run` for an item that is None.
NO_MESSAGE: Any = object()

#: Maximum body packed together with its preamble, in bytes; above, copying it costs more.
_PACKED = 512

#: A preamble whose identity was created in this process, as two fields.
_OWN = Struct("!8sQIIHB")


def transmit_run(
    link: Link,
    messages: Iterator[Message[Any]],
    address: Address,
    encode: Callable[[Any], Payload],
    limit: int,
    *,
    raw: bool,
) -> tuple[int, Message[Any] | None, Payload | None, bool]:
    """Write small unacknowledged messages in a row, without an object per sending.

    Args:
        link: The link to write to; it has a peer.
        messages: The messages; the next one is requested only when it may be written.
        address: Address of all messages of the run; another one ends it.
        encode: Encodes the data.
        limit: Maximum number of messages, within the window.
        raw: Whether data that is bytes is sent without `encode`.

    Returns:
        Number of messages written; the message that ended the run because it cannot be part of one (`NO_MESSAGE` for an
        item that is None), or None; its encoded data, if it was encoded; and whether `messages` is exhausted.
    """
    pack = _OWN.pack
    packed_size, pack_whole = -1, pack
    prefix = identity_prefix()
    peer: Peer | None = link.peer
    if peer is None:
        return 0, None, None, False
    output = link.output
    budget = link.window.free_bytes()
    largest = min(LARGE, link.settings.max_message_size)
    if link.announced is not None:
        largest = min(largest, link.announced.max_message_size)
    count = total = 0
    leftover: Message[Any] | None = None
    encoded: Payload | None = None
    ended = True
    try:
        for message in messages:
            if (
                type(message) is not Message
                or (message._address is not address and message._address != address)
                or message._header
            ):
                item: object = message
                leftover = NO_MESSAGE if item is None else message
                break
            body = message._data
            if not raw or type(body) is not bytes:
                try:
                    body = encode(body)
                except Exception:  # noqa: BLE001  # it is raised again where the message is sent by itself
                    leftover = message
                    break
                if type(body) is memoryview and len(body) <= _PACKED:
                    body = body.tobytes()
            size = len(body)
            if size > largest:
                leftover, encoded = message, body
                break
            # Serial and size of the output are not local variables: the code that creates the messages may itself send
            # to this peer, and have the output written.
            peer.serial = serial = (peer.serial + 1) & 0xFFFFFFFF
            if size == packed_size:
                output.append(pack_whole(prefix, message._number, serial, size, 0, 0, body))
            elif size <= _PACKED:
                packed_size, pack_whole = size, own_struct(size).pack
                output.append(pack_whole(prefix, message._number, serial, size, 0, 0, body))
            else:
                output.append(pack(prefix, message._number, serial, size, 0, 0))
                output.append(body)
            link.output_size += PREAMBLE_SIZE + size
            total += size
            count += 1
            if count >= limit or total >= budget:
                ended = False
                break
    finally:
        peer.counters.sent += count
        link.window.take_many(count, total)
    return count, leftover, encoded, ended and leftover is None

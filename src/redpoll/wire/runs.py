"""Writing of runs of small unacknowledged messages, without an object per sending."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any

from redpoll.address import Address
from redpoll.message import Message, identity_prefix
from redpoll.wire.bodies import LARGE
from redpoll.wire.frames import PACKED, PREAMBLE_SIZE, own_frame
from redpoll.wire.link import Link
from redpoll.wire.outgoing import Payload
from redpoll.wire.peer import Peer

__all__ = ["NO_MESSAGE", "transmit_run"]

#: Returned by `transmit_run` for an item that is None.
NO_MESSAGE: Any = object()

#: A preamble whose identity was created in this process, as two fields.
_OWN = Struct("!8sQIIHB")

#: Serials are counted modulo this.
_SERIALS = 1 << 32


def transmit_run(
    peer: Peer,
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
        peer: The peer.
        link: The link to write to, one of its links.
        messages: The messages; the next one is requested only when it may be written.
        address: Address of all messages of the run; another one ends it.
        encode: Encodes the data.
        limit: Maximum number of messages, within the window.
        raw: Whether data that is bytes is sent without `encode`.

    The code that creates the messages may send to this peer itself: that is queued, since the run has reserved the window,
    and ends the run, since it comes before the next message.

    Returns:
        Number of messages written; the message that ended the run because it cannot be part of one (`NO_MESSAGE` for an
        item that is None), or None; its encoded data, if it was encoded; and whether `messages` is exhausted.
    """
    prefix = identity_prefix()
    output = link.output
    sent_before = link.bytes_sent
    plain = bytes if raw else None
    budget = link.window.free_bytes()
    largest = min(LARGE, link.settings.max_message_size, link.max_size)
    size = total = 0
    apart = False
    pack, lengths = own_frame(size)
    pack_apart = _OWN.pack
    leftover: Message[Any] | None = None
    encoded: Payload | None = None
    queue = peer.queue
    link.window.take_many(limit, budget)
    # Messages of one size with serials in a row are counted together. Of these, `left` of `quota` may still be written,
    # and `room` after them.
    room, quota, left = limit, 0, 0
    serial = -1
    try:
        for message in messages:
            if (
                queue
                or type(message) is not Message
                or (message._address is not address and message._address != address)
                or message._header
            ):
                item: object = message
                leftover = NO_MESSAGE if item is None else message
                break
            body = message._data
            if type(body) is not plain:
                try:
                    body = encode(body)
                except Exception:  # noqa: BLE001  # it is raised again where the message is sent by itself
                    leftover = message
                    break
                if type(body) is memoryview and len(body) <= PACKED:
                    body = body.tobytes()
            if peer.serial is serial and len(body) == size:
                serial += 1
            else:
                if len(body) > largest:
                    leftover, encoded = message, body
                    break
                total += (quota - left) * size
                size = len(body)
                apart = size > PACKED
                if not apart:
                    pack, lengths = own_frame(size)
                serial = (peer.serial + 1) % _SERIALS
                room += left
                left = min(room, _SERIALS - serial)
                if left * size > budget - total:
                    # The last one may exceed the window.
                    left = -((total - budget) // size)
                quota = left
                room -= left
            peer.serial = serial
            if apart:
                output.append(pack_apart(prefix, message._number, serial, size, 0, 0))
                output.append(body)
            else:
                output.append(pack(prefix, message._number, serial, lengths, body))
            left -= 1
            if not left:
                total += quota * size
                quota = 0
                if not room or total >= budget:
                    break
                serial = -1
    finally:
        total += (quota - left) * size
        count = limit - room - left
        peer.counters.sent += count
        link.window.free(limit - count, budget - total)
        if link.bytes_sent == sent_before:
            link.output_size += total + count * PREAMBLE_SIZE
        else:
            # That code had output written.
            link.output_size = sum(map(len, output))
    return count, leftover, encoded, leftover is None and count < limit and total < budget

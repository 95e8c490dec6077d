"""Many small unacknowledged messages in a row, written without a sending for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, Any

from redpoll.address import Address
from redpoll.message import Message, identity_prefix
from redpoll.wire.bodies import LARGE
from redpoll.wire.frames import PREAMBLE_SIZE, own_struct
from redpoll.wire.outgoing import Payload

if TYPE_CHECKING:
    from redpoll.wire.link import Link

__all__ = ["NO_MESSAGE", "transmit_run"]

#: What `transmit_run` hands back for an item that is None.
NO_MESSAGE: Any = object()

#: Up to this size preamble and body of a message are packed together, bytes; above, copying the body costs more.
_PACKED = 512

#: A preamble whose identity is one that this process made, in its two halves.
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
    """Write small unacknowledged messages in a row, without a sending for each.

    Args:
        link: Where they go out; it has its peer.
        messages: Asked for one more message only while another may be written.
        address: Whom they are for; one for elsewhere ends the run.
        encode: Makes bytes of the data.
        limit: How many at most: the caller counted the places in the window.
        raw: Whether data that is bytes already is sent as it is, without `encode`.

    Returns:
        How many were written; the message that ended the run because it cannot be part of one (`NO_MESSAGE` for an
        item that is None), or None; what was made of its data, if anything was; and whether there are no more.
    """
    pack = _OWN.pack
    packed_size, pack_whole = -1, pack
    prefix = identity_prefix()
    peer = link.peer
    if peer is None:
        return 0, None, None, False
    out = link.out
    budget = link.free_bytes()
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
            # Not kept in a local name: what makes the messages may itself send to this peer.
            peer.serial = serial = (peer.serial + 1) & 0xFFFFFFFF
            if size == packed_size:
                out.append(pack_whole(prefix, message._number, serial, size, 0, 0, body))
            elif size <= _PACKED:
                packed_size, pack_whole = size, own_struct(size).pack
                out.append(pack_whole(prefix, message._number, serial, size, 0, 0, body))
            else:
                out.append(pack(prefix, message._number, serial, size, 0, 0))
                out.append(body)
            total += size
            count += 1
            if count >= limit or total >= budget:
                ended = False
                break
    finally:
        peer.counters.sent += count
        link.window_used += count
        link.window_bytes_used += total
        link.out_bytes += total + PREAMBLE_SIZE * count
    return count, leftover, encoded, ended and leftover is None

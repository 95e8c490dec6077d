"""Messages one behind the other in a stream."""

from __future__ import annotations

import struct

from redpoll.nq.utils.stream.view import Stream

__all__ = ["Framer", "StreamFramer"]

_SIZE = struct.Struct("!Q")


class StreamFramer:
    """Writes messages to a stream and reads them back: each is preceded by its size, 64 bits, big-endian.

    Nothing is copied but sizes. The protocols here have frames of their own; this is for programs that use it.
    """

    def pack(self, transport: Stream, data: Stream) -> int:
        """Move the content of `data` to the end of `transport`, as one message; return the number of bytes, with its size."""
        return self.pack_header(transport, data.nbytes) + transport.writeviews(data.readviews())

    def pack_header(self, transport: Stream, size: int) -> int:
        """Write a size; return the number of its bytes, 8.

        Raises:
            ValueError: `size` is not 0 to 2**64-1.
        """
        try:
            return transport.writeview(_SIZE.pack(size))
        except struct.error as error:
            raise ValueError(f"{size} is no size of a message") from error

    def unpack(self, transport: Stream, size: int = -1) -> Stream:
        """Return the next message.

        Args:
            transport: Where it is taken from.
            size: The most bytes that it may have (default -1: any number).

        Raises:
            BlockingIOError: It is not there as a whole. Nothing was taken.
            ValueError: It has more. Its size is gone, its bytes are there.
        """
        count = self.unpack_header(transport)
        if 0 <= size < count:
            raise ValueError(f"a message of {count} bytes is over the limit of {size}")
        if count > transport.nbytes:
            transport.unreadview(_SIZE.pack(count))
            raise BlockingIOError(f"{transport.nbytes - _SIZE.size} of {count} bytes are there")
        message = Stream()
        while message.nbytes < count:
            message.writeview(transport.read1(count - message.nbytes))
        return message

    def unpack_header(self, transport: Stream) -> int:
        """Return the next size.

        Raises:
            BlockingIOError: It is not there as a whole. Nothing was taken.
        """
        if transport.nbytes < _SIZE.size:
            raise BlockingIOError(f"{transport.nbytes} of {_SIZE.size} bytes of a size are there")
        (count,) = _SIZE.unpack(transport.read(_SIZE.size))
        return int(count)


Framer = StreamFramer
"""Its name in net-queue 2.4."""

"""A router: passes each message on to the worker that its header names, and each answer back.

A forwarded message keeps its identity, its header and the remaining time. It is acknowledged only when the worker is
done, and a refusal by the worker is passed to the client.

Prints:

    upper: HELLO
    count: 5
    refused: nobody does 'rot13'
"""

import redpoll
from redpoll import Address, Message, Node, Received
from redpoll.errors import Refused


def upper(message: Received[bytes]) -> bytes:
    """Answer in capitals; a handler may be a plain function."""
    return message.data.upper()


def count(message: Received[bytes]) -> bytes:
    """Answer with the number of bytes."""
    return b"%d" % len(message.data)


class Router:
    """Maps headers to workers.

    Args:
        workers: The address of the worker for each header.
    """

    def __init__(self, workers: dict[bytes, Address]) -> None:
        self._workers = workers

    async def handle(self, message: Received[bytes]) -> bytes | None:
        """Forward one message and return the answer, which goes to the requester."""
        worker = self._workers.get(message.header)
        if worker is None:
            message.refuse(f"nobody does {message.header.decode()!r}")
            return None
        answer = await message.node.request(message.forward(worker))
        return bytes(answer.data)


async def main() -> None:
    """Run two workers, the router, and a client that knows only the router."""
    async with Node(upper, port=0) as first, Node(count, port=0) as second:
        workers = {b"upper": first.address, b"count": second.address}
        async with Node(Router(workers).handle, port=0, slots=16) as router, Node() as client:
            for what in (b"upper", b"count", b"rot13"):
                try:
                    answer = await client.request(Message(b"hello", router.address, header=what))
                except Refused as error:
                    print("refused:", error.text)
                else:
                    print(f"{what.decode()}: {answer.data.decode()}")


if __name__ == "__main__":
    redpoll.run(main())

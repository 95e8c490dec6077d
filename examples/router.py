"""A router: passes each message on to the worker that its header names, and each answer back.

A forwarded message keeps its identity and header, and what is left of its time. Nothing is acknowledged before the
worker is done, and what the worker refuses is refused to the client.

Prints:

    upper: HELLO
    count: 5
    refused: nobody does 'rot13'
"""

import redpoll
from redpoll import Address, Message, Node, Received
from redpoll.errors import Refused


def upper(message: Received[bytes]) -> bytes:
    """Answer in capitals; a plain function is a handler too."""
    return message.data.upper()


def count(message: Received[bytes]) -> bytes:
    """Answer with the number of bytes."""
    return b"%d" % len(message.data)


class Router:
    """Knows who does what.

    Args:
        workers: The address of the worker for each header.
    """

    def __init__(self, workers: dict[bytes, Address]) -> None:
        self._workers = workers

    async def handle(self, message: Received[bytes]) -> bytes | None:
        """Forward one message and return the answer, which goes back to whoever asked."""
        worker = self._workers.get(message.header)
        if worker is None:
            message.refuse(f"nobody does {message.header.decode()!r}")
            return None
        answer = await message.node.request(message.forward(worker))
        return bytes(answer.data)


async def main() -> None:
    """Run two workers, the router, and a client that knows the router alone."""
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

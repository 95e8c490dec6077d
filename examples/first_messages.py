"""Two nodes: one acknowledged message, and one request with its answer.

Prints:

    the handler got b'hello'
    the message is done
    the answer is b'pong'
"""

import redpoll
from redpoll import Message, Node, Received


async def handler(message: Received[bytes]) -> bytes | None:
    """Answer requests; returning acknowledges the message."""
    if message.wanted:
        return b"pong"
    print("the handler got", message.data)
    return None


async def main() -> None:
    """Run both nodes in one process; each needs only the other's address."""
    async with Node(handler, port=0) as server, Node() as client:
        await client.send(Message(b"hello", server.address))
        print("the message is done")
        answer = await client.request(Message(b"ping", server.address), timeout=2.0)
        print("the answer is", answer.data)


if __name__ == "__main__":
    redpoll.run(main())

"""A client behind a faulty network: each success was done once, each failure reports what is known.

Prints:

    all 200 were done once: True
    connections were cut: True
    half-open: not confirmed, may have been handled
    back again: b'done'
"""

import asyncio

import redpoll
from redpoll import Message, Node, NotConfirmed, Received
from redpoll.testing import FaultProxy, Faults


class Worker:
    """Counts the messages that it handles."""

    def __init__(self) -> None:
        self.done: list[bytes] = []

    def handle(self, message: Received[bytes]) -> bytes:
        """Do the work; the return value answers requests."""
        self.done.append(message.data)
        return b"done"


async def main() -> None:
    """Send through a proxy that cuts each connection after a number of bytes, then through one that stops forwarding."""
    worker = Worker()
    async with Node(worker.handle, port=0, keepalive=0.1) as server, Node(keepalive=0.1) as client:
        async with FaultProxy(server.address, faults=Faults(cut_after=4_000)) as proxy:
            messages = (Message(b"%d" % number, proxy.address) for number in range(200))
            await client.send_many(messages, retry=100)
            print("all 200 were done once:", sorted(worker.done, key=int) == [b"%d" % number for number in range(200)])
            print("connections were cut:", proxy.stats().rst > 0)

            proxy.set()
            await client.ready(proxy.address)
            proxy.cut("silence")
            try:
                await client.send(Message(b"into the void", proxy.address))
            except NotConfirmed as error:
                print("half-open: not confirmed,", "may have been handled" if error.sent else "not sent")
            answer = await asyncio.wait_for(client.request(Message(b"hello?", proxy.address)), 5)
            print("back again:", answer.data)


if __name__ == "__main__":
    redpoll.run(main())

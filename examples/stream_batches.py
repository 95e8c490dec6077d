"""A stream of small messages, sent without acknowledgements and taken in batches.

The receiver's window bounds the messages in flight: a sender faster than its receiver is slowed, and neither end's
memory grows.

Prints:

    100000 messages, 800000 bytes
    in order: True
"""

import asyncio
import struct

import redpoll
from redpoll import Address, Message, Node

COUNT = 100_000


async def produce(address: Address) -> None:
    """Number the messages and send them as fast as they are taken."""
    async with Node(acknowledge=False) as node:
        await node.send_many(Message(struct.pack("!Q", number), address) for number in range(COUNT))


async def consume(node: Node[bytes]) -> None:
    """Take all received messages at once: one step of the loop for many messages."""
    messages = size = 0
    ordered = True
    async for batch in node.batches(max=1_000):
        for message in batch:
            ordered = ordered and struct.unpack("!Q", message.data) == (messages,)
            messages += 1
            size += len(message.data)
            message.release()  # so that the last batch is released before the loop ends
        if messages == COUNT:
            break
    print(messages, "messages,", size, "bytes")
    print("in order:", ordered)


async def main() -> None:
    """Run both ends, with windows large enough for a stream."""
    async with Node(slots=1_000, window=4_000) as node, asyncio.TaskGroup() as group:
        group.create_task(consume(node))
        group.create_task(produce(node.address))


if __name__ == "__main__":
    redpoll.run(main())

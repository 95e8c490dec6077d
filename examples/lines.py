"""The lines of a file, sent one by one, each acknowledged when the receiver has written it.

Prints:

    every line confirmed: True
    the files are equal: True
"""

import asyncio
import tempfile
from pathlib import Path

import redpoll
from redpoll import Address, Message, Node


async def write(node: Node[bytes], path: Path, count: int) -> None:
    """Write `count` lines; each message is released, and so confirmed, when its line is flushed to the system."""
    with path.open("wb") as file:
        for _ in range(count):
            async with node.take(timeout=5) as message:
                file.write(message.data)
                file.flush()


async def read(path: Path, address: Address) -> int:
    """Send every line in order and return the number confirmed."""
    async with Node() as node:
        with path.open("rb") as file:
            return await node.send_many(Message(line, address) for line in file)


async def main() -> None:
    """Copy this file through a node."""
    source = Path(__file__)
    count = len(source.read_bytes().splitlines())
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "copy")
        async with Node() as node:
            writing = asyncio.create_task(write(node, copy, count))
            confirmed = await read(source, node.address)
            await writing
        print("every line confirmed:", confirmed == count)
        print("the files are equal:", copy.read_bytes() == source.read_bytes())


if __name__ == "__main__":
    redpoll.run(main())

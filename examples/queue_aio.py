"""A queue between processes for asyncio: answers to single clients, a withdrawn put, and a disconnected client.

Prints:

    1 + 2 + 3 = 6
    taken back: True
    sent away
"""

import asyncio
import contextlib

import redpoll
from redpoll import nq
from redpoll.nq import aio


async def add(server: aio.Communicator) -> None:
    """Answer each client with the sum of its numbers, until the server closes."""
    with contextlib.suppress(ConnectionAbortedError):
        while True:
            message = await server.get()
            server.put(sum(message.data), message.peer)


async def main() -> None:
    """Run a server and its clients on one loop; each could be a separate process, with threads or with asyncio."""
    async with aio.new(purpose="server", options=options(0)) as server:
        adding = asyncio.create_task(add(server))
        async with aio.new(options=options(server.netloc.port)) as client:
            client.put([1, 2, 3])
            print("1 + 2 + 3 =", (await client.get(timeout=5)).data)

        async with aio.new(options=options(server.netloc.port)) as client:
            too_late = client.put([4, 5, 6])  # no server has been connected yet, so nothing was sent
            print("taken back:", too_late.cancel())
            await client.ready(timeout=5)
            server.disconnect(client.id)
            with contextlib.suppress(ConnectionResetError):
                await client.get(timeout=5)
            print("sent away")
    await adding


def options(port: int) -> nq.CommunicatorOptions:
    """Options of one end; they contain its id, so each end has its own."""
    return nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=port))


if __name__ == "__main__":
    redpoll.run(main())

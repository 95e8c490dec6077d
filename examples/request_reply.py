"""Requests that succeed, requests whose handler fails, and requests that time out.

Prints:

    the sum of 100 answers is 9900
    refused: ZeroDivisionError
    no answer in time
    the handler was told: True
"""

import asyncio
import logging

import redpoll
from redpoll import Address, Message, Node, Received
from redpoll.errors import HandlerFailed

Numbers = dict[str, int]


class Calculator:
    """Divides, one request of each client at a time, or waits until the request is cancelled.

    Attributes:
        told: Whether a handler saw that its request was cancelled.
    """

    def __init__(self) -> None:
        self.told = asyncio.Event()

    async def handle(self, message: Received[Numbers]) -> Numbers | None:
        """Divide a by b; an exception refuses the request."""
        if message.data["b"] < 0:
            await message.cancelled.wait()
            self.told.set()
            return None
        return {"result": message.data["a"] // message.data["b"]}


async def ask(client: Node[Numbers], address: Address, a: int, b: int, timeout: float = 5.0) -> int:
    """Send one request and return the result."""
    answer = await client.request(Message({"a": a, "b": b}, address), timeout=timeout)
    return answer.data["result"]


async def main() -> None:
    """Send requests; the data are any values of msgpack."""
    logging.getLogger("redpoll").addHandler(logging.NullHandler())  # one handler fails below, which is logged
    calculator = Calculator()
    async with Node(calculator.handle, port=0, serializer="msgpack") as server, Node(serializer="msgpack") as client:
        results = await asyncio.gather(*(ask(client, server.address, 2 * n, 1) for n in range(100)))
        print("the sum of 100 answers is", sum(results))
        try:
            await ask(client, server.address, 1, 0)
        except HandlerFailed as error:
            print("refused:", error.text.partition(":")[0])
        try:
            await ask(client, server.address, 1, -1, timeout=0.2)
        except TimeoutError:
            print("no answer in time")
        await asyncio.wait_for(calculator.told.wait(), 5)
        print("the handler was told:", calculator.told.is_set())


if __name__ == "__main__":
    redpoll.run(main())

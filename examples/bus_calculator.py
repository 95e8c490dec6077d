"""A calculator called by name: two servers share its calls, and one is stopped without a failed call.

Prints:

    1 + 2 = 3
    1 / 0: ZeroDivisionError
    primes: 2 3 5 7 11
    100 calls of two servers, then 100 of one: 200 answers
    nobody: no route to 'calculator'
"""

import asyncio
import logging
from collections.abc import AsyncIterator

import redpoll
from redpoll.bus.rpc import expected_exceptions
from redpoll.errors import NoRoute


class Calculator:
    """The served class, and the type of its clients."""

    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @expected_exceptions(ZeroDivisionError)
    async def divide(self, a: int, b: int) -> float:
        """Divide a by b."""
        return a / b

    async def primes(self, below: int) -> AsyncIterator[int]:
        """Yield primes until the caller stops."""
        for number in range(2, below):
            if all(number % each for each in range(2, number)):
                yield number


async def main() -> None:
    """Serve a calculator twice and call it."""
    logging.basicConfig()
    async with redpoll.connect("memory://") as bus:
        calculator = bus.rpc.client("calculator", Calculator, timeout=5)
        async with bus.rpc.serve("calculator", Calculator(), server="one"):
            second = bus.rpc.serve("calculator", Calculator(), server="two")
            await second.start()
            print(f"1 + 2 = {await calculator.add(1, 2)}")
            try:
                await calculator.divide(1, 0)
            except ZeroDivisionError as error:
                print(f"1 / 0: {type(error).__name__}")
            found = []
            async for prime in calculator.primes(1_000_000):
                found.append(str(prime))
                if prime > 10:
                    break
            print(f"primes: {' '.join(found)}")
            answers = await asyncio.gather(*(calculator.add(number, 1) for number in range(100)))
            await second.close(drain=5)
            answers += await asyncio.gather(*(calculator.add(number, 1) for number in range(100)))
            print(f"100 calls of two servers, then 100 of one: {len(answers)} answers")
        try:
            await calculator.add(1, 2)
        except NoRoute as error:
            print(f"nobody: no route to {error.target!r}")


asyncio.run(main())

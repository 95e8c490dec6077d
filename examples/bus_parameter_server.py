"""A parameter server: workers pull weights, compute gradients on their own part of the data, and push them back.

The arrays travel as what they are, and nobody waits for the slowest worker. A broadcast tells how far it is.

Prints:

    after 100 gradients the error is below 1
    after 400 gradients the error is below 0.01
    4 workers pushed 100 gradients each
    weights: 2.0 -3.0 0.5
"""

import asyncio
from collections import Counter
from typing import Any

import numpy as np

import redpoll
from redpoll.bus import Broadcast, Bus

TRUE_WEIGHTS = np.array([2.0, -3.0, 0.5])
Array = np.ndarray[Any, np.dtype[np.float64]]


class Parameters:
    """What is served, and the type of its clients."""

    def __init__(self, bus: Bus) -> None:
        self.weights = np.zeros(len(TRUE_WEIGHTS))
        self.pushed: Counter[str] = Counter()
        self._bus = bus

    async def pull(self) -> Array:
        """Give the weights as they are now."""
        return self.weights

    async def push(self, worker: str, gradient: Array) -> None:
        """Step down a gradient; it may be that of weights which others have changed meanwhile."""
        self.weights = self.weights - 0.05 * gradient
        self.pushed[worker] += 1
        count = self.pushed.total()
        if count in {100, 400}:
            await self._bus.broadcast.send(count, subject="training.progress")


async def train(parameters: Parameters, name: str, seed: int) -> None:
    """Pull, compute, push: a worker, which would be a process of its own where the engine reaches that."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(256, len(TRUE_WEIGHTS)))
    outputs = inputs @ TRUE_WEIGHTS
    for _ in range(100):
        weights = await parameters.pull()
        errors = inputs @ weights - outputs
        await parameters.push(name, inputs.T @ errors / len(inputs))


async def main() -> None:
    """Serve the parameters, and let four workers train them."""
    # Both ends are ours: pickle carries arrays, and nothing that runs code.
    async with redpoll.connect("memory://", serializer="pickle") as bus:
        server = Parameters(bus)

        def progress(broadcast: Broadcast) -> None:
            error = float(np.abs(server.weights - TRUE_WEIGHTS).max())
            bound = next(each for each in (0.01, 1, 100) if error < each)
            print(f"after {broadcast.body} gradients the error is below {bound}")

        async with bus.rpc.serve("parameters", server), bus.broadcast.subscribe(progress, subject="training.*"):
            client = bus.rpc.client("parameters", Parameters)
            await asyncio.gather(*(train(client, f"worker {number}", number) for number in range(4)))
            print(f"{len(server.pushed)} workers pushed {min(server.pushed.values())} gradients each")
            print("weights:", *(f"{weight:.1f}" for weight in server.weights))


asyncio.run(main())

"""A parameter server: workers pull weights, compute gradients on their own part of the data, and push them back.

Arrays are sent directly, and no worker waits for the slowest. A broadcast reports the progress.

Needs NumPy (`pip install numpy`).

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
    """The served class, and the type of its clients."""

    def __init__(self, bus: Bus) -> None:
        self.weights = np.zeros(len(TRUE_WEIGHTS))
        self.pushed: Counter[str] = Counter()
        self._bus = bus

    async def pull(self) -> Array:
        """Return the current weights."""
        return self.weights

    async def push(self, worker: str, gradient: Array) -> None:
        """Apply a gradient; other workers may have changed the weights since it was computed."""
        self.weights = self.weights - 0.05 * gradient
        self.pushed[worker] += 1
        count = self.pushed.total()
        if count in {100, 400}:
            await self._bus.broadcast.send(count, subject="training.progress")


async def train(parameters: Parameters, name: str, seed: int) -> None:
    """Pull, compute, push: a worker, which would be a separate process on an engine that connects processes."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(256, len(TRUE_WEIGHTS)))
    outputs = inputs @ TRUE_WEIGHTS
    for _ in range(100):
        weights = await parameters.pull()
        errors = inputs @ weights - outputs
        await parameters.push(name, inputs.T @ errors / len(inputs))


async def main() -> None:
    """Serve the parameters, and let four workers train them."""
    # Both ends are trusted: pickle carries arrays, and nothing that runs code.
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

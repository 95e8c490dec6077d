"""Tasks of redpoll's App: what `redpoll run` works on, and the client end that submits them."""

from __future__ import annotations

import redpoll
from benchmarks.control import Control, now
from benchmarks.ends.app_tasks import broker_url, each
from redpoll.bus import Handle

app = redpoll.App(broker_url())


@app.task(queue="noop")
async def noop(size: int) -> str:
    """Return a text."""
    return "x" * size


async def wait(handle: Handle[str]) -> int:
    """Wait for a result."""
    return len(await handle.result())


async def submit(control: Control) -> None:
    """Submit all, then wait for each result; so many at a time."""
    async with app:
        await noop.run(0)
        control.write(address=None)
        async for job in control.jobs_async():
            started = now()
            sizes = await each(wait, await each(noop.submit, [job["size"]] * job["count"]))
            control.write(started=started, finished=now())
            assert sum(sizes) == job["size"] * job["count"]


if __name__ == "__main__":
    redpoll.run(submit(Control()))

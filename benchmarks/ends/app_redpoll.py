"""Tasks of redpoll's App: what `redpoll run` works on, and the client end that submits them."""

from __future__ import annotations

import redpoll
from benchmarks.control import Control, Fields, now
from benchmarks.ends.app_tasks import broker_url, each
from redpoll.bus import Handle

app = redpoll.App(broker_url())


@app.task(queue="noop")
async def noop(size: int) -> str:
    """Return a text."""
    return "x" * size


@app.task(queue="noop")
async def more(number: int) -> int:
    """Add one."""
    return number + 1


async def run_chain(tasks: int) -> int:
    """Run a chain."""
    chain = more.chain(0)
    for _ in range(tasks - 1):
        chain = chain.then(more)
    return await chain.run()


async def run_group(tasks: int) -> int:
    """Run a group."""
    return sum(await app.group(more.chain(0) for _ in range(tasks)).run())


async def run_single(job: Fields) -> int:
    """Submit all tasks, then wait for each result."""
    return sum(await each(wait, await each(noop.submit, [job["size"]] * job["count"])))


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
            if "work" in job:
                work = run_chain if job["work"] == "chain" else run_group
                found, expected = sum(await each(work, [job["tasks"]] * job["count"])), job["tasks"]
            else:
                found, expected = await run_single(job), job["size"]
            control.write(started=started, finished=now())
            assert found == expected * job["count"]


if __name__ == "__main__":
    redpoll.run(submit(Control()))

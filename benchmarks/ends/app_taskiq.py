"""Tasks of taskiq on a stream of Redis, which it acknowledges once the result is stored, and the client end."""

from __future__ import annotations

from typing import Any

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.control import Control, arguments, now, run_async
from benchmarks.ends.app_tasks import broker_url, each

broker = RedisStreamBroker(broker_url(), consumer_id="0").with_result_backend(RedisAsyncResultBackend(broker_url()))


@broker.task(task_name="noop")  # type: ignore[untyped-decorator]
async def noop(size: int) -> str:
    """Return a text."""
    return "x" * size


async def wait(task: Any) -> int:
    """Ask for a result until it is there."""
    return len((await task.wait_result(check_interval=0.05, timeout=600)).return_value)


async def submit(control: Control) -> None:
    """Submit all, then wait for each result; so many at a time."""
    await broker.startup()
    await (await noop.kiq(0)).wait_result(timeout=60)
    control.write(address=None)
    async for job in control.jobs_async():
        started = now()
        sizes = await each(wait, await each(noop.kiq, [job["size"]] * job["count"]))
        control.write(started=started, finished=now())
        assert sum(sizes) == job["size"] * job["count"]
    await broker.shutdown()


if __name__ == "__main__":
    run_async(submit(Control()), arguments()[1]["loop"])

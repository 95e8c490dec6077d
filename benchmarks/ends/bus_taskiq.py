"""Tasks through taskiq's InMemoryBroker, on one loop. The server end stands by.

taskiq runs a task where it is sent, or beside that: then who waits for the result asks again and again, here without a
pause.
"""

from __future__ import annotations

from typing import Any

from benchmarks.control import Control, Fields, arguments, run_async
from benchmarks.ends.bus_engine import keep_open, stand_by

# Its serializer is JSON, which has no bytes.
DATA = "x" * 100
OPEN = 64


async def through_taskiq(control: Control, options: Fields) -> None:
    """Tasks of a broker in this process."""
    from taskiq import InMemoryBroker

    broker = InMemoryBroker(max_async_tasks=OPEN, await_inplace=options["work"] == "in place")

    async def handler(data: str) -> str:
        return data

    work = broker.task(handler)

    async def submit() -> Any:
        task = await work.kiq(DATA)
        return (await task.wait_result(check_interval=0)).return_value

    await broker.startup()
    control.write(address=None)
    async for job in control.jobs_async():
        control.write(**await keep_open(job, submit))
    await broker.shutdown()


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    if role == "server":
        stand_by(control, options)
    else:
        run_async(through_taskiq(control, options), options["loop"])


if __name__ == "__main__":
    main()

"""A queue of jobs with progress reports, a cancelled job, and one that fails.

Prints:

    holiday: 1 of 3
    holiday: 2 of 3
    holiday: 3 of 3
    holiday: 3 pictures
    too large: was cancelled
    broken: remote ValueError: no picture
"""

import asyncio

import redpoll
from redpoll.bus import Handle, Task
from redpoll.errors import RemoteError, TaskCancelled


async def convert(task: Task) -> str:
    """Convert an album."""
    if task.data["name"] == "broken":
        raise ValueError("no picture")
    for number in range(1, task.data["pictures"] + 1):
        await asyncio.sleep(0)  # the conversion of a picture
        task.progress(f"{number} of {task.data['pictures']}")
    return f"{task.data['pictures']} pictures"


async def follow(name: str, task: Handle) -> None:
    """Show the progress of a job and its outcome."""
    async for progress in task.watch():
        print(f"{name}: {progress}")
    try:
        print(f"{name}: {await task.result()}")
    except TaskCancelled:
        print(f"{name}: was cancelled")
    except RemoteError as error:
        print(f"{name}: {error}")


async def main() -> None:
    """Submit jobs and follow them; workers would be other programs, on an engine that connects processes."""
    async with redpoll.connect("memory://") as bus:
        albums = {"holiday": 3, "too large": 1_000_000, "broken": 1}
        tasks = {
            name: await bus.tasks.submit({"name": name, "pictures": pictures}, queue="albums")
            for name, pictures in albums.items()
        }
        await tasks["too large"].cancel()
        async with bus.tasks.worker(convert, queue="albums", concurrency=2):
            for name, task in tasks.items():
                await follow(name, task)


if __name__ == "__main__":
    redpoll.run(main())

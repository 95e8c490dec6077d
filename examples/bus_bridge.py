"""A bridge between two engines: the worker moves from the old one to the new one while the website stays where it is.

Prints:

    old worker: small cat.png
    new worker: small dog.png
    both sides hear: moved
"""

import asyncio

import redpoll
from redpoll.bus import Bus, Task

OLD, NEW = "memory://old", "memory://new"


async def resize(bus: Bus, name: str) -> None:
    """Submit a picture, and print which worker resized it."""
    print(await bus.tasks.run(name, queue="images"))


async def main() -> None:
    """Move the worker."""
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with (
        redpoll.connect(OLD) as old,
        redpoll.connect(NEW) as new,
        redpoll.Bridge(OLD, NEW, period=0.05),
    ):

        async def before(task: Task) -> str:
            return f"old worker: small {task.data}"

        async def after(task: Task) -> str:
            return f"new worker: small {task.data}"

        async with old.tasks.worker(before, queue="images"):
            await resize(old, "cat.png")
        async with new.tasks.worker(after, queue="images"):
            await resize(old, "dog.png")

        async with (
            old.broadcast.subscribe(lambda each: heard.put_nowait(each.body), subject="news"),
            new.broadcast.subscribe(lambda each: heard.put_nowait(each.body), subject="news"),
        ):
            await new.broadcast.send("moved", subject="news")
            assert await heard.get() == await heard.get()
            print("both sides hear: moved")


asyncio.run(main())

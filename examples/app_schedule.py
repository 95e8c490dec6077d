"""Tasks at set times, of which each is done once, however many workers there are.

Prints:

    night:clean at 0 3 * * * in Europe/Berlin, missed ones are left out
    tasks:tick every 0.1 s
    three ticks, each done by one of two workers
"""

import asyncio

import redpoll
from redpoll import GIVEN, App
from redpoll.bus import Task

app = App("memory://")  # with a hub, the times go on while no worker runs
done: asyncio.Queue[str] = asyncio.Queue()


@app.schedule("0 3 * * *", zone="Europe/Berlin", missed="skip", queue="night")
async def clean() -> None:
    """Clean, at three in the morning."""


@app.schedule(every=0.1)
async def tick(task: Task = GIVEN) -> None:
    """Say which task this is."""
    done.put_nowait(task.id)


async def main() -> None:
    """Run two workers for three ticks."""
    async with app, app.work(), app.work():
        for each in sorted(await app.bus.engine.schedules(), key=lambda found: found.name):
            if each.cron is None:
                print(f"{each.name} every {each.every} s")
            else:
                missed = "left out" if each.missed == "skip" else "one task"
                print(f"{each.name} at {each.cron} in {each.zone}, missed ones are {missed}")
        ticks = [await done.get() for _ in range(3)]
        assert len(set(ticks)) == len(ticks)
        print("three ticks, each done by one of two workers")


if __name__ == "__main__":
    redpoll.run(main())

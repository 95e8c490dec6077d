"""A pipeline of pictures: each task submits the next one, with types, a retry, and progress.

Needs the extra `typed`.

Prints:

    a.png: downloaded
    a.png: scaled to 200
    stored a.png, 200 wide, after 2 tries
    b.png: downloaded
    b.png: scaled to 200
    stored b.png, 200 wide, after 1 tries
"""

from dataclasses import dataclass

import redpoll
from redpoll import GIVEN, App, Retry
from redpoll.bus import Task

app = App("memory://")  # with a hub, `redpoll run app_pipeline` works in other processes


@dataclass
class Picture:
    """A picture on its way."""

    name: str
    width: int


@app.task(queue="network", retry=Retry(times=3, on=OSError, backoff=0.01))
async def download(name: str, task: Task = GIVEN) -> Picture:
    """Download a picture; the first try for a.png fails."""
    if name == "a.png" and task.tries == 1:
        raise OSError("the connection was reset")
    task.progress(f"{name}: downloaded")
    return Picture(name, 4_000)


@app.task(queue="computing")
def scale(picture: Picture, width: int, task: Task = GIVEN) -> Picture:
    """Scale a picture, in a thread."""
    task.progress(f"{picture.name}: scaled to {width}")
    return Picture(picture.name, width)


@app.task(queue="network")
async def store(picture: Picture, tries: int) -> str:
    """Store a picture."""
    return f"stored {picture.name}, {picture.width} wide, after {tries} tries"


async def process(name: str) -> str:
    """Send a picture through the pipeline, and show its progress."""
    tries = 2 if name == "a.png" else 1
    downloading = await download.submit(name)
    picture = await downloading.result()
    print(downloading.progress)
    scaling = await scale.submit(picture, 200)
    picture = await scaling.result()
    print(scaling.progress)
    return await store.run(picture, tries)


async def main() -> None:
    """Work and submit in one process."""
    async with app, app.work():
        for name in ("a.png", "b.png"):
            print(await process(name))


if __name__ == "__main__":
    redpoll.run(main())

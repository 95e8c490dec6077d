"""Messages added to a stream of a Redis that syncs before it answers, by redis-py; the server end runs the server."""

from __future__ import annotations

import asyncio
import tempfile

import redis.asyncio as redis

from benchmarks.control import Control, Fields, arguments, now, run_async
from benchmarks.ends.hub_rounds import stand_by
from benchmarks.redis import running

BODY = b"x" * 1_024
STREAM = "only"


def serve(control: Control, options: Fields) -> None:
    """Run the server until the input ends."""
    with (
        tempfile.TemporaryDirectory(dir=options["folder"]) as folder,
        running(folder, appendonly="yes", appendfsync="always", save="") as port,
    ):
        control.write(address=port)
        stand_by(control)


async def add(control: Control, options: Fields) -> None:
    """Add, so many at a time, each when the one before it is on disk."""
    async with redis.Redis(port=options["address"], max_connections=options["connections"]) as client:
        control.write(address=None)
        async for job in control.jobs_async():
            callers = min(job["open"], job["count"], options["connections"])
            share = max(1, job["count"] // callers)

            async def call(count: int) -> None:
                for _ in range(count):
                    await client.xadd(STREAM, {"body": BODY})

            started = now()
            await asyncio.gather(*(call(share) for _ in range(callers)))
            control.write(started=started, finished=now(), count=share * callers)
            await client.delete(STREAM)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    if role == "server":
        serve(control, options)
    else:
        run_async(add(control, options), options["loop"])


if __name__ == "__main__":
    main()

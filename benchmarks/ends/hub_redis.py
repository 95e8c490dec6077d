"""Messages added to a stream of a Redis that syncs before it answers, by redis-py; the server end runs the server."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile

import redis.asyncio as redis

from benchmarks.control import Control, Fields, arguments, free_port, now, run_async
from benchmarks.ends.hub_rounds import stand_by

BODY = b"x" * 1_024
STREAM = "only"


def serve(control: Control, options: Fields) -> None:
    """Run the server until the input ends."""
    program = shutil.which("redis-server")
    if program is None:
        raise FileNotFoundError("Redis is not installed: apt-get install redis-server")
    with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        port = free_port()
        settings = {"bind": "127.0.0.1", "port": port, "dir": folder, "appendonly": "yes", "appendfsync": "always"}
        given = [part for name, value in {**settings, "save": ""}.items() for part in (f"--{name}", str(value))]
        server = subprocess.Popen([program, *given], stdout=subprocess.DEVNULL)
        try:
            asyncio.run(_listening(port))
            control.write(address=port)
            stand_by(control)
        finally:
            server.kill()
            server.wait()


async def _listening(port: int) -> None:
    """Wait until the server answers."""
    async with asyncio.timeout(10), redis.Redis(port=port) as client:
        while True:
            try:
                await client.ping()
            except redis.ConnectionError:
                await asyncio.sleep(0.05)
            else:
                return


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

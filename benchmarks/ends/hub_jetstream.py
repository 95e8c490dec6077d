"""Confirmed publishes to a JetStream that syncs each; the server end runs its nats-server."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from pathlib import Path

import nats

from benchmarks.control import Control, Fields, arguments, free_port, now, run_async
from benchmarks.ends.nats import server_program

BODY = b"x" * 1_024


def start(folder: str) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server whose streams sync each message; return it with its address."""
    port = free_port()
    store = f'store_dir: "{folder}/store", sync_interval: "always"'
    config = Path(folder, "nats.conf")
    config.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ {store} }}\n')
    server = subprocess.Popen([server_program(), "-c", str(config)], stderr=subprocess.DEVNULL)
    return server, f"nats://127.0.0.1:{port}"


async def serve(control: Control, options: Fields) -> None:
    """Run the server until the input ends."""
    with tempfile.TemporaryDirectory(dir=options["folder"]) as folder:
        server, address = start(folder)
        try:
            client = await nats.connect(address, connect_timeout=10)
            await client.jetstream().add_stream(name="only", subjects=["only"], storage="file", retention="workqueue")
            await client.close()
            control.write(address=address)
            async for _ in control.jobs_async():
                control.write(begun=True)
                control.write(finished=0.0)
        finally:
            server.terminate()
            server.wait()


async def publish(control: Control, options: Fields) -> None:
    """Publish, so many at a time, each when the one before it is confirmed."""
    client = await nats.connect(options["address"])
    stream = client.jetstream()
    control.write(address=None)
    async for job in control.jobs_async():
        share = max(1, job["count"] // job["open"])
        callers = min(job["open"], job["count"])

        async def call(count: int) -> None:
            for _ in range(count):
                await stream.publish("only", BODY, timeout=60)

        started = now()
        await asyncio.gather(*(call(share) for _ in range(callers)))
        control.write(started=started, finished=now(), count=share * callers)
        await stream.purge_stream("only")
    await client.close()


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    run_async((serve if role == "server" else publish)(Control(), options), options.get("loop", "asyncio"))


if __name__ == "__main__":
    main()

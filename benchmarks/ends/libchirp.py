"""The two ends of libchirp's Python binding, through its asyncio or its queue interface."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import libchirp
import libchirp.asyncio
import libchirp.queue

from benchmarks.control import Control, Countdown, Fields, arguments, free_port, now, run_async, serve_counting


def make_config(options: Fields) -> Any:
    """Return a libchirp Config on free ports: its own defaults but for what `options` name."""
    config = libchirp.Config()
    config.PORT = free_port()
    config.DISABLE_ENCRYPTION = True  # loopback is plain either way; without it certificate files are demanded
    config.SYNCHRONOUS = options["acknowledge"]
    if "slots" in options:
        config.MAX_SLOTS = options["slots"]
    return config


class CountingChirp(libchirp.asyncio.Chirp):  # type: ignore[misc]
    """An asyncio receiver that counts."""

    countdown: Countdown

    async def handler(self, msg: Any) -> None:
        """Count one message; the binding releases it afterwards."""
        self.countdown.take()


async def receive_asyncio(control: Control, loop: Any, options: Fields) -> None:
    """Receive through the asyncio interface."""
    config = make_config(options)
    chirp = CountingChirp(loop, config, asyncio.get_running_loop())
    chirp.countdown = Countdown()
    control.write(address=f"127.0.0.1:{config.PORT}")
    await serve_counting(control, chirp.countdown)
    chirp.stop()


def receive_queue(control: Control, loop: Any, options: Fields) -> None:
    """Receive through the queue interface."""
    config = make_config(options)
    chirp = libchirp.queue.Chirp(loop, config)
    control.write(address=f"127.0.0.1:{config.PORT}")
    for job in control.jobs():
        control.write(begun=True)
        get = chirp.get
        for _ in range(job["count"]):
            get()
        control.write(finished=now())
    chirp.stop()


def new_messages(kind: Any, options: Fields, job: Fields) -> deque[Any]:
    """Return the messages to keep in flight; each is sent again when it is done, which spares making new ones."""
    host, _, port = options["address"].rpartition(":")
    messages: deque[Any] = deque()
    for _ in range(job["open"]):
        message = kind()
        message.address = host
        message.port = int(port)
        message.data = bytes(job["size"])
        messages.append(message)
    return messages


async def send_asyncio(control: Control, loop: Any, options: Fields) -> None:
    """Send through the asyncio interface, the oldest future awaited before the next send."""
    chirp = libchirp.asyncio.Chirp(loop, make_config(options), asyncio.get_running_loop())
    control.write(address=None)
    async for job in control.jobs_async():
        idle = new_messages(libchirp.asyncio.Message, options, job)
        flying: deque[Any] = deque()
        started = now()
        for _ in range(job["count"]):
            message = idle.popleft() if idle else await flying.popleft()
            flying.append(chirp.send(message))
        for future in flying:
            await future
        control.write(started=started, finished=now())
    chirp.stop()


def send_queue(control: Control, loop: Any, options: Fields) -> None:
    """Send through the queue interface, the oldest future awaited before the next send."""
    chirp = libchirp.queue.Chirp(loop, make_config(options))
    control.write(address=None)
    for job in control.jobs():
        idle = new_messages(libchirp.queue.Message, options, job)
        flying: deque[Any] = deque()
        started = now()
        for _ in range(job["count"]):
            message = idle.popleft() if idle else flying.popleft().result()
            flying.append(chirp.send(message))
        for future in flying:
            future.result()
        control.write(started=started, finished=now())
    chirp.stop()


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    loop = libchirp.Loop()
    try:
        if options["api"] == "asyncio":
            work = receive_asyncio if role == "server" else send_asyncio
            run_async(work(control, loop, options), "asyncio")
        elif role == "server":
            receive_queue(control, loop, options)
        else:
            send_queue(control, loop, options)
    finally:
        loop.stop()


if __name__ == "__main__":
    main()

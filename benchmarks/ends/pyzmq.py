"""The two ends of pyzmq: PUSH/PULL streams and REQ/REP, blocking or through zmq.asyncio."""

from __future__ import annotations

from typing import Any

import zmq
from zmq.asyncio import Context as AsyncContext

from benchmarks.control import Control, Fields, arguments, now, run_async
from benchmarks.latency import latency_answer, time_blocking, time_each


def open_socket(context: Any, kind: int, options: Fields) -> Any:
    """Return a socket of `kind`, bound to a free port of ``options["host"]`` or connected to ``options["address"]``."""
    zmq_socket = context.socket(kind)
    zmq_socket.linger = 0
    if "high_water_mark" in options:
        zmq_socket.set_hwm(options["high_water_mark"])
    if "address" in options:
        zmq_socket.connect("tcp://" + options["address"])
    else:
        zmq_socket.bind("tcp://{}:*".format(options.get("host", "127.0.0.1")))
    return zmq_socket


def bound_address(zmq_socket: Any) -> str:
    """Return "host:port" of a bound socket."""
    endpoint: str = zmq_socket.last_endpoint.decode()
    return endpoint.removeprefix("tcp://")


def pull(control: Control, zmq_socket: Any) -> None:
    """Receive each job's messages with blocking calls."""
    control.write(address=bound_address(zmq_socket))
    for job in control.jobs():
        control.write(begun=True)
        recv = zmq_socket.recv
        recv()
        first = now()
        for _ in range(job["count"] - 1):
            recv()
        control.write(first=first, finished=now())


async def pull_asyncio(control: Control, zmq_socket: Any) -> None:
    """Receive each job's messages, each by its own await."""
    control.write(address=bound_address(zmq_socket))
    async for job in control.jobs_async():
        control.write(begun=True)
        recv = zmq_socket.recv
        await recv()
        first = now()
        for _ in range(job["count"] - 1):
            await recv()
        control.write(first=first, finished=now())


def push(control: Control, zmq_socket: Any) -> None:
    """Send each job's messages with blocking calls."""
    control.write(address=None)
    for job in control.jobs():
        data = bytes(job["size"])
        send = zmq_socket.send
        started = now()
        for _ in range(job["count"]):
            send(data)
        control.write(started=started, finished=now())


def reply(control: Control, zmq_socket: Any) -> None:
    """Answer each job's requests with what they carried."""
    control.write(address=bound_address(zmq_socket))
    for job in control.jobs():
        control.write(begun=True)
        for _ in range(job["count"]):
            zmq_socket.send(zmq_socket.recv())
        control.write(finished=now())


async def reply_asyncio(control: Control, zmq_socket: Any) -> None:
    """Answer each job's requests with what they carried, awaiting each step."""
    control.write(address=bound_address(zmq_socket))
    async for job in control.jobs_async():
        control.write(begun=True)
        for _ in range(job["count"]):
            await zmq_socket.send(await zmq_socket.recv())
        control.write(finished=now())


def request(control: Control, zmq_socket: Any) -> None:
    """Time each request of a job."""
    control.write(address=None)
    for job in control.jobs():
        data = bytes(job["size"])

        def once(data: bytes = data) -> None:
            zmq_socket.send(data)
            zmq_socket.recv()

        control.write(**latency_answer(*time_blocking(once, job["count"])))


async def request_asyncio(control: Control, zmq_socket: Any) -> None:
    """Time each request of a job, awaiting each step."""
    control.write(address=None)
    async for job in control.jobs_async():
        data = bytes(job["size"])

        async def once(data: bytes = data) -> None:
            await zmq_socket.send(data)
            await zmq_socket.recv()

        control.write(**latency_answer(*await time_each(once, job["count"])))


BLOCKING = {
    ("stream", "server"): (zmq.PULL, pull),
    ("stream", "client"): (zmq.PUSH, push),
    ("request", "server"): (zmq.REP, reply),
    ("request", "client"): (zmq.REQ, request),
}
ASYNCIO = {
    ("stream", "server"): (zmq.PULL, pull_asyncio),
    ("request", "server"): (zmq.REP, reply_asyncio),
    ("request", "client"): (zmq.REQ, request_asyncio),
}


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    key = (options["pattern"], role)
    # The sender of the zmq.asyncio stream is the blocking one: it is faster, and the receiver is what is compared.
    if options["api"] == "asyncio" and key in ASYNCIO:
        kind, work = ASYNCIO[key]

        async def run() -> None:
            with AsyncContext() as context:
                await work(control, open_socket(context, kind, options))

        run_async(run(), options["loop"])
    else:
        blocking_kind, blocking_work = BLOCKING[key]
        with zmq.Context() as context:
            blocking_work(control, open_socket(context, blocking_kind, options))


if __name__ == "__main__":
    main()

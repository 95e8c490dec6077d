"""The two ends of a queue between processes, of net-queue or of redpoll.nq: the same program for both."""

from __future__ import annotations

import importlib
import uuid
from typing import TYPE_CHECKING, Any

from benchmarks.control import Control, Fields, arguments, free_port, now
from benchmarks.latency import latency_answer, time_blocking
from benchmarks.memory import forget_peak, peak_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

#: A communicator of either library.
Queue = Any


def library(options: Fields) -> Any:
    """Import what the end was told to use."""
    return importlib.import_module({"net-queue": "net_queue", "redpoll": "redpoll.nq"}[options["library"]])


def open_queue(module: Any, purpose: str, port: int) -> Queue:
    """Make a communicator over TCP, all else at its defaults."""
    options = module.CommunicatorOptions(id=uuid.uuid4(), netloc=module.NetworkLocation("127.0.0.1", port))
    return module.new(protocol=module.Protocol.TCP, purpose=module.Purpose(purpose), options=options)


# Round trips


def echo(queue: Queue, control: Control, job: Fields) -> None:
    """Put each message back to where it came from."""
    control.write(begun=True)
    for _ in range(job["count"]):
        message = queue.get()
        queue.put(message.data, message.peer)
    control.write(finished=now())


def time_echoes(queue: Queue, job: Fields) -> Fields:
    """Time each round trip of a put and a get, one after the other."""
    data = bytes(job["size"])

    def once() -> None:
        queue.put(data)
        queue.get()

    return latency_answer(*time_blocking(once, job["count"]))


# Large arrays


def take_array(queue: Queue, control: Control, job: Fields) -> None:
    """Get one array, and answer with what it took."""
    import numpy as np  # redpoll makes no arrays in a program that has not imported it

    before = forget_peak()
    control.write(begun=True)
    message = queue.get()
    grown = peak_bytes() - before
    control.write(finished=now(), grown=grown, size=message.data.nbytes, right=type(message.data) is np.ndarray)


def put_array(queue: Queue, job: Fields) -> Fields:
    """Put one array, wait until the peer has it, and answer with what that took beside it."""
    import numpy as np

    array = np.ones(job["count"] << 20, dtype=np.uint8)
    before = forget_peak()
    started = now()
    queue.put(array).result()
    return {"started": started, "finished": now(), "grown": peak_bytes() - before}


SERVERS: dict[str, Callable[[Queue, Control, Fields], None]] = {"echo": echo, "array": take_array}
CLIENTS: dict[str, Callable[[Queue, Fields], Fields]] = {"echo": time_echoes, "array": put_array}


def serve(control: Control, options: Fields) -> None:
    """Do the server's part of each job."""
    port = free_port()
    with open_queue(library(options), "server", port) as queue:
        control.write(address=f"127.0.0.1:{port}")
        for job in control.jobs():
            SERVERS[options["work"]](queue, control, job)


def connect(control: Control, options: Fields) -> None:
    """Do the client's part of each job."""
    with open_queue(library(options), "client", int(options["address"].rpartition(":")[2])) as queue:
        control.write(address=None)
        for job in control.jobs():
            control.write(**CLIENTS[options["work"]](queue, job))


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    (serve if role == "server" else connect)(Control(), options)


if __name__ == "__main__":
    main()

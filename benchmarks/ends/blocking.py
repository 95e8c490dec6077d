"""The two ends of redpoll in plain threads, by its public names only."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future

from benchmarks.control import Control, Fields, arguments, now
from redpoll import Address, Message
from redpoll.blocking import QueueNode


def receive(control: Control, options: Fields) -> None:
    """Get each message in the main thread; the next `get` releases it."""
    with QueueNode[bytes](port=0, **options["config"]) as node:
        control.write(address=str(node.address))
        for job in control.jobs():
            control.write(begun=True)
            get = node.get
            for _ in range(job["count"] - 1):
                get()
            get().release()
            control.write(finished=now())


def send(control: Control, options: Fields) -> None:
    """Keep each job's number of sends open; the oldest is waited for before the next is begun."""
    address = Address.parse(options["address"])
    with QueueNode[bytes](**options["config"]) as node:
        control.write(address=None)
        for job in control.jobs():
            data = bytes(job["size"])
            room = job["open"]
            flying: deque[Future[None]] = deque()
            send = node.send
            started = now()
            for _ in range(job["count"]):
                if room:
                    room -= 1
                else:
                    flying.popleft().result()
                flying.append(send(Message(data, address)))
            for future in flying:
                future.result()
            control.write(started=started, finished=now())


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    (receive if role == "server" else send)(Control(), options)


if __name__ == "__main__":
    main()

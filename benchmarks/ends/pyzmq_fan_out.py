"""The two ends of pyzmq's PUB and SUB: one socket that sends, many that receive, in several processes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import zmq

from benchmarks.control import Control, Fields, arguments, now
from benchmarks.ends.pyzmq import bound_address, open_socket


def distribute(control: Control, options: Fields, context: Any) -> None:
    """Send each job's messages to all that have subscribed."""
    # As PUB, and it tells of subscriptions: what is sent before they are there would be lost.
    with context.socket(zmq.XPUB) as publisher:
        publisher.linger = 0
        publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
        publisher.setsockopt(zmq.XPUB_NODROP, int(options["wait"]))
        if "high_water_mark" in options:
            publisher.set_hwm(options["high_water_mark"])
        publisher.bind("tcp://127.0.0.1:*")
        control.write(address=bound_address(publisher))
        missing = options["workers"] * options["queues"]
        for job in control.jobs():
            for _ in range(missing):
                publisher.recv()
            missing = 0
            data = bytes(job["size"])
            send = publisher.send
            control.write(begun=True)
            started = now()
            for _ in range(job["count"]):
                send(data)
            control.write(started=started, finished=now())


def take(control: Control, options: Fields, context: Any) -> None:
    """Be one of several processes with some of the sockets; each of them receives everything."""
    with ExitStack() as stack:
        sockets = []
        for _ in range(options["queues"]):
            each = stack.enter_context(open_socket(context, zmq.SUB, options))
            each.subscribe(b"")
            sockets.append(each)
        control.write(address=None)
        receive = [each.recv for each in sockets]
        for job in control.jobs():
            control.write(begun=True)
            # All get the same, so the next message is there, or about to come, wherever one was: no poll is needed.
            for _ in range(job["count"]):
                for recv in receive:
                    recv()
            control.write(finished=now())


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    with zmq.Context() as context:
        (distribute if role == "server" else take)(Control(), options, context)


if __name__ == "__main__":
    main()

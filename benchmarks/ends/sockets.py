"""The two ends of blocking sockets, plain or with TLS: the limit that messages are held against."""

from __future__ import annotations

import socket
from collections.abc import Callable

from benchmarks.control import Control, Fields, arguments, now
from benchmarks.encryption import encrypted
from benchmarks.latency import latency_answer, time_blocking

#: Bytes that are written, and read, at a time where messages are batched.
BATCH = 1 << 16


def fill(connection: socket.socket, view: memoryview) -> None:
    """Receive until the view is full."""
    received = 0
    while received < len(view):
        got = connection.recv_into(view[received:])
        if not got:
            raise ConnectionError("the other end closed in the middle of a message")
        received += got


def take_messages(connection: socket.socket, control: Control, job: Fields) -> None:
    """Receive a job's messages into one buffer and confirm the last."""
    view = memoryview(bytearray(job["size"]))
    for _ in range(job["count"]):
        fill(connection, view)
    finished = now()
    connection.sendall(b"k")
    control.write(finished=finished)


def send_messages(connection: socket.socket, job: Fields) -> Fields:
    """Send a job's messages and wait for the confirmation of the last."""
    data = bytes(job["size"])
    started = now()
    for _ in range(job["count"]):
        connection.sendall(data)
    confirmed(connection)
    return {"started": started, "finished": now()}


def take_batches(connection: socket.socket, control: Control, job: Fields) -> None:
    """Receive the bytes of a job's messages, as many at a time as there are, and confirm the last."""
    left = job["count"] * job["size"]
    view = memoryview(bytearray(BATCH))
    while left:
        got = connection.recv_into(view[:left])
        if not got:
            raise ConnectionError("the sender closed before it was done")
        left -= got
    finished = now()
    connection.sendall(b"k")
    control.write(finished=finished)


def send_batches(connection: socket.socket, job: Fields) -> Fields:
    """Send a job's messages, as many at a time as a batch holds, and wait for the confirmation of the last."""
    at_once = max(1, BATCH // job["size"])
    batch = bytes(at_once * job["size"])
    whole, rest = divmod(job["count"], at_once)
    started = now()
    for _ in range(whole):
        connection.sendall(batch)
    connection.sendall(bytes(rest * job["size"]))
    confirmed(connection)
    return {"started": started, "finished": now()}


def confirmed(connection: socket.socket) -> None:
    """Wait until the receiver says that it has all."""
    if connection.recv(1) != b"k":
        raise ConnectionError("the receiver did not confirm")


def echo(connection: socket.socket, control: Control, job: Fields) -> None:
    """Send each of a job's messages back."""
    view = memoryview(bytearray(job["size"]))
    for _ in range(job["count"]):
        fill(connection, view)
        connection.sendall(view)
    control.write(finished=now())


def ask(connection: socket.socket, job: Fields) -> Fields:
    """Time each of a job's messages there and back."""
    data = bytes(job["size"])
    view = memoryview(bytearray(job["size"]))

    def once() -> None:
        connection.sendall(data)
        fill(connection, view)

    return latency_answer(*time_blocking(once, job["count"]))


SERVERS: dict[str, Callable[[socket.socket, Control, Fields], None]] = {
    "messages": take_messages,
    "batches": take_batches,
    "echo": echo,
}
CLIENTS: dict[str, Callable[[socket.socket, Fields], Fields]] = {
    "messages": send_messages,
    "batches": send_batches,
    "echo": ask,
}


def grown(job: Fields, options: Fields) -> Fields:
    """Return a job whose messages are larger by what the row takes for a frame of another's."""
    return {**job, "size": job["size"] + options.get("overhead", 0)}


def serve(control: Control, options: Fields) -> None:
    """Do the server's part of each job."""
    work = SERVERS[options.get("work", "messages")]
    with socket.create_server((options.get("host", "127.0.0.1"), 0)) as listener:
        control.write(address="{}:{}".format(*listener.getsockname()))
        accepted, _ = listener.accept()
        with encrypted(accepted, options, server_side=True) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for job in control.jobs():
                control.write(begun=True)
                work(connection, control, grown(job, options))


def connect(control: Control, options: Fields) -> None:
    """Do the client's part of each job."""
    work = CLIENTS[options.get("work", "messages")]
    host, _, port = options["address"].rpartition(":")
    dialled = socket.create_connection((host, int(port)))
    with encrypted(dialled, options, server_side=False) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        control.write(address=None)
        for job in control.jobs():
            control.write(**work(connection, grown(job, options)))


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    (serve if role == "server" else connect)(Control(), options)


if __name__ == "__main__":
    main()

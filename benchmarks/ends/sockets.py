"""The two ends of blocking sockets, plain or with TLS: the limit that large messages are held against."""

from __future__ import annotations

import socket

from benchmarks.control import Control, Fields, arguments, now
from benchmarks.encryption import encrypted


def receive(control: Control, options: Fields) -> None:
    """Receive each job's messages into one buffer and confirm the last."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        control.write(address=f"127.0.0.1:{listener.getsockname()[1]}")
        accepted, _ = listener.accept()
        with encrypted(accepted, options, server_side=True) as connection:
            for job in control.jobs():
                control.write(begun=True)
                size = job["size"]
                view = memoryview(bytearray(size))
                for _ in range(job["count"]):
                    received = 0
                    while received < size:
                        got = connection.recv_into(view[received:])
                        if not got:
                            raise ConnectionError("the sender closed in the middle of a message")
                        received += got
                finished = now()
                connection.sendall(b"k")
                control.write(finished=finished)


def send(control: Control, options: Fields) -> None:
    """Send each job's messages and wait for the confirmation of the last."""
    host, _, port = options["address"].rpartition(":")
    dialled = socket.create_connection((host, int(port)))
    with encrypted(dialled, options, server_side=False) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        control.write(address=None)
        for job in control.jobs():
            data = bytes(job["size"])
            started = now()
            for _ in range(job["count"]):
                connection.sendall(data)
            if connection.recv(1) != b"k":
                raise ConnectionError("the receiver did not confirm")
            control.write(started=started, finished=now())


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    (receive if role == "server" else send)(control, options)


if __name__ == "__main__":
    main()

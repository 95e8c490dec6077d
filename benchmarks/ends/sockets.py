"""The two ends of plain blocking sockets: the limit that large messages are held against."""

from __future__ import annotations

import socket

from benchmarks.control import Control, arguments, now


def receive(control: Control) -> None:
    """Receive each job's messages into one buffer and confirm the last."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        control.write(address=f"127.0.0.1:{listener.getsockname()[1]}")
        connection, _ = listener.accept()
        with connection:
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


def send(control: Control, address: str) -> None:
    """Send each job's messages and wait for the confirmation of the last."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
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
    if role == "server":
        receive(control)
    else:
        send(control, options["address"])


if __name__ == "__main__":
    main()

"""A chat, with the calls of the first ØMQ Python extension: prompts, displays, and a room between them.

Each is a separate process and knows the others by name only. Text typed at a prompt goes to the room's queue CHAT-IN, and the
room's exchange CHAT-OUT sends it to every display. They can be started in any order.

Prints:

    on display 1: anna: is anybody here?
    on display 1: anna: hello?
    on display 1: bert: I am
    on display 2: anna: is anybody here?
    on display 2: anna: hello?
    on display 2: bert: I am
"""

import asyncio
import multiprocessing
from multiprocessing.connection import Connection

from redpoll.wiring import zmq as pyzmq
from redpoll.wiring.directory import Directory

LAST = b"the room is closed"


def room(hostname: str) -> None:
    """Send text from any prompt to all displays."""
    with pyzmq.ZMQ(hostname) as zmq:
        shown = zmq.create_exchange("CHAT-OUT", pyzmq.SCOPE_GLOBAL)
        zmq.create_queue("CHAT-IN", pyzmq.SCOPE_GLOBAL)
        line = b""
        while line != LAST:
            line = zmq.receive()
            zmq.send(shown, line)


def prompt(hostname: str, name: str, lines: list[str]) -> None:
    """Send lines of text."""
    with pyzmq.ZMQ(hostname) as zmq:
        typed = zmq.create_exchange("TYPED", pyzmq.SCOPE_LOCAL)
        zmq.bind("TYPED", "CHAT-IN")
        for line in lines:
            zmq.send(typed, f"{name}: {line}".encode() if name else LAST)


def display(hostname: str, screen: Connection) -> None:
    """Show text until the room is closed."""
    with pyzmq.ZMQ(hostname) as zmq:
        zmq.create_queue("SHOWN", pyzmq.SCOPE_LOCAL)
        zmq.bind("CHAT-OUT", "SHOWN")
        screen.send("on")
        while (line := zmq.receive()) != LAST:
            screen.send(line.decode())
        screen.send(None)


def serve(told: Connection) -> None:
    """Run a directory, as `redpoll directory` does."""

    async def run() -> None:
        async with Directory(port=0) as directory:
            told.send(str(directory.address))
            await directory.serve_forever()

    asyncio.run(run())


def main() -> None:
    """Start the displays first, and the room last."""
    spawn = multiprocessing.get_context("spawn")
    told, tells = spawn.Pipe(duplex=False)
    directory = spawn.Process(target=serve, args=(tells,), daemon=True)
    directory.start()
    hostname = told.recv()

    screens = []
    started = []
    for _ in range(2):
        screen, behind = spawn.Pipe(duplex=False)
        screens.append(screen)
        started.append(spawn.Process(target=display, args=(hostname, behind)))
    started.append(spawn.Process(target=room, args=(hostname,)))
    for process in started:
        process.start()
    for screen in screens:
        assert screen.recv() == "on"

    for name, lines in (("anna", ["is anybody here?", "hello?"]), ("bert", ["I am"]), ("", [""])):
        prompt(hostname, name, lines)

    for number, screen in enumerate(screens, 1):
        while (line := screen.recv()) is not None:
            print(f"on display {number}: {line}")
    for process in started:
        process.join()
    directory.terminate()
    directory.join()


if __name__ == "__main__":
    main()

"""What objects of the old module do while Ctrl-C interrupts them, and the account of it."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from redpoll import Closed
from redpoll.wiring import zmq as pyzmq
from tests.storms import Storm, no_loop_is_left, run_script, within


def wired(made: pyzmq.ZMQ) -> int:
    """Wire an exchange to a queue; its number."""
    number = made.create_exchange("e")
    made.create_queue("q")
    made.bind("e", "q")
    return number


def messages(storm: Storm, chance: random.Random) -> None:
    """Send and receive: what was sent is received once, in order."""
    made = pyzmq.ZMQ()
    exchange = wired(made)
    sent: set[int] = set()
    received: list[int] = []

    def receive() -> Any:
        try:
            return made.receive(timeout=chance.choice((0, 0.001, 0.01)))
        except TimeoutError:
            return None

    storm.begin()
    number = 0
    while not storm.over:
        if storm.attempt(partial(made.send, exchange, b"%d" % number))[0]:
            sent.add(number)
        number += 1
        returned, message = storm.attempt(receive)
        if returned and message is not None:
            received.append(int(message))
    try:
        while True:
            received.append(int(made.receive(timeout=1)))
    except TimeoutError:
        pass
    assert not sent - set(received)
    assert received == sorted(set(received))
    within(partial(made.close, 1), "close")


def closing(storm: Storm, chance: random.Random) -> None:
    """Make and close objects: a thread that receives is told."""
    storm.begin()
    while not storm.over:
        made = pyzmq.ZMQ()
        receiving = threading.Thread(target=receives, args=(made,))
        returned, exchange = storm.attempt(partial(wired, made))
        receiving.start()
        if returned:
            storm.attempt(partial(made.send, exchange, b"x"))
        for _ in range(chance.randrange(1, 4)):
            if storm.attempt(partial(made.close, chance.choice((0, 0.1, 1))))[0]:
                break
        within(partial(made.close, 0), "close")
        within(receiving.join, "a receive")
    no_loop_is_left()


def receives(made: pyzmq.ZMQ) -> None:
    """Receive until the end."""
    try:
        while True:
            made.receive()
    except Closed:
        pass


SCRIPTS: dict[str, Callable[[Storm, random.Random], None]] = {"messages": messages, "close": closing}

if __name__ == "__main__":
    run_script(SCRIPTS)

"""What nodes for threads do while Ctrl-C interrupts them, and the account of it."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from redpoll import Closed, Message
from redpoll.blocking import PoolNode, QueueNode
from tests.storms import Storm, all_end, confirmed, no_loop_is_left, run_script, within

Node = QueueNode[Any]


def node(**options: Any) -> Node:
    """One whose sends have all the time that a storm lasts."""
    return QueueNode(**{"port": 0, "timeout": None, **options})


def get(storm: Storm, chance: random.Random) -> None:
    """Get and take what another thread sends: what was confirmed was seen."""
    receiver, sender = node(slots=chance.choice((None, 4))), node()
    receiver.start()
    sender.start()
    address = receiver.address
    seen: list[int] = []
    sends: dict[int, Future[None]] = {}

    def send() -> None:
        while not storm.over:
            if len(sends) - len(seen) < 40:
                sends[len(sends)] = sender.send(Message(b"%d" % len(sends), address))
            else:
                time.sleep(0.0005)

    def take_one() -> Any:
        timeout = chance.choice((1, 0, 0.001, 0.2))
        try:
            if chance.random() < 0.7:
                return receiver.get(timeout=timeout)
            with receiver.take(timeout) as message:
                seen.append(int(message.data))
        except (queue.Empty, TimeoutError):
            pass
        return None

    sending = threading.Thread(target=send)
    storm.begin()
    sending.start()
    while not storm.over:
        returned, message = storm.attempt(take_one)
        if returned and message is not None:
            seen.append(int(message.data))
    sending.join()
    try:
        while True:
            seen.append(int(receiver.get(timeout=1).data))
    except queue.Empty:
        pass
    all_end(sends.values(), "a send")
    assert not confirmed(sends) - set(seen)
    stop_all(sender, receiver)


def send(storm: Storm, chance: random.Random) -> None:
    """Send, wait and look: what was confirmed was handled, once."""
    handled: list[int] = []
    receiver = PoolNode(lambda message: handled.append(int(message.data)), port=0)
    receiver.start()
    sender = node()
    sender.start()
    address = receiver.address
    sender.ready(address)
    sends: dict[int, Future[None]] = {}

    def wait() -> None:
        last = next(reversed(sends.values()))
        last.cancelled() or last.exception()

    def batch() -> None:
        sender.send_many([Message(b"-1", address)] * 5)

    def ready() -> None:
        sender.ready(address)

    storm.begin()
    number = 0
    while not storm.over:
        returned, future = storm.attempt(partial(sender.send, Message(b"%d" % number, address)))
        if returned:
            sends[number] = future
            storm.attempt(chance.choice((bool, bool, wait, future.cancel, future.done, sender.stats, batch, ready)))
        number += 1
    all_end(sends.values(), "a send")
    stop_all(sender, receiver)
    numbered = [each for each in handled if each >= 0]
    assert not confirmed(sends) - set(numbered)
    assert len(numbered) == len(set(numbered))


def stop(storm: Storm, chance: random.Random) -> None:
    """Start and stop one of two nodes: whatever waits on it ends."""
    storm.begin()
    while not storm.over:
        receiver, sender = node(), node()
        if not storm.attempt(receiver.start)[0]:
            stop_all(receiver)
            continue
        sender.start()
        sends = [sender.send(Message(b"x", receiver.address)) for _ in range(chance.randrange(20))]
        threads = [
            threading.Thread(target=gets, args=(receiver,)),
            threading.Thread(target=all_end, args=(sends, "a send")),
        ]
        for thread in threads:
            thread.start()
        end, other = chance.choice(((receiver, sender), (sender, receiver)))
        for _ in range(chance.randrange(1, 5)):
            if storm.attempt(partial(end.stop, chance.choice((0, 0.05, 1))))[0]:
                break
        stop_all(end, other)
        for thread in threads:
            within(thread.join, "a get, or a send")
    no_loop_is_left()


def gets(receiver: Node) -> None:
    """Get until the end."""
    try:
        while True:
            receiver.get()
    except Closed:
        pass


def stop_all(*nodes: Node | PoolNode[Any]) -> None:
    """Stop them for good."""
    for each in nodes:
        within(partial(each.stop, 1), "stop")


SCRIPTS: dict[str, Callable[[Storm, random.Random], None]] = {"get": get, "send": send, "stop": stop}

if __name__ == "__main__":
    run_script(SCRIPTS)

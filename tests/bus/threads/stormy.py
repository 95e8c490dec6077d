"""What a bus for threads does while Ctrl-C interrupts it, and the account of it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from redpoll import Closed
from redpoll.blocking import connect
from redpoll.bus import Task
from redpoll.bus.threads import BlockingBus, BlockingHandle
from redpoll.errors import QueueEmpty
from tests.storms import Storm, all_end, no_loop_is_left, run_script, within


def same(task: Task) -> Any:
    """A handler, which runs in a thread."""
    return task.data


def take(storm: Storm, chance: random.Random) -> None:
    """Take tasks, in every way there is: each that was submitted has one result in the end."""
    bus = connect("memory://").__enter__()
    handles: list[BlockingHandle] = []
    done: list[int] = []

    def submit() -> None:
        while not storm.over:
            if len(handles) - len(done) < 40:
                handles.append(bus.tasks.submit(len(handles)))
            else:
                time.sleep(0.0005)

    def by_block() -> None:
        with bus.tasks.next(timeout=chance.choice((0, 0.001, 1))) as task:
            task.set_result(task.data)
            done.append(task.data)

    def by_hand() -> None:
        task = bus.tasks.next(timeout=0.2)
        if chance.random() < 0.2:
            return  # it goes back
        task.set_result(task.data)
        done.append(task.data)
        task.confirmed()

    def by_turns() -> None:
        for task in bus.tasks.each():
            with task:
                if chance.random() < 0.8:
                    task.set_result(task.data)
                    done.append(task.data)

    def attempt() -> None:
        try:
            chance.choice((by_block, by_hand, by_turns))()
        except QueueEmpty:
            pass

    bus.queues.declare("tasks")
    sending = threading.Thread(target=submit)
    storm.begin()
    sending.start()
    while not storm.over:
        storm.attempt(attempt)
    sending.join()
    with bus.tasks.worker(same):
        results: list[Any] = []
        within(lambda: results.extend(each.result() for each in handles), "the results of all tasks")
    assert results == list(range(len(handles)))
    queue = bus.queues.inspect("tasks")
    assert (queue.ready, queue.taken, queue.dead) == (0, 0, 0)
    within(bus.close, "closing")


def wait(storm: Storm, chance: random.Random) -> None:
    """Wait for all sorts of things: nothing stays behind, and the bus goes on."""
    bus = connect("memory://").__enter__()
    heard: list[int] = []
    server = bus.rpc.serve("calculator", Calculator(bus)).__enter__()
    listening = bus.broadcast.subscribe(subject="n").__enter__()
    sent = 0

    def listen() -> None:
        for each in listening:
            heard.append(each.body)
            if len(heard) >= sent:
                return

    def broadcast() -> None:
        bus.broadcast.send(sent, subject="n")

    def watch() -> None:
        handle = bus.tasks.submit("w")
        for _ in handle.watch():
            pass

    def stream() -> None:
        for part in bus.rpc.stream("calculator", "count"):
            if part > 100:
                break

    def work() -> None:
        with bus.tasks.worker(same, drain=chance.choice((0, 1, None))):
            bus.tasks.run("x")

    def begin() -> None:
        future = bus.tasks.run.future("x")
        if chance.random() < 0.5:
            future.cancel()
        else:
            future.result(0.01)

    deeds: list[Callable[[], object]] = [
        watch,
        stream,
        work,
        begin,
        partial(bus.tasks.run, 1),
        partial(bus.rpc.call, "calculator", "add", {"a": 1, "b": 2}),
        partial(bus.rpc.call, "calculator", "again"),
        partial(bus.tasks.submit_many, range(20)),
        lambda: list(bus.tasks.map(range(20))),
        bus.healthy,
    ]
    worker = bus.tasks.worker(same).__enter__()
    storm.begin()
    while not storm.over:
        try:
            storm.attempt(chance.choice(deeds))
        except TimeoutError:
            pass
        bus.broadcast.send(sent, subject="n")
        sent += 1
        storm.attempt(listen)
    while len(heard) < sent:
        heard.append(next(listening).body)
    assert heard == list(range(sent))
    assert (bus.tasks.run(3), bus.rpc.call("calculator", "again")) == (3, 3)

    def idle() -> None:
        while worker.running or bus.queues.inspect("tasks").taken:
            time.sleep(0.01)

    within(idle, "the handlers to end")
    for each in (listening, server, worker):
        within(each.close, "closing")
    within(bus.close, "closing the bus")
    no_loop_is_left()


class Calculator:
    """The called object."""

    def __init__(self, bus: BlockingBus) -> None:
        self.bus = bus

    async def add(self, a: int, b: int) -> int:
        """On the loop."""
        return a + b

    def again(self) -> Any:
        """In a thread, which calls back."""
        return self.bus.rpc.call("calculator", "add", {"a": 1, "b": 2})

    async def count(self) -> Any:
        """Never end."""
        number = 0
        while True:
            yield number
            number += 1


def close(storm: Storm, chance: random.Random) -> None:
    """Open and close buses in which threads wait: whatever waits ends."""
    storm.begin()
    while not storm.over:
        bus = connect("memory://")
        if not storm.attempt(bus.__enter__)[0]:
            within(bus.close, "closing what was not entered")
            continue
        bus.queues.declare("tasks")
        threads = [threading.Thread(target=ended, args=(each,)) for each in waiting(bus)]
        for thread in threads:
            thread.start()
        futures = [bus.tasks.run.future(number) for number in range(chance.randrange(20))]
        for _ in range(chance.randrange(1, 5)):
            if storm.attempt(partial(bus.close, chance.choice((0, 0.05, 1))))[0]:
                break
        within(bus.close, "closing")
        all_end(futures, "a call")
        for thread in threads:
            within(thread.join, "a thread that waits on the bus")
    no_loop_is_left()


def waiting(bus: BlockingBus) -> list[Callable[[], object]]:
    """What waits until the bus is closed."""
    handle = bus.tasks.submit("never")
    return [
        partial(bus.tasks.next, "empty"),
        handle.result,
        lambda: list(handle.watch()),
        lambda: list(bus.broadcast.subscribe(subject="n").__enter__()),
    ]


def ended(wait_for: Callable[[], object]) -> None:
    """Wait until the end."""
    try:
        wait_for()
    except Closed:
        pass


SCRIPTS: dict[str, Callable[[Storm, random.Random], None]] = {"take": take, "wait": wait, "close": close}

if __name__ == "__main__":
    run_script(SCRIPTS)

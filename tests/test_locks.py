"""Locks that threads share with loops: a signal handler that interrupted its thread with one of them does not wait."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from redpoll import UsageError
from redpoll.bus.broker import Limits
from redpoll.bus.engines.amqp.pulse import pulse
from redpoll.bus.engines.hub.life import life
from redpoll.bus.engines.memory import room
from redpoll.locks import check_unlocked, holds_lock, new_lock
from redpoll.wiring import inprocess
from tests.blocking.support import run_program
from tests.bus.patterns import bus_in_virtual_time

HANDLED = """
import concurrent.futures, signal
from redpoll import Message, UsageError, nq
from redpoll.blocking import QueueNode, connect, futures, loop_thread
from redpoll.bus.engines.memory import room
from redpoll.wiring.zmq import ZMQ

refused = []

def wait(*calls):
    for call in calls:
        try:
            call()
        except UsageError as error:
            refused.append(str(error))
        else:
            refused.append(call)

options = nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0))
with QueueNode(port=0) as node, QueueNode(timeout=60.0) as sender, connect("memory://shared") as bus:
    zmq = ZMQ()
    exchange = zmq.create_exchange("e")
    zmq.create_queue("q")
    zmq.bind("e", "q")
    zmq.send(exchange, b"1")
    zmq.receive(timeout=10)
    communicator = nq.new("tcp", "server", options)
    address = node.address
    sent, calls = [], []

    def handle(*_):
        # More of them than other threads may be ahead of the loop.
        sent.extend([sender.send(Message(b"from a handler", address)) for _ in range(1100)])
        calls.append(bus.tasks.submit.future(1, queue="q"))
        zmq.send(exchange, b"2")
        wait(
            sender.request(Message(b"", address)).result,
            lambda: sender.send_many([Message(b"", address)]),
            node.get,
            lambda: node.get(block=False),
            lambda: next(iter(node)),
            lambda: bus.tasks.submit(1, queue="q"),
            communicator.get,
            lambda: zmq.receive(timeout=10),
            QueueNode(port=0).start,
        )

    signal.signal(signal.SIGTERM, handle)
    shared = next(iter(room._rooms.values()))
    locks = node._node.feed._lock, futures._lock, futures._condition, loop_thread._lock, shared.lock, room._lock
    for lock in locks:
        with lock:
            signal.raise_signal(signal.SIGTERM)
    print(len(refused), set(refused))
    print(*(zmq.receive(timeout=10) for _ in locks))
    zmq.close()
    communicator.close()
    got = 0
    while got < len(sent):
        message = node.get(timeout=10)
        got += message.data == b"from a handler"
        message.release()
    print(all(each.exception(10) is None for each in sent), all(each.result(10) for each in calls))
    node.stop(0)
"""


def test_a_signal_handler_does_not_wait_for_its_thread() -> None:
    """Waiting for the loop is refused in a handler whose thread holds a lock of the loop; other calls work."""
    done = run_program(HANDLED)
    assert done.returncode == 0, done.stderr
    refused, received, ended = done.stdout.splitlines()
    assert refused.startswith("54 {'this might wait for ever: a signal handler")
    assert refused.count("this might") == 1
    assert (received, ended) == (" ".join(["b'2'"] * 6), "True True")


CONNECTING = """
import signal
from redpoll import UsageError
from redpoll.bus import process_bus
from redpoll.bus.bus import Bus

class Interrupted(Exception): pass

def handle(*_):
    for call in (lambda: bus.run(side), bus.close):
        try:
            call()
        except UsageError as error:
            print(error)
    if fails:
        raise Interrupted

async def side(bus):
    return "connected"

def connect(*args, **kwargs):
    signal.raise_signal(signal.SIGTERM)
    return connected(*args, **kwargs)

connected, process_bus.connect = process_bus.connect, connect
signal.signal(signal.SIGTERM, handle)
bus = process_bus.ProcessBus("memory://", lambda bus: bus)
fails = True
try:
    bus.run(side)
except Interrupted:
    fails = False
print(bus.run(side))
bus.close()
"""


def test_a_signal_handler_does_not_wait_for_the_bus_that_its_thread_connects() -> None:
    """A bus of a process is not used or closed by a handler that interrupted its connecting, which may be done again."""
    done = run_program(CONNECTING)
    assert done.returncode == 0, done.stderr
    *refused, ended = done.stdout.splitlines()
    assert [each.partition(": a signal handler")[0] for each in refused] == ["this might wait for ever"] * 4
    assert ended == "connected"


def test_locks_of_threads_and_loops_are_known() -> None:
    """A thread does not wait while it holds one of the locks of the process that loops and threads take."""

    async def of_a_notifier() -> Any:
        async with bus_in_virtual_time() as (bus, _):
            return bus.notifier("p").bind()._outlet._lock

    shared = room.Room("shared", Limits(), None)
    locks = (life._lock, pulse._guard, room._lock, shared.guard, inprocess._lock, asyncio.run(of_a_notifier()))
    for lock in locks:
        assert not holds_lock()
        with lock:
            assert holds_lock()


def test_only_the_thread_that_holds_a_lock_is_refused() -> None:
    """A lock of another thread, one that was given back, and one that is gone refuse nothing."""
    lock = new_lock()
    with lock, lock:
        pass
    check_unlocked()
    with lock, pytest.raises(UsageError, match="a signal handler or a finalizer interrupted"):
        check_unlocked()
    del lock
    check_unlocked()


def test_locks_that_are_gone_while_others_are_looked_at_do_no_harm() -> None:
    """The garbage collector may free locks, in cycles, while a thread asks whether it holds one."""
    before = gc.get_threshold()
    try:
        # It runs when as many objects were made since the last time.
        for made in range(1, 20):
            gc.collect()
            gc.disable()
            cycle: list[Any] = [new_lock()]
            cycle.append(cycle)
            del cycle
            gc.set_threshold(made)
            gc.enable()
            assert not holds_lock()
    finally:
        gc.set_threshold(*before)
        gc.enable()

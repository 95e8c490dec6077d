"""Where an object lives: started when it is needed, what was planned before, closing by several threads."""

from __future__ import annotations

import threading

import pytest

from redpoll import Closed
from redpoll.blocking import loop_thread
from redpoll.wiring import PROCESS
from redpoll.wiring import zmq as pyzmq
from redpoll.wiring.zmq.interfaces import NOWHERE, Place
from redpoll.wiring.zmq.resident import WiringResident
from tests.blocking.support import PATIENCE, in_thread, interrupting, run_program, until
from tests.wiring.zmq.support import pair, waits


def test_nothing_is_opened_before_it_is_needed() -> None:
    """Names of its own need no loop; binding them does."""
    with pyzmq.ZMQ() as zmq:
        zmq.create_exchange("E")
        zmq.create_queue("Q")
        assert loop_thread._shared is None
        zmq.bind("E", "Q")
        assert loop_thread._shared is not None


def test_sending_needs_it() -> None:
    """An exchange that was made before is there when something is sent to it, or received."""
    with pyzmq.ZMQ() as zmq:
        zmq.send(zmq.create_exchange("E"), b"dropped")
        assert loop_thread._shared is not None
    with pyzmq.ZMQ() as zmq:
        zmq.create_queue("Q")
        with pytest.raises(TimeoutError):
            zmq.receive(timeout=0)


def test_where_it_is_made() -> None:
    """The place that the first name gives reaches whoever makes the wiring, once."""
    places: list[Place] = []

    class StopError(Exception):
        """Goes no further."""

    def make(place: Place) -> None:
        places.append(place)
        raise StopError

    resident = WiringResident(make, "object", gaps=False)  # type: ignore[arg-type]
    options = {"scope": PROCESS}
    for place in (Place("127.0.0.1", 99), NOWHERE):
        with pytest.raises(StopError):
            resident.create("queue", "Q", place, options)
    assert places == [Place("127.0.0.1", 99), NOWHERE]
    resident.close(0)


def test_closing_by_two() -> None:
    """Who closes what another thread is closing waits until it is closed."""
    zmq = pyzmq.Zmq()
    exchange = zmq.create_exchange("E")
    sending = in_thread(zmq.send, exchange, b"waits for a queue")
    until(lambda: zmq._resident.outboxes, "the exchange")
    start = threading.Barrier(2)

    def close() -> None:
        start.wait(PATIENCE)
        zmq.close(0.1)

    for each in [in_thread(close), in_thread(close)]:
        each.result(PATIENCE)
    assert loop_thread._shared is None
    with pytest.raises(Closed):
        sending.result(PATIENCE)


EXITS = """
import sys, threading
from redpoll import Closed
from redpoll.wiring import zmq as pyzmq
made = pyzmq.ZMQ()
made.create_exchange("e"), made.create_queue("q"), made.bind("e", "q")
told = []
def receive():
    try:
        made.receive()
    except Closed:
        told.append("closed")
receiving = threading.Thread(target=receive)
receiving.start()
while not made._resident.inbox._waiting:
    pass
made._resident._thread.handover.post(sys.exit)
receiving.join(10)
print(receiving.is_alive(), told)
made.close()
with pyzmq.ZMQ() as made:
    exchange = made.create_exchange("e")
    made.create_queue("q")
    made.bind("e", "q")
    made.send(exchange, b"x")
    print(made.receive())
"""


def test_a_callback_that_exits() -> None:
    """It ends the loop, and whatever waits on that; an object that is made next has another."""
    done = run_program(EXITS)
    assert done.stdout == "False ['closed']\nb'x'\n", done.stderr


def test_interrupted_closing() -> None:
    """Ctrl-C ends the waiting for what was sent; it is closed when that comes out."""
    zmq = pyzmq.Zmq()
    exchange = zmq.create_exchange("E")
    sending = in_thread(zmq.send, exchange, b"waits for a queue")
    until(lambda: zmq._resident.outboxes, "the exchange")
    with pytest.raises(KeyboardInterrupt), interrupting(lambda: zmq._resident._closing is not None):
        zmq.close(3600)
    assert loop_thread._shared is None
    with pytest.raises(Closed):
        sending.result(PATIENCE)


def test_others_go_on() -> None:
    """Closing one object leaves the others as they are."""
    with pair() as (zmq, exchange):
        receiving = in_thread(zmq.receive)
        until(lambda: waits(zmq), "a thread that waits")
        with pair():
            pass
        zmq.send(exchange, b"x")
        assert receiving.result(PATIENCE) == b"x"

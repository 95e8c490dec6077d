"""`ZMQ` and `Zmq`: sending and receiving, in threads, with both generations of calls."""

from __future__ import annotations

import signal
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import redpoll
from redpoll import GLOBAL, Closed, Config, MessageTooLarge, UsageError, Wiring
from redpoll.wiring import AtLimit, Exchange, Gap, Limits
from redpoll.wiring import zmq as pyzmq
from tests.blocking.support import PATIENCE, in_thread, interrupting, until
from tests.wiring.zmq.support import directory, loop, pair, waits

#: Not merely its name, which is that of a clone of the repository too.
PACKAGE = str(Path(redpoll.__file__).parent)


def test_a_message() -> None:
    """What is sent to an exchange is received from a queue that is bound to it."""
    with pair() as (zmq, exchange):
        zmq.send(exchange, b"hello")
        assert zmq.receive() == b"hello"


def test_order_and_count() -> None:
    """Every message of a thread arrives once and in order, whatever its size and its type."""
    with pair() as (zmq, exchange):
        messages = [bytes([number % 251]) * (number % 7 * 1000) for number in range(20_000)]

        def send() -> None:
            for message in messages:
                zmq.send(exchange, message)

        sending = in_thread(send)
        assert all(zmq.receive(timeout=PATIENCE) == message for message in messages)
        sending.result(PATIENCE)
        zmq.send(exchange, bytearray(b"copied"))
        zmq.send(exchange, memoryview(b"as well"))
        assert [zmq.receive(), zmq.receive()] == [b"copied", b"as well"]


def test_many_threads() -> None:
    """Any number of threads may send and receive at once: each message is received once."""
    with pair() as (zmq, exchange):
        senders, receivers, each = 3, 3, 2000

        def send(begin: int) -> None:
            for number in range(begin, begin + each):
                zmq.send(exchange, b"%d" % number)

        def receive() -> list[bytes]:
            found: list[Any] = []
            while message := zmq.receive(timeout=PATIENCE):
                found.append(message)
            return found

        receiving = [in_thread(receive) for _ in range(receivers)]
        for sending in [in_thread(send, number * each) for number in range(senders)]:
            sending.result(PATIENCE)
        for _ in receiving:
            zmq.send(exchange, b"")
        found = Counter(message for each in receiving for message in each.result(PATIENCE))
        assert found == Counter(b"%d" % number for number in range(senders * each))


def test_receive_waits() -> None:
    """A thread that receives waits for the message, and for no other thread's work."""
    with pair() as (zmq, exchange):
        receiving = in_thread(zmq.receive)
        until(lambda: waits(zmq), "a thread that waits")
        zmq.send(exchange, b"x")
        assert receiving.result(PATIENCE) == b"x"


def test_receive_with_a_limit() -> None:
    """Nothing within the limit is a TimeoutError."""
    with pair() as (zmq, _), pytest.raises(TimeoutError, match=r"no message came within 0\.01 s"):
        zmq.receive(timeout=0.01)


@pytest.mark.parametrize(
    ("make", "got"), [(pyzmq.ZMQ, b"x"), (pyzmq.Zmq, (1, b"x", pyzmq.MESSAGE_DATA))], ids=["ZMQ", "Zmq"]
)
def test_receive_without_waiting(make: type[Any], got: object) -> None:
    """Without any time to wait for it, what is there already is received all the same; nothing more is a TimeoutError."""
    with make() as zmq:
        exchange = zmq.create_exchange("E")
        zmq.create_queue("Q")
        zmq.bind("E", "Q")
        zmq.send(exchange, b"x")
        assert zmq.receive(timeout=0) == got
        with pytest.raises(TimeoutError, match="no message came within 0 s"):
            zmq.receive(timeout=0)


def test_without_a_binding_distribution_drops() -> None:
    """With no queue bound what is sent to an exchange that distributes is gone."""
    with pyzmq.ZMQ() as zmq:
        exchange = zmq.create_exchange("E")
        zmq.create_queue("Q")
        zmq.send(exchange, b"lost")
        zmq.send(exchange, b"lost too")
        zmq.bind("E", "Q")
        zmq.send(exchange, b"first")
        assert zmq.receive() == b"first"


def test_without_a_binding_balancing_waits() -> None:
    """With no queue bound who sends to an exchange that balances waits for one, or is told at once."""
    with pyzmq.Zmq() as zmq:
        exchange = zmq.create_exchange("E")
        queue = zmq.create_queue("Q")
        assert zmq.send(exchange, b"no", False) == 0
        sending = in_thread(zmq.send, exchange, b"yes")
        assert not zmq.send(exchange, b"no", block=False)
        zmq.bind("E", "Q")
        assert sending.result(PATIENCE) == 1
        assert zmq.receive(True) == (queue, b"yes", pyzmq.MESSAGE_DATA)
        assert zmq.send(exchange, b"now", False) == 1
        assert zmq.receive(1) == (queue, b"now", pyzmq.MESSAGE_DATA)


def test_look_without_waiting() -> None:
    """Without `block` what is there is received, and 0 is no queue if nothing is."""
    with pyzmq.Zmq() as zmq:
        exchange = zmq.create_exchange("E")
        queue = zmq.create_queue("Q")
        zmq.bind("E", "Q")
        assert zmq.receive(False) == (0, b"", 0)
        zmq.send(exchange, b"x")
        until(lambda: (found := zmq.receive(block=False))[0] and found == (queue, b"x", pyzmq.MESSAGE_DATA), "it")


def test_queues_take_turns() -> None:
    """Messages of several queues come in turn, with the number of each."""
    with pyzmq.Zmq() as zmq:
        exchanges, queues = [], []
        for name in "ABC":
            exchanges.append(zmq.create_exchange(name, style=pyzmq.STYLE_DATA_DISTRIBUTION))
            queues.append(zmq.create_queue(name))
            zmq.bind(name, name)
        for exchange in exchanges:
            for number in range(100):
                zmq.send(exchange, b"%d" % number)
        # All have come to their queues.
        found = [zmq.receive() for _ in range(300)]
        for queue in queues:
            assert [message for number, message, _ in found if number == queue] == [b"%d" % n for n in range(100)]
        assert {number for number, _, _ in found[:3]} == set(queues) or {n for n, _, _ in found[:150]} == set(queues)


def test_a_full_queue() -> None:
    """A sender is stopped at the limit, told so if it does not wait, and goes on when the lower mark is reached."""
    with pyzmq.Zmq() as zmq:
        exchange = zmq.create_exchange("E")
        queue = zmq.create_queue("Q", hwm=10, lwm=5)
        zmq.bind("E", "Q")
        sent = 0
        while zmq.send(exchange, b"%d" % sent, False):
            sent += 1
            assert sent < 100_000
        assert sent >= 10
        waiting = in_thread(zmq.send, exchange, b"last")
        found = [zmq.receive(timeout=PATIENCE) for _ in range(sent)]
        assert found == [(queue, b"%d" % number, pyzmq.MESSAGE_DATA) for number in range(sent)]
        assert waiting.result(PATIENCE) == 1
        assert zmq.receive(timeout=PATIENCE) == (queue, b"last", pyzmq.MESSAGE_DATA)


def test_interrupted_receive() -> None:
    """Ctrl-C ends a receive that waits, and no message is lost by it."""
    with pair() as (zmq, exchange):
        with pytest.raises(KeyboardInterrupt), interrupting(lambda: waits(zmq)):
            zmq.receive()
        zmq.send(exchange, b"x")
        assert zmq.receive(timeout=PATIENCE) == b"x"


def test_a_storm_of_interruptions() -> None:
    """However often Ctrl-C is pressed, wherever a receive is then, each message is received once and in order."""
    interruptions = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interruptions
        # Between two calls it would be the test that loses what it was given.
        if frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
            interruptions += 1
            raise KeyboardInterrupt

    with pair() as (zmq, exchange):

        def send() -> None:
            for number in range(20_000):
                zmq.send(exchange, b"%d" % number)
                if number % 50 == 0:
                    time.sleep(0)

        sending = in_thread(send)
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        found: list[bytes] = []
        try:
            while len(found) < 20_000:
                try:
                    message = zmq.receive(timeout=PATIENCE)
                except KeyboardInterrupt:
                    continue
                found.append(message)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert found == [b"%d" % number for number in range(20_000)]
        assert interruptions
        sending.result(PATIENCE)


def test_interrupted_send() -> None:
    """Ctrl-C ends a send that waits for room, and that message is not sent."""
    with pyzmq.Zmq() as zmq:
        exchange = zmq.create_exchange("E")
        queue = zmq.create_queue("Q")
        with pytest.raises(KeyboardInterrupt), interrupting(lambda: zmq.send(exchange, b"?", False) == 0):
            zmq.send(exchange, b"interrupted")
        zmq.bind("E", "Q")
        zmq.send(exchange, b"x")
        assert zmq.receive(timeout=PATIENCE) == (queue, b"x", pyzmq.MESSAGE_DATA)


def test_closing_tells_those_who_wait() -> None:
    """Who receives when the object is closed is told, and so is who comes later; what came is still received."""
    with pair() as (zmq, exchange):
        receiving = in_thread(zmq.receive)
        until(lambda: waits(zmq), "a thread that waits")
        zmq.close()
        with pytest.raises(Closed, match="the ZMQ object is not running"):
            receiving.result(PATIENCE)
        with pytest.raises(Closed):
            zmq.receive()
        with pytest.raises(Closed):
            zmq.send(exchange, b"x")


@pytest.mark.parametrize("number", [7, -1, None, "E", b"E", 1.5])
def test_no_such_exchange(number: Any) -> None:
    """A number that `create_exchange` did not return is an error that says where numbers come from."""
    with pair() as (zmq, _), pytest.raises(UsageError, match=r"no exchange .*create_exchange returns its number"):
        zmq.send(number, b"x")


def test_text_is_no_message() -> None:
    """Text is not sent, and its sender is told what it lacks; one that waits for room as well."""
    with pair() as (zmq, exchange), pytest.raises(UsageError, match=r"encode it: text\.encode\(\)"):
        zmq.send(exchange, "text")  # type: ignore[arg-type]


def test_both_generations_of_send() -> None:
    """Each class takes the keywords of the other one as well."""
    with pair() as (zmq, exchange):
        zmq.send(exchange_id=exchange, msg=b"1")
        zmq.send(exchange=exchange, py_message=b"2")
        zmq.send(exchange, py_message=b"3")
        assert [zmq.receive(), zmq.receive(), zmq.receive()] == [b"1", b"2", b"3"]
    with pyzmq.Zmq() as later:
        exchange = later.create_exchange("E")
        later.create_queue("Q")
        later.bind("E", "Q")
        assert later.send(exchange=exchange, py_message=b"1", block=1) == 1
        assert later.send(exchange_id=exchange, msg=b"2", block=True) == 1
        assert [later.receive(block=1)[1], later.receive()[1]] == [b"1", b"2"]


def test_keywords_of_send_that_miss() -> None:
    """A message that is missing is named, and one that is given by both names is refused."""
    with pair() as (zmq, exchange):
        with pytest.raises(TypeError, match="missing argument 'msg'"):
            zmq.send(exchange)
        with pytest.raises(TypeError, match=r"'msg' and 'py_message', which are one and the same"):
            zmq.send(exchange, b"x", py_message=b"x")


def test_masks() -> None:
    """Only what there is can be asked for."""
    with pyzmq.Zmq() as zmq:
        zmq.mask(pyzmq.MESSAGE_DATA | pyzmq.MESSAGE_GAP)
        zmq.mask(notifications=pyzmq.MESSAGE_DATA)
        for wrong in (0, 4, True, "GAP"):
            with pytest.raises(UsageError, match="there are no notifications"):
                zmq.mask(wrong)  # type: ignore[arg-type]


def test_gaps_with_their_count() -> None:
    """Who asked for gaps gets one where messages are missing: of which exchange, and how many; who did not gets none."""
    with loop() as run, directory() as hostname, pyzmq.Zmq(hostname) as zmq, pyzmq.Zmq(hostname) as other:

        async def make() -> tuple[Wiring, Exchange]:
            wiring = Wiring(hostname)
            await wiring.start()
            limits = Limits(messages=5)
            return wiring, await wiring.create_exchange("E", scope=GLOBAL, limits=limits, at_limit=AtLimit.DROP_OLD)

        wiring, exchange = run(make)
        try:
            queue = zmq.create_queue("Q", hwm=5)
            zmq.mask(pyzmq.MESSAGE_DATA | pyzmq.MESSAGE_GAP)
            zmq.bind("E", "Q")
            other.create_queue("Q", hwm=5)
            other.bind("E", "Q")
            run(exchange.send_many, [b"%d" % number for number in range(100)])
            found: list[Any] = []
            while not found or found[-1][1] != b"99":
                found.append(zmq.receive(timeout=PATIENCE))
            gaps = [(place, message) for place, (_, message, kind) in enumerate(found) if kind == pyzmq.MESSAGE_GAP]
            assert {number for number, _, _ in found} == {queue}
            ((place, gap),) = gaps
            assert isinstance(gap, Gap)
            assert (gap.exchange, gap.restarted) == ("E", False)
            data = [message for _, message, kind in found if kind == pyzmq.MESSAGE_DATA]
            assert gap.count == 100 - len(data) > 0
            assert data == [b"%d" % number for number in [*range(place), *range(place + gap.count, 100)]]
            plain: list[Any] = []
            while not plain or plain[-1] != b"99":
                plain.append(other.receive(timeout=PATIENCE)[1])
            assert all(type(message) is bytes for message in plain)
        finally:
            run(wiring.close)


@pytest.mark.parametrize("size", [101, 5000, 100_000])
def test_a_message_that_is_too_large(size: int) -> None:
    """Who sends a message above the limit is told; what was sent before and after it arrives, once and in order."""
    with pyzmq.ZMQ(config=Config(max_message_size=100)) as zmq:
        exchange = zmq.create_exchange("E")
        zmq.create_queue("Q")
        zmq.bind("E", "Q")
        for number in range(200):
            zmq.send(exchange, b"%d" % number)
            if number % 50 == 49:
                with pytest.raises(MessageTooLarge, match="100"):
                    zmq.send(exchange, bytes(size))
                with pytest.raises(MessageTooLarge):
                    zmq.send(exchange, bytearray(size))
        assert [zmq.receive(timeout=PATIENCE) for _ in range(200)] == [b"%d" % number for number in range(200)]
        with pytest.raises(TimeoutError):
            zmq.receive(timeout=0)

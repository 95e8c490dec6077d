"""What both classes have: numbers, keywords, scopes, where they listen, binding, and how they end."""

from __future__ import annotations

import ast
import gc
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from redpoll import TLS, Closed, ConfigError, TLSError, UsageError
from redpoll.blocking import loop_thread
from redpoll.errors import DirectoryUnavailable, NameTaken, NotAuthorized, UnknownName
from redpoll.testing.certificates import Certificates
from redpoll.wiring import zmq as pyzmq
from tests.blocking.support import PATIENCE, in_thread, interrupting, run_program, until
from tests.ports import free_port
from tests.wiring.zmq.support import address, directory, pair

BOTH = pytest.mark.parametrize("make", [pyzmq.ZMQ, pyzmq.Zmq])
Make = Callable[..., Any]


@BOTH
def test_numbers(make: Make) -> None:
    """Exchanges are numbered from 0, queues from 1; what is made again has its number again."""
    with make() as zmq:
        assert [zmq.create_exchange(name) for name in "ABAC"] == [0, 1, 0, 2]
        assert [zmq.create_queue(name) for name in "ABAC"] == [1, 2, 1, 3]
        zmq.bind("A", "A")
        assert (zmq.create_exchange("D"), zmq.create_exchange("B")) == (3, 1)


@BOTH
def test_made_again_otherwise(make: Make) -> None:
    """A name that was made with other parameters is taken."""
    with make() as zmq:
        zmq.create_exchange("E", style=pyzmq.STYLE_DATA_DISTRIBUTION)
        zmq.create_queue("Q", hwm=10)
        for _ in range(2):
            with pytest.raises(NameTaken, match="'E'"):
                zmq.create_exchange("E", style=pyzmq.STYLE_LOAD_BALANCING)
            with pytest.raises(NameTaken, match="'Q'"):
                zmq.create_queue("Q", hwm=11)
            zmq.bind("E", "Q")


@BOTH
def test_both_generations(make: Make) -> None:
    """Each class takes the keywords of both, for the same parameters."""
    with directory() as hostname, make(hostname=hostname) as first, make(host=hostname) as second:
        assert first.create_exchange(exchange_name="A", scope=pyzmq.SCOPE_GLOBAL, interface="127.0.0.1") == 0
        assert first.create_exchange(name="A", scope=pyzmq.SCOPE_GLOBAL, location="zmq.tcp://127.0.0.1") == 0
        assert second.create_queue(queue_name="B", scope=pyzmq.SCOPE_LOCAL, interface=None) == 1
        assert second.create_queue(name="B", location="") == 1
        assert second.create_queue("C", pyzmq.SCOPE_GLOBAL, None, -1, -1, 0) == 2
        second.bind(exchange="A", queue="B")
        second.bind("A", "C", exchange_options=None, queue_options=None)


@BOTH
def test_keywords_of_both(make: Make) -> None:
    """A parameter that is given by both of its names is refused, and one that is not given is named."""
    with pytest.raises(TypeError, match="'hostname' and 'host', which are one and the same"):
        make("127.0.0.1", host="127.0.0.1")
    with make() as zmq:
        with pytest.raises(TypeError, match="'name' and 'queue_name', which are one and the same"):
            zmq.create_queue("Q", queue_name="Q")
        with pytest.raises(TypeError, match="missing argument 'name'"):
            zmq.create_exchange()
        with pytest.raises(TypeError, match="'queue'"):
            zmq.bind("E")


@BOTH
def test_what_cannot_be_meant(make: Make) -> None:
    """Arguments that make no sense are errors of use, before anything is opened."""
    for options in ({"hostname": "a:b"}, {"hostname": 7}, {"interface": "a:b"}, {"bind_timeout": 0}):
        with pytest.raises(UsageError):
            make(**options)
    zmq = make()
    wrongs: list[Callable[[], object]] = [
        lambda: zmq.create_exchange(""),
        lambda: zmq.create_exchange("x" * 256),
        lambda: zmq.create_exchange("a\nb"),
        lambda: zmq.create_exchange(b"bytes"),
        lambda: zmq.create_exchange("E", 0),
        lambda: zmq.create_exchange("E", style=3),
        lambda: zmq.create_exchange("E", interface="pgm://eth0"),
        lambda: zmq.create_queue("Q", swap=1),
        lambda: zmq.create_queue("Q", hwm="many"),
        lambda: zmq.bind("E", "Q", "options"),
        lambda: zmq.close(-1),
    ]
    for wrong in wrongs:
        with pytest.raises(UsageError):
            wrong()
    assert loop_thread._shared is None
    assert zmq.create_exchange("E") == 0
    zmq.close()


SEED = """
import pyzmq
zmq = pyzmq.ZMQ (hostname)
eid = zmq.create_exchange ("E", pyzmq.SCOPE_GLOBAL, "")
zmq.create_queue ("Q", pyzmq.SCOPE_LOCAL)
zmq.bind ("E", "Q")
zmq.send (eid, msg)
msg = zmq.receive ()
"""


def test_the_example_of_the_first_extension() -> None:
    """Its statements run as they were printed, but for the import, with a directory; as a program that never closes too."""
    program = SEED.replace("import pyzmq\n", "from redpoll.wiring import zmq as pyzmq\n")
    with directory() as hostname:
        names: dict[str, Any] = {"hostname": hostname, "msg": b"as printed"}
        exec(program, names)
        assert names["msg"] == b"as printed"
        names["zmq"].close()
        whole = f"hostname, msg = {hostname!r}, b'as printed'{program}print(msg)"
        done = run_program(whole, "-W", "ignore::ResourceWarning")
    assert (done.stdout, done.stderr, done.returncode) == ("b'as printed'\n", "", 0)
    assert [type(node).__name__ for node in ast.parse(program).body][:2] == ["ImportFrom", "Assign"]


def test_the_port_of_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without a port is the directory at the port of zmq_server."""
    port = free_port()
    monkeypatch.setattr("redpoll.wiring.zmq.interfaces.PORT", port)
    with directory(port=port), pyzmq.ZMQ("127.0.0.1") as zmq:
        assert zmq.create_exchange("E", pyzmq.SCOPE_GLOBAL) == 0
        with pyzmq.Zmq("localhost") as other:
            other.create_queue("Q")
            other.bind("E", "Q")


def test_names_of_the_process() -> None:
    """A name of the process is bound by other objects of it, without a directory; a local one is not."""
    with pyzmq.ZMQ() as one, pyzmq.ZMQ() as two:
        exchange = one.create_exchange("E", pyzmq.SCOPE_PROCESS)
        two.create_queue("Q", pyzmq.SCOPE_LOCAL)
        two.bind("E", "Q")
        one.send(exchange, b"x")
        assert two.receive(timeout=PATIENCE) == b"x"
        with pytest.raises(UnknownName):
            one.bind("E", "Q", wait=0)


def test_global_names() -> None:
    """A name in the directory is bound by whoever uses it, in both directions, and by a third one that owns neither."""
    with directory() as hostname, pyzmq.ZMQ(hostname) as one, pyzmq.ZMQ(hostname) as two, pyzmq.ZMQ(hostname) as three:
        here = one.create_exchange("HERE", pyzmq.SCOPE_GLOBAL, "127.0.0.1")
        one.create_queue("BACK", pyzmq.SCOPE_LOCAL)
        two.create_queue("THERE", pyzmq.SCOPE_GLOBAL, "")
        there = two.create_exchange("REPLY", pyzmq.SCOPE_GLOBAL, "")
        three.bind("HERE", "THERE")
        one.bind("REPLY", "BACK")
        one.send(here, b"ping")
        assert two.receive(timeout=PATIENCE) == b"ping"
        two.send(there, b"pong")
        assert one.receive(timeout=PATIENCE) == b"pong"


def test_a_taken_name() -> None:
    """A global name of somebody else's is taken, and its number is not used up."""
    with directory() as hostname, pyzmq.ZMQ(hostname) as one, pyzmq.ZMQ(hostname) as two:
        one.create_exchange("E", pyzmq.SCOPE_GLOBAL)
        with pytest.raises(NameTaken, match="'E'"):
            two.create_exchange("E", pyzmq.SCOPE_GLOBAL)
        assert two.create_exchange("F", pyzmq.SCOPE_GLOBAL) == 0


def test_bind_waits_for_a_name() -> None:
    """A name may come later; one that does not is an error when the time is over, at once with none."""
    with directory(lease=0.1) as hostname, pyzmq.ZMQ(hostname) as one, pyzmq.ZMQ(hostname) as two:
        one.create_queue("Q")
        with pytest.raises(UnknownName, match="'E'"):
            one.bind("E", "Q", wait=0)
        binding = in_thread(lambda: one.bind("E", "Q", wait=PATIENCE))
        exchange = two.create_exchange("E", pyzmq.SCOPE_GLOBAL)
        binding.result(PATIENCE)
        two.send(exchange, b"x")
        assert one.receive(timeout=PATIENCE) == b"x"


def test_interrupted_bind() -> None:
    """Ctrl-C ends the waiting for a name, and the object goes on."""
    with directory() as hostname, pyzmq.ZMQ(hostname) as zmq:
        exchange = zmq.create_exchange("E")
        zmq.create_queue("Q")
        with pytest.raises(KeyboardInterrupt), interrupting(lambda: zmq._resident._thread is not None):
            zmq.bind("E", "NEVER", wait=None)
        zmq.bind("E", "Q")
        zmq.send(exchange, b"x")
        assert zmq.receive(timeout=PATIENCE) == b"x"


def test_no_directory() -> None:
    """Global names want a directory, given and running."""
    with pyzmq.ZMQ() as zmq, pytest.raises(UsageError, match="directory"):
        zmq.create_exchange("E", pyzmq.SCOPE_GLOBAL)
    with pyzmq.ZMQ(f"127.0.0.1:{free_port()}", bind_timeout=0.2) as zmq, pytest.raises(DirectoryUnavailable):
        zmq.create_exchange("E", pyzmq.SCOPE_GLOBAL)


def test_one_place() -> None:
    """Names that are the object's own come before or after; where it listens is said once."""
    port = free_port()
    with directory() as hostname, pyzmq.ZMQ(hostname) as zmq:
        zmq.create_exchange("LOCAL")
        zmq.create_queue("GLOBAL", pyzmq.SCOPE_GLOBAL, f"127.0.0.1:{port}")
        zmq.create_queue("OTHER", pyzmq.SCOPE_GLOBAL, f"127.0.0.1:{port}")
        zmq.create_queue("ANOTHER", pyzmq.SCOPE_GLOBAL)
        assert address(zmq).port == port
        with pytest.raises(UsageError, match=rf"one object listens at one place: .*{port}"):
            zmq.create_queue("ELSEWHERE", pyzmq.SCOPE_GLOBAL, f"127.0.0.1:{port - 1}")
        zmq.bind("LOCAL", "GLOBAL")


def test_an_interface_for_all() -> None:
    """It can be given to the object, for those that say none."""
    port = free_port()
    with directory() as hostname, pyzmq.ZMQ(hostname, interface=f":{port}") as zmq:
        zmq.create_queue("Q", pyzmq.SCOPE_GLOBAL)
        assert str(address(zmq)) == f"127.0.0.1:{port}"


def test_off_loopback_wants_certificates() -> None:
    """An interface that others reach is an error without them, which says what allows it; then it is reached."""
    with directory() as hostname:
        with pyzmq.ZMQ(hostname) as zmq, pytest.raises(ConfigError, match=r"tls|encryption"):
            zmq.create_queue("Q", pyzmq.SCOPE_GLOBAL, "*")
        with pyzmq.ZMQ(hostname, encryption=False) as zmq, pyzmq.ZMQ(hostname) as other:
            zmq.create_queue("Q", pyzmq.SCOPE_GLOBAL, "*")
            exchange = other.create_exchange("E")
            other.bind("E", "Q")
            other.send(exchange, b"x")
            assert zmq.receive(timeout=PATIENCE) == b"x"


def test_close_lets_leave_what_was_sent() -> None:
    """What was sent before arrives, however much it is; closing again does nothing."""
    with directory() as hostname, pyzmq.ZMQ(hostname) as receiver:
        receiver.create_queue("Q", pyzmq.SCOPE_GLOBAL)
        sender = pyzmq.ZMQ(hostname)
        exchange = sender.create_exchange("E")
        sender.bind("E", "Q")
        for number in range(5000):
            sender.send(exchange, b"%d" % number)
        sender.close()
        sender.close()
        assert [receiver.receive(timeout=PATIENCE) for _ in range(5000)] == [b"%d" % number for number in range(5000)]


def test_close_drops_what_cannot_leave() -> None:
    """When the time is over what waits is dropped, and who waits to send is told."""
    zmq = pyzmq.Zmq()
    exchange = zmq.create_exchange("E")
    sending = in_thread(zmq.send, exchange, b"x")
    until(lambda: zmq._resident._wiring is not None and exchange in zmq._resident.outboxes, "the exchange")
    zmq.close(linger=0)
    with pytest.raises(Closed):
        sending.result(PATIENCE)


def test_use_after_closing() -> None:
    """What is closed says so, also if it was never used."""
    for zmq in (pyzmq.ZMQ(), pyzmq.Zmq()):
        zmq.close()
        for call in (lambda: zmq.create_exchange("E"), lambda: zmq.bind("E", "Q"), zmq.receive):  # noqa: B023
            with pytest.raises(Closed, match=rf"the {type(zmq).__name__} object is not running"):
                call()


def test_the_last_one_ends_the_loop() -> None:
    """When all are closed no thread is left."""
    with pair(), pair():
        assert loop_thread._shared is not None
    assert loop_thread._shared is None


def test_one_that_could_not_start() -> None:
    """It leaves nothing behind, and may be tried again."""
    zmq = pyzmq.ZMQ(interface="192.0.2.1", encryption=False)
    zmq.create_exchange("E")
    zmq.create_queue("Q")
    for _ in range(2):
        with pytest.raises(ConfigError):
            zmq.bind("E", "Q")
        assert loop_thread._shared is None
    zmq.close()


@BOTH
def test_dropped(make: Make) -> None:
    """One that is dropped warns, and is closed; one that was not used has nothing to close."""
    make()
    gc.collect()
    zmq = make()
    zmq.create_exchange("E")
    zmq.create_queue("Q")
    zmq.bind("E", "Q")
    with pytest.warns(ResourceWarning, match=rf"<{make.__name__}> was dropped without being closed"):
        del zmq
    until(lambda: loop_thread._shared is None, "the loop to end")


@BOTH
def test_dropped_while_interrupted(make: type[pyzmq.ZMQ], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C before the first line of the finalizer of one that is dropped: it is closed all the same."""

    class Interrupted(make):  # type: ignore[misc,valid-type]  # either
        def __del__(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "unraisablehook", id)
    zmq = Interrupted()
    zmq.create_queue("Q")
    zmq.create_exchange("E")
    zmq.bind("E", "Q")
    assert loop_thread._shared is not None
    del zmq
    until(lambda: loop_thread._shared is None, "the loop to end")


def test_what_a_dropped_one_has_sent() -> None:
    """It arrives, as with the original, whose programs did not close."""
    with directory() as hostname, pyzmq.ZMQ(hostname) as receiver:
        receiver.create_queue("Q", pyzmq.SCOPE_GLOBAL)
        sender = pyzmq.ZMQ(hostname)
        exchange = sender.create_exchange("E")
        sender.bind("E", "Q")
        sender.send(exchange, b"last words")
        with pytest.warns(ResourceWarning):
            del sender
        assert receiver.receive(timeout=PATIENCE) == b"last words"


def test_in_a_thread_that_runs_a_loop() -> None:
    """A notebook, whose thread runs an event loop, uses it all the same."""
    import asyncio

    async def cell() -> bytes:
        with pair() as (zmq, exchange):
            zmq.send(exchange, b"x")
            return zmq.receive(timeout=PATIENCE)

    assert asyncio.run(cell()) == b"x"


def test_on_the_loop_itself() -> None:
    """What would block the loop is refused there."""
    with pair() as (zmq, exchange):
        thread = zmq._resident._thread
        assert thread is not None
        for call in (zmq.receive, lambda: zmq.bind("E", "Q"), zmq.close, lambda: zmq.create_queue("R")):
            with pytest.raises(UsageError, match="block the thread of the event loop"):
                thread.handover.run(call)
        zmq.send(exchange, b"x")
        assert zmq.receive() == b"x"


FORKED = """
import os
from redpoll import UsageError
from redpoll.wiring import zmq as pyzmq
zmq = pyzmq.ZMQ()
exchange = zmq.create_exchange("E")
zmq.create_queue("Q")
zmq.bind("E", "Q")
for _ in range(100):
    zmq.send(exchange, b"before")
zmq.receive()
child = os.fork()
if not child:
    for call in (zmq.receive, lambda: zmq.send(exchange, b"x"), lambda: zmq.bind("E", "Q"), lambda: zmq.create_queue("R")):
        try:
            call()
        except UsageError as error:
            if "this ZMQ object belongs to the process that forked this one" in str(error):
                continue
        os._exit(1)
    zmq.close()
    del zmq
    with pyzmq.ZMQ() as own:
        exchange = own.create_exchange("E")
        own.create_queue("Q")
        own.bind("E", "Q")
        own.send(exchange, b"x")
        os._exit(own.receive() != b"x")
print(os.waitpid(child, 0)[1])
print(sum(zmq.receive() == b"before" for _ in range(99)))
zmq.send(exchange, b"after")
print(zmq.receive())
zmq.close()
"""


def test_a_fork() -> None:
    """A child is refused what is its parent's, closes it without harm, and has objects of its own."""
    done = run_program(FORKED, "-W", "ignore::DeprecationWarning")
    assert (done.stdout, done.stderr) == ("0\n99\nb'after'\n", "")


ENDING = """
from redpoll.wiring import zmq as pyzmq
zmq = pyzmq.ZMQ("DIRECTORY")
exchange = zmq.create_exchange("E")
zmq.bind("E", "Q")
for number in range(3000):
    zmq.send(exchange, b"%d" % number)
END
"""


@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise SystemExit(3)", 3), ("del zmq", 0), ("1/0", 1)])
def test_a_program_that_ends_without_closing(end: str, code: int) -> None:
    """It ends with the code it meant to; what it sent arrives, and it warns if warnings are asked for."""
    with directory() as hostname, pyzmq.ZMQ(hostname) as receiver:
        receiver.create_queue("Q", pyzmq.SCOPE_GLOBAL)
        program = ENDING.replace("END", end).replace("DIRECTORY", hostname)
        done = run_program(program, "-W", "ignore::ResourceWarning")
        assert done.returncode == code
        assert not done.stderr or code == 1
        assert [receiver.receive(timeout=PATIENCE) for _ in range(3000)] == [b"%d" % number for number in range(3000)]


@pytest.mark.parametrize("press", ["os.kill(os.getpid(), signal.SIGINT)", "_thread.interrupt_main()"])
def test_ctrl_c_in_a_program(press: str) -> None:
    """A program that waits in `receive` is ended by Ctrl-C, as any other, even if that comes just before it sleeps."""
    program = (
        "import _thread, os, signal, threading\n"
        "from redpoll.wiring import zmq as pyzmq\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs begin with it ignored
        "with pyzmq.ZMQ() as zmq:\n"
        "    zmq.create_queue('Q')\n"
        "    def press():\n"
        "        while not zmq._resident.inbox._waiting:\n"
        "            pass\n"
        f"        {press}\n"
        "    threading.Thread(target=press, daemon=True).start()\n"
        "    try:\n"
        "        zmq.receive()\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted')\n"
    )
    done = run_program(program)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)


def test_threads_may_make_and_bind() -> None:
    """Threads that make and bind at the same time get numbers of their own, and all of it works."""
    with pyzmq.Zmq() as zmq:
        start = threading.Barrier(4)

        def work(number: int) -> tuple[int, int]:
            start.wait(PATIENCE)
            made = zmq.create_exchange(f"E{number}"), zmq.create_queue(f"Q{number}")
            zmq.bind(f"E{number}", f"Q{number}")
            return made

        made = [each.result(PATIENCE) for each in [in_thread(work, number) for number in range(4)]]
        assert sorted(exchange for exchange, _ in made) == [0, 1, 2, 3]
        assert sorted(queue for _, queue in made) == [1, 2, 3, 4]
        for exchange, queue in made:
            zmq.send(exchange, b"x")
            assert zmq.receive(timeout=PATIENCE) == (queue, b"x", pyzmq.MESSAGE_DATA)


def test_its_repr_says_what_it_is() -> None:
    """Its class, in angle brackets."""
    assert re.fullmatch(r"<ZMQ>", repr(pyzmq.ZMQ()))


def test_encrypted(redpoll_pki: Certificates) -> None:
    """With certificates everything is encrypted, the links to the directory too; without them nobody is let in."""
    tls = TLS(certificate=redpoll_pki.issue("127.0.0.1"))
    safe: dict[str, Any] = {"tls": tls, "encryption": True}
    with directory(**safe) as hostname, pyzmq.ZMQ(hostname, **safe) as one, pyzmq.ZMQ(hostname, **safe) as two:
        exchange = one.create_exchange("E", pyzmq.SCOPE_GLOBAL)
        two.create_queue("Q")
        two.bind("E", "Q")
        one.send(exchange, b"secret")
        assert two.receive(timeout=PATIENCE) == b"secret"
        with pyzmq.ZMQ(hostname, bind_timeout=0.5) as stranger, pytest.raises((DirectoryUnavailable, TLSError)):
            stranger.create_queue("Q", pyzmq.SCOPE_GLOBAL)


def test_a_token() -> None:
    """A directory that wants a token lets in who shows it, and says so to who does not."""
    with directory(token="sesame") as hostname:
        with pyzmq.ZMQ(hostname, token="sesame") as zmq:
            assert zmq.create_exchange("E", pyzmq.SCOPE_GLOBAL) == 0
        with pyzmq.ZMQ(hostname, token="open") as zmq, pytest.raises(NotAuthorized, match="token"):
            zmq.create_exchange("E", pyzmq.SCOPE_GLOBAL)

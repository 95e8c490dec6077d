"""The facade for threads: many threads, signals, forks, the end of the program, and what is forgotten."""

from __future__ import annotations

import gc
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from redpoll import QueueFull, UsageError, nq
from redpoll.blocking import loop_thread
from tests.blocking.support import PATIENCE, in_thread, interrupting, run_program, until
from tests.nq.support import options
from tests.ports import free_port

Ends = tuple[nq.Communicator, nq.Communicator]


@pytest.fixture
def location() -> nq.NetworkLocation:
    """Where they meet."""
    return nq.NetworkLocation("127.0.0.1", free_port())


@pytest.fixture
def ends(location: nq.NetworkLocation) -> Iterator[Ends]:
    """A server and a client that have met."""
    server, client = nq.new("tcp", "server", options(location)), nq.new("tcp", "client", options(location))
    client.ready(PATIENCE)
    yield server, client
    for end in (client, server):
        end.close(0, flush=False)


# Many threads


def test_many_threads_put_and_get(ends: Ends) -> None:
    """Each message arrives once, those of each thread in its order, and threads that get share them."""
    server, client = ends
    count = 300

    def work(name: int) -> None:
        puts = [client.put((name, number)) for number in range(count)]
        for put in puts:
            put.result(PATIENCE)

    def take() -> list[tuple[int, int]]:
        got = []
        while (message := server.get(timeout=PATIENCE)).data is not None:
            got.append(message.data)
        return got

    taking = [in_thread(take) for _ in range(3)]
    putting = [in_thread(work, name) for name in range(4)]
    for each in putting:
        each.result(PATIENCE)
    for _ in taking:
        client.put(None).result(PATIENCE)
    got = [each.result(PATIENCE) for each in taking]
    assert sorted(data for mine in got for data in mine) == [
        (name, number) for name in range(4) for number in range(count)
    ]
    for mine in got:
        for name in range(4):
            numbers = [number for whose, number in mine if whose == name]
            assert numbers == sorted(numbers)


def test_closing_while_others_put_and_get(ends: Ends) -> None:
    """Each put says what became of it: those that were confirmed arrived, and no others did."""
    server, client = ends
    puts: dict[int, Any] = {}
    started = threading.Event()

    def work(first: int) -> None:
        for number in range(first, first + 500):
            puts[number] = client.put(number)
            if number == first + 50:
                started.set()

    def take() -> list[int]:
        got = []
        while True:
            try:
                got.append(server.get(timeout=PATIENCE).data)
            except ConnectionAbortedError:
                return got

    taking = in_thread(take)
    putting = [in_thread(work, first) for first in (0, 1000)]
    assert started.wait(PATIENCE)
    client.close()
    for each in putting:
        each.result(PATIENCE)
    server.close()
    confirmed = [number for number, put in puts.items() if put.exception(PATIENCE) is None]
    assert sorted(taking.result(PATIENCE)) == sorted(confirmed)
    assert all(type(put.exception()) in {type(None), ConnectionAbortedError} for put in puts.values())


# Interruptions


def test_ctrl_c_in_a_get(ends: Ends) -> None:
    """It comes out, and the message that comes then is got."""
    server, client = ends
    with interrupting(lambda: server._receive_queue._waiters), pytest.raises(KeyboardInterrupt):
        server.get()
    client.put("x").result(PATIENCE)
    assert server.get(timeout=0).data == "x"


def test_ctrl_c_while_a_message_is_read(location: nq.NetworkLocation) -> None:
    """A message that was taken and not seen is the next."""
    pickles, interrupts = nq.PickleSerializer(), [True]

    def load(stream: nq.Stream) -> Any:
        if interrupts:
            interrupts.pop()
            raise KeyboardInterrupt
        return pickles.load(stream)

    given: Any = {"serialization": nq.SerializationOptions(load, pickles.dump)}
    with (
        nq.new("tcp", "server", options(location, **given)) as server,
        nq.new("tcp", "client", options(location)) as client,
    ):
        client.put(1)
        client.put(2)
        with pytest.raises(KeyboardInterrupt):
            server.get(timeout=PATIENCE)
        assert [server.get(timeout=PATIENCE).data for _ in range(2)] == [1, 2]
        client.close()


def test_ctrl_c_in_a_result(location: nq.NetworkLocation) -> None:
    """The put goes on, and can be waited for again."""
    with nq.new("tcp", "client", options(location)) as client:
        put: Any = client.put("x")
        with interrupting(lambda: put._sleepers), pytest.raises(KeyboardInterrupt):
            put.result()
        with nq.new("tcp", "server", options(location)) as server:
            assert put.result(PATIENCE) is None
            assert server.get(timeout=0).data == "x"
            client.close()


def test_ctrl_c_in_a_put_that_waits(location: nq.NetworkLocation) -> None:
    """It comes out, nothing was put, and nothing is left that waits for room."""
    client = nq.new("tcp", "client", options(location, full="wait", queue_size=1))
    endpoint = client._resident.endpoint
    client.put(0)
    with interrupting(lambda: endpoint.has_waiters), pytest.raises(KeyboardInterrupt):
        client.put(1)
    assert not endpoint.has_waiters
    with nq.new("tcp", "server", options(location)) as server:
        assert server.get(timeout=PATIENCE).data == 0
        client.put(2).result(PATIENCE)
        client.close()
        assert server.get(timeout=0).data == 2


def test_ctrl_c_in_a_ready(location: nq.NetworkLocation) -> None:
    """It comes out, and the client goes on dialling."""
    client = nq.new("tcp", "client", options(location))
    with interrupting(lambda: client._resident.endpoint.has_waiters), pytest.raises(KeyboardInterrupt):
        client.ready()
    with nq.new("tcp", "server", options(location)):
        client.ready(PATIENCE)
        client.close()


def test_ctrl_c_in_a_close(ends: Ends) -> None:
    """It ends the waiting, and comes out when it is closed."""
    server, client = ends
    with interrupting(lambda: server._resident.endpoint.has_waiters), pytest.raises(KeyboardInterrupt):
        server.close()
    assert isinstance(server.put("x").exception(PATIENCE), ConnectionAbortedError)
    with pytest.raises(ConnectionAbortedError):
        server.get()
    server.close()
    with pytest.raises(ConnectionResetError):
        client.get(timeout=PATIENCE)


# Waiting for room


def test_a_put_that_waits_is_told_of_the_end(location: nq.NetworkLocation) -> None:
    """Whether its peer goes or this is closed: the put returns, and its future says why it did not arrive."""
    client = nq.new("tcp", "client", options(location, full="wait", queue_size=1))
    endpoint = client._resident.endpoint
    first = client.put(0)
    putting = in_thread(client.put, 1)
    until(lambda: endpoint.has_waiters, "the put to wait")
    client.close(0)
    for put in (first, putting.result(PATIENCE)):
        error = put.exception(PATIENCE)
        assert type(error) is ConnectionAbortedError


@pytest.mark.parametrize("bound", [{"queue_size": 1}, {"queue_bytes": 1}], ids=str)
def test_a_put_that_waits_so_long(location: nq.NetworkLocation, bound: dict[str, int]) -> None:
    """With a timeout it waits no longer for room: its future fails, and what was put before stays."""
    client = nq.new("tcp", "client", options(location, full="wait", resume=0.01, **bound))
    first = client.put(0)
    for timeout in (0, 0.01):
        full = client.put(1, timeout=timeout).exception(0)
        assert isinstance(full, QueueFull)
        assert full.hint == "give put a longer timeout, or none"
        assert full.limit == 1
    with pytest.raises(UsageError):
        client.put(1, timeout=-1)
    assert not first.done()
    client.close()


def test_threads_that_wait_keep_to_the_bound(location: nq.NetworkLocation) -> None:
    """However many wait, one goes on for each place; and one that names a peer twice waits for two."""
    server = nq.new("tcp", "server", options(location, full="wait", queue_size=3))
    client = nq.new("tcp", "client", options(location, confirm="get"))
    client.ready(PATIENCE)
    (session,) = server._resident.endpoint.sessions.values()
    taken: list[int] = []
    submit = session.submit

    def counted(copy: Any) -> None:
        submit(copy)
        taken.append(session.count)

    session_class = type(session)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_class, "submit", lambda _, copy: counted(copy))
        puts = [in_thread(server.put, number, client.id, client.id) for number in range(20)]
        got = [client.get(timeout=PATIENCE).data for _ in range(40)]
        for put in puts:
            put.result(PATIENCE).result(PATIENCE)
    assert sorted(got) == sorted([*range(20), *range(20)])
    assert len(taken) == 40
    assert max(taken) <= 3
    client.close()
    server.close()


def test_a_put_that_names_a_peer_more_often_than_there_are_places(location: nq.NetworkLocation) -> None:
    """It waits until nothing else is open, and goes alone."""
    server = nq.new("tcp", "server", options(location, full="wait", queue_size=1))
    client = nq.new("tcp", "client", options(location, confirm="get"))
    client.ready(PATIENCE)
    server.put(0, client.id)
    putting = in_thread(server.put, 1, client.id, client.id)
    until(lambda: server._resident.endpoint.has_waiters, "the put to wait")
    assert [client.get(timeout=PATIENCE).data for _ in range(3)] == [0, 1, 1]
    putting.result(PATIENCE).result(PATIENCE)
    client.close()
    server.close()


def test_a_put_that_waits_where_the_loop_has_ended(location: nq.NetworkLocation) -> None:
    """Closed by another thread meanwhile, its future says so."""
    client = nq.new("tcp", "client", options(location, full="wait"))
    resident = client._resident
    client.close()
    resident.endpoint.closing = False
    assert isinstance(client.put(0).exception(0), ConnectionAbortedError)


def test_a_put_that_waits_for_a_peer_that_goes(location: nq.NetworkLocation) -> None:
    """The one that puts is woken, and its future has ConnectionResetError(peer)."""
    server = nq.new("tcp", "server", options(location, full="wait", queue_size=1, resume=0.05))
    client = nq.new("tcp", "client", options(location, full="drop"))
    client.ready(PATIENCE)
    server.put(0, client.id)
    putting = in_thread(server.put, 1, client.id)
    until(lambda: server._resident.endpoint.has_waiters, "the put to wait")
    client._resident.endpoint.receive_queue.release_all = list  # type: ignore[method-assign]  # it goes without confirming
    client.close(0)
    error = putting.result(PATIENCE).exception(PATIENCE)
    assert type(error) is ConnectionResetError
    assert error.args == (client.id,)
    server.close()


def test_a_put_on_the_loop_never_waits(location: nq.NetworkLocation) -> None:
    """In a callback there is nobody who could make room: it is taken beyond the bound."""
    with nq.new("tcp", "client", options(location, full="wait", queue_size=1, resume=0.01)) as client:
        client.put(0)
        put = client._resident.handover.run(client.put, 1)
        assert not put.done()


# The loop's thread


def test_where_waiting_would_never_end(ends: Ends) -> None:
    """On the loop's thread `get`, `ready` and `close` are refused, and `put` is not."""
    server, client = ends
    handover = server._resident.handover
    for call in (server.get, server.ready, server.close):
        with pytest.raises(UsageError, match="thread of the event loop"):
            handover.run(call)
    put = handover.run(server.put, "x", client.id)
    put.result(PATIENCE)
    assert client.get(timeout=0).data == "x"


def test_events_are_called_in_a_thread_of_their_own(location: nq.NetworkLocation) -> None:
    """One may wait for what the loop does: a put, say."""
    told: list[object] = []
    server: Any = None

    def came(peer: uuid.UUID) -> None:
        server.put("welcome", peer).result(PATIENCE)
        told.append(peer)

    server = nq.new("tcp", "server", options(location, events=nq.EventOptions(ini=came)))
    client = nq.new("tcp", "client", options(location))
    assert client.get(timeout=PATIENCE).data == "welcome"
    until(lambda: told == [client.id], "the event to end")
    client.close()
    server.close()


# The end


def test_the_last_one_ends_the_thread(ends: Ends) -> None:
    """When all are closed nothing runs any more, and closing again does nothing."""
    server, client = ends
    runs = [loop_thread._shared is not None]
    for end in (client, server):
        end.close()
        runs.append(loop_thread._shared is not None)
    assert runs == [True, True, False]
    for end in ends:
        end.close()


def test_one_that_is_forgotten() -> None:
    """It warns, says who it was, and is closed: its port is free again, and the thread ends."""
    location = nq.NetworkLocation("127.0.0.1", free_port())
    server = nq.new("tcp", "server", options(location))
    own = str(server.id)
    kept = [server]
    del server
    with pytest.warns(ResourceWarning, match=own):
        kept.clear()
    gc.collect()
    until(lambda: loop_thread._shared is None, "the thread to end")
    with nq.new("tcp", "server", options(location)):
        pass


def test_one_that_is_forgotten_ends_its_threads(location: nq.NetworkLocation) -> None:
    """The threads that called its events end as well."""
    told = threading.Event()
    events = nq.EventOptions(ini=lambda _: told.set())
    kept = [nq.new("tcp", "server", options(location, events=events))]
    with nq.new("tcp", "client", options(location)) as client:
        client.ready(PATIENCE)
        assert told.wait(PATIENCE)
        with pytest.warns(ResourceWarning):
            kept.clear()
        gc.collect()
        until(lambda: not [each for each in threading.enumerate() if "events" in each.name], "the threads to end")


def test_one_that_could_not_be_made() -> None:
    """It leaves nothing behind, and warns of nothing."""
    location = nq.NetworkLocation("127.0.0.1", free_port())
    with nq.new("tcp", "server", options(location)):
        for _ in range(3):
            with pytest.raises(OSError, match=str(location.port)):
                nq.new("tcp", "server", options(location))
    gc.collect()
    assert loop_thread._shared is None


EXITS = """
import sys, threading
from redpoll import nq
def options(port):
    return nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=port), connection=nq.ConnectionOptions(full="wait"))
server = nq.new("tcp", "server", options(0))
client = nq.new("tcp", "client", options(server.netloc.port))
client.ready(5)
told = []
def get(queue):
    try:
        while True:
            told.append(queue.get().data)
    except ConnectionError:
        told.append("over")
threads = [threading.Thread(target=get, args=(queue,)) for queue in (server, client)]
for thread in threads:
    thread.start()
client._resident.handover.run(lambda: client.put("x").add_done_callback(lambda _: sys.exit(3)))  # before it is done
for thread in threads:
    thread.join(10)
    print(thread.is_alive(), end=" ")
print(sorted(told), repr(client.put("y").exception(5)).partition("(")[0])
for queue in (server, client):
    queue.close()
with nq.new("tcp", "server", options(0)) as server, nq.new("tcp", "client", options(server.netloc.port)) as client:
    client.put("z").result()
    print(server.get().data)
    client.close()
"""


def test_a_callback_that_exits() -> None:
    """It ends the loop, and whatever waits on that: gets, puts and closing; those that are made next have another."""
    done = run_program(EXITS)
    assert done.stdout == "False False ['over', 'over', 'x'] ConnectionAbortedError\nz\n", done.stderr


BLOCKS = """
import threading, time
from redpoll import nq
begun = threading.Event()
def block(_):
    begun.set()
    time.sleep(60)
events = nq.EventOptions(ini=block)
location = nq.NetworkLocation(port=0)
server = nq.new("tcp", "server", nq.CommunicatorOptions(netloc=location, events=events))
client = nq.new("tcp", "client", nq.CommunicatorOptions(netloc=server.netloc))
client.ready(5)
begun.wait()
"""


@pytest.mark.parametrize("end", ["", "client.close()", "client.close(); server.close(timeout=0.1)"])
def test_an_event_that_blocks_does_not_keep_the_program(end: str) -> None:
    """A program ends, whatever it closed, though an event does not return."""
    done = run_program(BLOCKS + end)
    assert done.returncode == 0, done.stderr


def test_closing_takes_its_time_and_no_more(location: nq.NetworkLocation) -> None:
    """Where an event does not return, or the callback of a future blocks the loop, it ends all the same."""
    gate = threading.Event()

    def wait(_: object) -> None:
        blocked.set()
        gate.wait(PATIENCE)

    blocked = threading.Event()
    blocks = nq.EventOptions(ini=wait)
    server = nq.new("tcp", "server", options(location, events=blocks))
    client = nq.new("tcp", "client", options(location))
    client.ready(PATIENCE)
    client.close()
    server.close(timeout=0.05)
    assert not gate.is_set()
    client = nq.new("tcp", "client", options(location))
    blocked.clear()
    put = client.put(0)
    put.add_done_callback(wait)
    put.cancel()
    assert blocked.wait(PATIENCE)
    client.close(timeout=0.05)
    assert not gate.is_set()
    gate.set()
    until(lambda: loop_thread._shared is None, "the callback to return, and the client to close")


def test_its_repr_says_what_it_is(ends: Ends) -> None:
    """Its class and its options, without secrets."""
    assert repr(ends[0]) == f"Communicator(options={ends[0].options!r})"


FORKED = """
import os, sys, warnings
from redpoll import nq, UsageError
location = nq.NetworkLocation("127.0.0.1", 0)
server = nq.new("tcp", "server", nq.CommunicatorOptions(netloc=location))
there = nq.CommunicatorOptions(netloc=server.netloc)
client = nq.new("tcp", "client", there)
client.put("before").result()
child = os.fork()
if not child:
    for call in (lambda: client.put("x"), client.get, server.get, client.ready):
        try:
            call()
        except UsageError:
            continue
        os._exit(1)
    if not there.netloc == server.netloc == client.netloc:
        os._exit(2)
    client.close()
    server.close()
    del client, server
    with nq.new("tcp", "client", nq.CommunicatorOptions(netloc=there.netloc)) as own:
        own.put("of the child").result()
    os._exit(0)
print(os.waitpid(child, 0)[1])
print(server.get().data, server.get().data)
client.put("after").result()
print(server.get().data)
client.close()
server.close()
"""


def test_a_fork() -> None:
    """A child is refused what is its parent's but its address, closes it without harm, and has communicators of its own."""
    done = run_program(FORKED, "-W", "ignore::DeprecationWarning")
    assert (done.stdout, done.stderr) == ("0\nbefore of the child\nafter\n", "")


ENDING = """
from redpoll import nq
location = nq.NetworkLocation("127.0.0.1", 0)
server = nq.new("tcp", "server", nq.CommunicatorOptions(netloc=location))
client = nq.new("tcp", "client", nq.CommunicatorOptions(netloc=server.netloc))
client.ready()
server.put("x")
END
"""


@pytest.mark.parametrize(
    ("end", "code"), [("", 0), ("raise SystemExit(3)", 3), ("client.get()", 0), ("del client", 0), ("1/0", 1)]
)
def test_a_program_that_ends_without_closing(end: str, code: int) -> None:
    """It ends, whatever is open, with the code it meant to, and warns if warnings are asked for."""
    done = run_program(ENDING.replace("END", end), "-W", "ignore::ResourceWarning")
    assert done.returncode == code
    assert "Exception ignored" not in done.stderr
    assert not done.stderr or code == 1

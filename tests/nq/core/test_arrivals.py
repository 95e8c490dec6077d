"""What came and was not got: in order, for all or for some, none lost whatever interrupts who gets."""

from __future__ import annotations

import asyncio
import gc
import uuid
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import Undecodable
from redpoll.nq.core import arrivals as module
from redpoll.nq.core.arrivals import Arrival, Arrivals, LoopArrivals, Source, Taken, ThreadArrivals, unread
from tests.blocking.support import PATIENCE, in_thread, interrupting, run_program, until

ME, A, B, C = (uuid.UUID(int=number) for number in range(1, 5))


def arrive(arrivals: Arrivals, peer: uuid.UUID, body: bytes, received: Any = None) -> None:
    """A message of a peer comes."""
    arrivals.add(Arrival(arrivals.source(peer), body, False, received))


def get(arrivals: ThreadArrivals, *peers: uuid.UUID, timeout: float | None = PATIENCE) -> bytes:
    """The body of the next one."""
    taken: Taken = [None]
    arrivals.get(taken, frozenset(peers) or None, timeout, lambda: None)
    assert taken[0] is not None
    return bytes(taken[0].body)


def waiting(arrivals: ThreadArrivals, *peers: uuid.UUID) -> Future[bytes]:
    """A thread that waits for one."""
    before = len(arrivals._waiters)
    future = in_thread(lambda: get(arrivals, *peers))
    until(lambda: len(arrivals._waiters) == before + 1, "the thread to wait")
    return future


# What both have


def test_they_come_in_order() -> None:
    """What came first is got first, of all peers, and each has its count and bytes while it waits."""
    arrivals = ThreadArrivals()
    sources = [arrivals.source(peer) for peer in (A, B)]
    for peer, body in ((A, b"1"), (B, b"22"), (A, b"333"), (B, b"")):
        arrive(arrivals, peer, body)
    assert [(each.count, each.size) for each in sources] == [(2, 4), (2, 2)]
    assert [get(arrivals) for _ in range(4)] == [b"1", b"22", b"333", b""]
    assert [(each.count, each.size) for each in sources] == [(0, 0), (0, 0)]
    assert len(arrivals) == 0


def test_what_an_interrupted_call_gives_back_meanwhile() -> None:
    """A thread that looks for the messages of one peer is not disturbed by another that was interrupted."""
    arrivals = ThreadArrivals()
    theirs = Arrival(arrivals.source(A), b"1", False, None)
    arrivals.unseen.append(theirs)
    arrive(arrivals, B, b"2")

    class Interrupting(frozenset[uuid.UUID]):
        def __contains__(self, peer: object) -> bool:
            if len(arrivals.unseen) < 3:
                arrivals.unseen.append(theirs)
            return super().__contains__(peer)

    taken: Taken = [None]
    arrivals.get(taken, Interrupting((B,)), 0, lambda: None)
    assert taken[0] is not None
    assert taken[0].body == b"2"
    assert len(arrivals.unseen) == 3


def test_some_are_got_out_of_turn() -> None:
    """Those of some peers are got in their order, and the others' wait."""
    arrivals = ThreadArrivals()
    for number, peer in enumerate((A, B, C, B, A)):
        arrive(arrivals, peer, b"%d" % number)
    assert [get(arrivals, B) for _ in range(2)] == [b"1", b"3"]
    assert [get(arrivals, C, A) for _ in range(2)] == [b"0", b"2"]
    with pytest.raises(TimeoutError, match="within 0 s"):
        get(arrivals, B, timeout=0)
    assert get(arrivals) == b"4"


def test_the_oldest_of_a_peer_is_dropped() -> None:
    """It is taken out from among the others', which stay."""
    arrivals = ThreadArrivals()
    source = arrivals.source(B)
    for peer, body in ((A, b"a"), (B, b"b"), (B, b"c")):
        arrive(arrivals, peer, body)
    dropped = arrivals.drop_oldest(source)
    assert dropped is not None
    assert dropped.body == b"b"
    assert (source.count, source.size) == (1, 1)
    assert [get(arrivals), get(arrivals)] == [b"a", b"c"]
    assert arrivals.drop_oldest(source) is None


def test_what_is_kept_of_a_peer_goes() -> None:
    """A peer without a session and of whom nothing waits is forgotten; before that it is the same for each session."""
    arrivals = ThreadArrivals()
    arrive(arrivals, A, b"x")
    gc.collect()
    assert arrivals.source(A) is arrivals.source(A)
    assert arrivals.source(A).count == 1
    get(arrivals)
    gc.collect()
    assert len(arrivals._sources) == 0


def test_what_is_held_is_let_go() -> None:
    """Messages that are confirmed when they are got can be confirmed before, and are got all the same."""
    arrivals = ThreadArrivals()
    arrive(arrivals, A, b"1", "held")
    arrive(arrivals, A, b"2")
    assert arrivals.release_all() == ["held"]
    assert arrivals.release_all() == []
    assert [get(arrivals), get(arrivals)] == [b"1", b"2"]


def test_after_the_close_it_is_over() -> None:
    """All that came is got, and then each who gets is told, by an error of its own that says the same."""
    arrivals = ThreadArrivals()
    arrive(arrivals, A, b"1")
    cause = RuntimeError("why")
    closed = ConnectionAbortedError(ME)
    closed.__cause__ = cause
    arrivals.close(closed)
    arrivals.close(ConnectionResetError(A))  # it was the first
    assert get(arrivals) == b"1"
    errors = []
    for timeout in (None, 0, 1):
        with pytest.raises(ConnectionAbortedError) as caught:
            get(arrivals, timeout=timeout)
        assert caught.value.args == (ME,)
        assert caught.value.__cause__ is cause
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == 3


def test_of_peers_that_are_gone_nothing_comes() -> None:
    """Who gets of peers of whom none is there is told; one that is there is enough to wait."""
    arrivals = ThreadArrivals()
    there = {A, B}
    arrivals.alive = there.__contains__
    arrive(arrivals, C, b"left")
    assert get(arrivals, C) == b"left"
    with pytest.raises(ConnectionResetError) as caught:
        get(arrivals, C)
    assert caught.value.args == (C,)
    getting = waiting(arrivals, A, C)
    there.discard(B)
    arrivals.look_again()
    until(lambda: any(not each.woken for each in arrivals._waiters), "the thread to have looked")
    there.discard(A)
    arrivals.look_again()
    assert isinstance(getting.exception(PATIENCE), ConnectionResetError)


@given(st.lists(st.tuples(st.sampled_from(["add", "get", "some", "drop", "back"]), st.sampled_from((A, B, C)))))
def test_against_a_list(steps: list[tuple[str, uuid.UUID]]) -> None:
    """Whatever is added, got, dropped and not seen: order, counts and bytes are those of plain lists."""
    arrivals = ThreadArrivals()
    unseen: list[tuple[uuid.UUID, bytes]] = []
    model: list[tuple[uuid.UUID, bytes]] = []
    last: Taken = [None]
    for number, (step, peer) in enumerate(steps):
        found = None
        if step == "add":
            model.append((peer, b"x" * (number % 3)))
            arrive(arrivals, *model[-1])
        elif step == "back":
            if last[0] is not None:
                arrivals.unseen.append(last[0])
                unseen.append((last[0].source.peer, last[0].body))
                last = [None]
        else:
            wanted = None if step == "get" else peer
            found = next((each for each in (*unseen, *model) if wanted in {None, each[0]}), None)
            last = [None]
            if step == "drop":
                last = [arrivals.drop_oldest(arrivals.source(peer))]
            elif found is not None:
                arrivals.get(last, None if wanted is None else frozenset((wanted,)), 0, lambda: None)
            assert (last[0] and (last[0].source.peer, last[0].body)) == found
            if found is not None:
                (unseen if found in unseen else model).remove(found)
        for each in (A, B, C):
            source: Source = arrivals.source(each)
            mine = [body for whose, body in model if whose == each]
            assert (source.count, source.size) == (len(mine), sum(map(len, mine)))
    rest = [*unseen, *model]
    assert len(arrivals) == len(rest)
    assert [get(arrivals, timeout=0) for _ in rest] == [body for _, body in rest]


def test_what_cannot_be_read_is_refused() -> None:
    """The sender of what the serializer could not read is told so, and why."""
    told = []

    class Received:
        def _refuse(self, code: int, text: str) -> None:
            told.append((code, text))

    unread(Received(), ValueError("bad bytes"))  # type: ignore[arg-type]  # as much of one as it needs
    assert told == [(Undecodable.code, "ValueError: bad bytes")]


# Threads


def test_one_message_wakes_one_thread() -> None:
    """Of several that wait the first one gets it; one that waits for another peer does not."""
    arrivals = ThreadArrivals()
    picky, first, second = waiting(arrivals, B), waiting(arrivals), waiting(arrivals, A)
    arrive(arrivals, A, b"1")
    assert first.result(PATIENCE) == b"1"
    arrive(arrivals, A, b"2")
    assert second.result(PATIENCE) == b"2"
    assert not picky.done()
    arrive(arrivals, B, b"3")
    assert picky.result(PATIENCE) == b"3"


def test_a_thread_that_leaves_wakes_the_next() -> None:
    """A message that woke a thread which is interrupted before it looks wakes the next one."""
    arrivals = ThreadArrivals()
    leaving = module._Waiter(None)
    arrivals._waiters[leaving] = None
    getting = waiting(arrivals)
    arrive(arrivals, A, b"1")
    assert leaving.woken
    assert not getting.done()
    arrivals._leave(leaving)
    assert getting.result(PATIENCE) == b"1"


def test_a_timeout_that_comes_with_a_message_takes_it() -> None:
    """A thread that was woken while its time ended gets the message."""
    arrivals = ThreadArrivals()

    def check() -> None:
        arrive(arrivals, A, b"late")

    taken: Taken = [None]
    arrivals.get(taken, None, 0, check)
    assert taken[0] is not None
    assert taken[0].body == b"late"


def test_where_waiting_is_not_allowed_it_raises() -> None:
    """What checks whether a thread may wait is asked only if it would, and leaves nobody waiting."""
    arrivals = ThreadArrivals()
    arrive(arrivals, A, b"1")

    def check() -> None:
        raise ZeroDivisionError

    taken: Taken = [None]
    arrivals.get(taken, None, None, check)
    with pytest.raises(ZeroDivisionError):
        arrivals.get(taken, None, None, check)
    assert not arrivals._waiters


def test_those_that_wait_are_interrupted() -> None:
    """They are told of a loss, each by an error of its own, and who gets afterwards waits."""
    arrivals = ThreadArrivals()
    both = waiting(arrivals), waiting(arrivals, A)
    arrivals.interrupt(ConnectionResetError(A))
    errors = [each.exception(PATIENCE) for each in both]
    assert [type(error) for error in errors] == [ConnectionResetError] * 2
    assert errors[0] is not errors[1]
    with pytest.raises(TimeoutError):
        get(arrivals, timeout=0)


def test_a_loss_that_nobody_heard_of_is_told_once() -> None:
    """If nobody waited then the next who would wait is told, behind all that came; unless it is mended before."""
    arrivals = ThreadArrivals()
    arrive(arrivals, A, b"1")
    arrivals.interrupt(ConnectionResetError(A))
    assert get(arrivals) == b"1"
    with pytest.raises(ConnectionResetError):
        get(arrivals)
    with pytest.raises(TimeoutError):
        get(arrivals, timeout=0)
    arrivals.interrupt(ConnectionResetError(A))
    arrivals.renewed()
    with pytest.raises(TimeoutError):
        get(arrivals, timeout=0)


def test_a_loss_that_comes_with_a_message_is_told_then() -> None:
    """Who was told and found a message gets that, and the next one who would wait is told."""
    arrivals = ThreadArrivals()
    getting = waiting(arrivals)
    with arrivals._lock:
        arrive(arrivals, A, b"1")
        arrivals.interrupt(ConnectionResetError(A))
    assert getting.result(PATIENCE) == b"1"
    with pytest.raises(ConnectionResetError):
        get(arrivals)


def test_ctrl_c_while_it_waits() -> None:
    """A thread that is interrupted took nothing, and waits no longer."""
    arrivals = ThreadArrivals()
    with interrupting(lambda: arrivals._waiters), pytest.raises(KeyboardInterrupt):
        get(arrivals, timeout=None)
    assert not arrivals._waiters
    arrive(arrivals, A, b"1")
    assert get(arrivals) == b"1"


INTERRUPTED = """
import signal
from redpoll import nq

inside, interruptions, got = False, 0, []

def interrupt(number, frame):
    global inside, interruptions
    if inside:  # behind the call what was got is the program's
        inside = False
        interruptions += 1
        raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
connection = nq.ConnectionOptions(CONNECTION)
server = nq.new(purpose="server", options=nq.CommunicatorOptions(netloc=nq.NetworkLocation(port=0), connection=connection))
client = nq.new(options=nq.CommunicatorOptions(netloc=server.netloc))
puts = [client.put(number) for number in range(3000)]
client.ready()

signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.00031)
while len(got) < 3000:
    try:
        inside = True
        message = server.get(PEERS)
        inside = False
    except KeyboardInterrupt:
        continue
    got.append(message.data)
signal.setitimer(signal.ITIMER_REAL, 0)
for put in puts:
    put.result()
client.close()
server.close()
print(got == list(range(3000)), interruptions > 0)
"""


@pytest.mark.parametrize("peers", ["", "client.id"])
@pytest.mark.parametrize("connection", ["", "confirm='get'"])
def test_ctrl_c_at_any_moment_loses_nothing(connection: str, peers: str) -> None:
    """Interrupted hundreds of times, wherever it is, a thread gets each message once and in order."""
    done = run_program(INTERRUPTED.replace("CONNECTION", connection).replace("PEERS", peers))
    assert done.stdout == "True True\n", done.stderr


# Tasks


async def begin(arrivals: LoopArrivals, *peers: uuid.UUID, timeout: float | None = None) -> asyncio.Task[Arrival]:
    """A task that waits for one."""
    task = asyncio.create_task(arrivals.get(frozenset(peers) or None, timeout))
    await asyncio.sleep(0)
    assert not task.done()
    return task


@pytest.mark.asyncio
async def test_a_task_waits() -> None:
    """It gets what comes, of whom it waits for, and what is there at once."""
    arrivals = LoopArrivals()
    picky, any_one = await begin(arrivals, B), await begin(arrivals)
    arrive(arrivals, A, b"1")
    assert (await any_one).body == b"1"
    arrive(arrivals, A, b"2")
    assert (await arrivals.get(None, 0)).body == b"2"
    arrive(arrivals, B, b"3")
    assert (await picky).body == b"3"


@pytest.mark.asyncio
async def test_a_task_that_is_cancelled_loses_nothing() -> None:
    """Cancelled while it waits, or when it was woken: another that waits gets the message, or the next one that gets."""
    arrivals = LoopArrivals()
    first, second = await begin(arrivals), await begin(arrivals)
    arrive(arrivals, A, b"1")
    first.cancel()
    assert (await second).body == b"1"
    with pytest.raises(asyncio.CancelledError):
        await first
    third = await begin(arrivals)
    arrive(arrivals, A, b"2")
    third.cancel()
    with pytest.raises(asyncio.CancelledError):
        await third
    assert (await arrivals.get(None, 0)).body == b"2"
    assert not arrivals._waiters


@pytest.mark.asyncio
async def test_a_task_has_a_limit() -> None:
    """A timeout says so, and takes nothing; an outer one stays what it is."""
    arrivals = LoopArrivals()
    with pytest.raises(TimeoutError, match=r"no message came within 0\.001 s"):
        await arrivals.get(None, 0.001)
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.001):
            await arrivals.get(None, 100)
    assert not caught.value.args
    assert not arrivals._waiters


@pytest.mark.asyncio
async def test_tasks_are_told_of_a_loss() -> None:
    """Those that wait are, one that is cancelled then leaves it to the next, and nothing is left unretrieved."""
    arrivals = LoopArrivals()
    told, cancelled = await begin(arrivals), await begin(arrivals, A)
    arrivals.interrupt(ConnectionResetError(A))
    cancelled.cancel()
    with pytest.raises(ConnectionResetError):
        await told
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(ConnectionResetError):
        await arrivals.get(None, 0)
    with pytest.raises(TimeoutError):
        await arrivals.get(None, 0)


@pytest.mark.asyncio
async def test_tasks_are_told_of_the_close() -> None:
    """All that wait are, and each that gets later."""
    arrivals = LoopArrivals()
    tasks = [await begin(arrivals) for _ in range(3)]
    arrivals.close(ConnectionAbortedError(ME))
    for task in tasks:
        with pytest.raises(ConnectionAbortedError):
            await task
    with pytest.raises(ConnectionAbortedError):
        await arrivals.get(frozenset((A,)), None)

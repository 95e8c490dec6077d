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
from redpoll.nq.core import receive_queue as module
from redpoll.nq.core.receive_queue import (
    LoopReceiveQueue,
    QueuedMessage,
    ReceiveQueue,
    Source,
    Taken,
    ThreadReceiveQueue,
    unread,
)
from tests.blocking.support import PATIENCE, in_thread, interrupting, run_program, until

ME, A, B, C = (uuid.UUID(int=number) for number in range(1, 5))


def arrive(receive_queue: ReceiveQueue, peer: uuid.UUID, body: bytes, received: Any = None) -> None:
    """A message of a peer comes."""
    receive_queue.add(QueuedMessage(receive_queue.source(peer), body, False, received))


def get(receive_queue: ThreadReceiveQueue, *peers: uuid.UUID, timeout: float | None = PATIENCE) -> bytes:
    """The body of the next one."""
    taken: Taken = [None]
    receive_queue.get(taken, frozenset(peers) or None, timeout, lambda: None)
    assert taken[0] is not None
    return bytes(taken[0].body)


def waiting(receive_queue: ThreadReceiveQueue, *peers: uuid.UUID) -> Future[bytes]:
    """A thread that waits for one."""
    before = len(receive_queue._waiters)
    future = in_thread(lambda: get(receive_queue, *peers))
    until(lambda: len(receive_queue._waiters) == before + 1, "the thread to wait")
    return future


# What both have


def test_they_come_in_order() -> None:
    """What came first is got first, of all peers, and each has its count and bytes while it waits."""
    receive_queue = ThreadReceiveQueue()
    sources = [receive_queue.source(peer) for peer in (A, B)]
    for peer, body in ((A, b"1"), (B, b"22"), (A, b"333"), (B, b"")):
        arrive(receive_queue, peer, body)
    assert [(each.count, each.size) for each in sources] == [(2, 4), (2, 2)]
    assert [get(receive_queue) for _ in range(4)] == [b"1", b"22", b"333", b""]
    assert [(each.count, each.size) for each in sources] == [(0, 0), (0, 0)]
    assert len(receive_queue) == 0


def test_what_an_interrupted_call_gives_back_meanwhile() -> None:
    """A thread that looks for the messages of one peer is not disturbed by another that was interrupted."""
    receive_queue = ThreadReceiveQueue()
    theirs = QueuedMessage(receive_queue.source(A), b"1", False, None)
    receive_queue.unseen.append(theirs)
    arrive(receive_queue, B, b"2")

    class Interrupting(frozenset[uuid.UUID]):
        def __contains__(self, peer: object) -> bool:
            if len(receive_queue.unseen) < 3:
                receive_queue.unseen.append(theirs)
            return super().__contains__(peer)

    taken: Taken = [None]
    receive_queue.get(taken, Interrupting((B,)), 0, lambda: None)
    assert taken[0] is not None
    assert taken[0].body == b"2"
    assert len(receive_queue.unseen) == 3


def test_some_are_got_out_of_turn() -> None:
    """Those of some peers are got in their order, and the others' wait."""
    receive_queue = ThreadReceiveQueue()
    for number, peer in enumerate((A, B, C, B, A)):
        arrive(receive_queue, peer, b"%d" % number)
    assert [get(receive_queue, B) for _ in range(2)] == [b"1", b"3"]
    assert [get(receive_queue, C, A) for _ in range(2)] == [b"0", b"2"]
    with pytest.raises(TimeoutError, match="within 0 s"):
        get(receive_queue, B, timeout=0)
    assert get(receive_queue) == b"4"


def test_the_oldest_of_a_peer_is_dropped() -> None:
    """It is taken out from among the others', which stay."""
    receive_queue = ThreadReceiveQueue()
    source = receive_queue.source(B)
    for peer, body in ((A, b"a"), (B, b"b"), (B, b"c")):
        arrive(receive_queue, peer, body)
    dropped = receive_queue.drop_oldest(source)
    assert dropped is not None
    assert dropped.body == b"b"
    assert (source.count, source.size) == (1, 1)
    assert [get(receive_queue), get(receive_queue)] == [b"a", b"c"]
    assert receive_queue.drop_oldest(source) is None


def test_what_is_kept_of_a_peer_goes() -> None:
    """A peer without a session and of whom nothing waits is forgotten; before that it is the same for each session."""
    receive_queue = ThreadReceiveQueue()
    arrive(receive_queue, A, b"x")
    gc.collect()
    assert receive_queue.source(A) is receive_queue.source(A)
    assert receive_queue.source(A).count == 1
    get(receive_queue)
    gc.collect()
    assert len(receive_queue._sources) == 0


def test_what_is_held_is_let_go() -> None:
    """Messages that are confirmed when they are got can be confirmed before, and are got all the same."""
    receive_queue = ThreadReceiveQueue()
    arrive(receive_queue, A, b"1", "held")
    arrive(receive_queue, A, b"2")
    assert receive_queue.release_all() == ["held"]
    assert receive_queue.release_all() == []
    assert [get(receive_queue), get(receive_queue)] == [b"1", b"2"]


def test_after_the_close_it_is_over() -> None:
    """All that came is got, and then each who gets is told, by an error of its own that says the same."""
    receive_queue = ThreadReceiveQueue()
    arrive(receive_queue, A, b"1")
    cause = RuntimeError("why")
    closed = ConnectionAbortedError(ME)
    closed.__cause__ = cause
    receive_queue.close(closed)
    receive_queue.close(ConnectionResetError(A))  # it was the first
    assert get(receive_queue) == b"1"
    errors = []
    for timeout in (None, 0, 1):
        with pytest.raises(ConnectionAbortedError) as caught:
            get(receive_queue, timeout=timeout)
        assert caught.value.args == (ME,)
        assert caught.value.__cause__ is cause
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == 3


def test_of_peers_that_are_gone_nothing_comes() -> None:
    """Who gets of peers of whom none is there is told; one that is there is enough to wait."""
    receive_queue = ThreadReceiveQueue()
    there = {A, B}
    receive_queue.alive = there.__contains__
    arrive(receive_queue, C, b"left")
    assert get(receive_queue, C) == b"left"
    with pytest.raises(ConnectionResetError) as caught:
        get(receive_queue, C)
    assert caught.value.args == (C,)
    getting = waiting(receive_queue, A, C)
    there.discard(B)
    receive_queue.look_again()
    until(lambda: any(not each.woken for each in receive_queue._waiters), "the thread to have looked")
    there.discard(A)
    receive_queue.look_again()
    assert isinstance(getting.exception(PATIENCE), ConnectionResetError)


@given(st.lists(st.tuples(st.sampled_from(["add", "get", "some", "drop", "back"]), st.sampled_from((A, B, C)))))
def test_against_a_list(steps: list[tuple[str, uuid.UUID]]) -> None:
    """Whatever is added, got, dropped and not seen: order, counts and bytes are those of plain lists."""
    receive_queue = ThreadReceiveQueue()
    unseen: list[tuple[uuid.UUID, bytes]] = []
    model: list[tuple[uuid.UUID, bytes]] = []
    last: Taken = [None]
    for number, (step, peer) in enumerate(steps):
        found = None
        if step == "add":
            model.append((peer, b"x" * (number % 3)))
            arrive(receive_queue, *model[-1])
        elif step == "back":
            if last[0] is not None:
                receive_queue.unseen.append(last[0])
                unseen.append((last[0].source.peer, last[0].body))
                last = [None]
        else:
            wanted = None if step == "get" else peer
            found = next((each for each in (*unseen, *model) if wanted in {None, each[0]}), None)
            last = [None]
            if step == "drop":
                last = [receive_queue.drop_oldest(receive_queue.source(peer))]
            elif found is not None:
                receive_queue.get(last, None if wanted is None else frozenset((wanted,)), 0, lambda: None)
            assert (last[0] and (last[0].source.peer, last[0].body)) == found
            if found is not None:
                (unseen if found in unseen else model).remove(found)
        for each in (A, B, C):
            source: Source = receive_queue.source(each)
            mine = [body for whose, body in model if whose == each]
            assert (source.count, source.size) == (len(mine), sum(map(len, mine)))
    rest = [*unseen, *model]
    assert len(receive_queue) == len(rest)
    assert [get(receive_queue, timeout=0) for _ in rest] == [body for _, body in rest]


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
    receive_queue = ThreadReceiveQueue()
    picky, first, second = waiting(receive_queue, B), waiting(receive_queue), waiting(receive_queue, A)
    arrive(receive_queue, A, b"1")
    assert first.result(PATIENCE) == b"1"
    arrive(receive_queue, A, b"2")
    assert second.result(PATIENCE) == b"2"
    assert not picky.done()
    arrive(receive_queue, B, b"3")
    assert picky.result(PATIENCE) == b"3"


def test_a_thread_that_leaves_wakes_the_next() -> None:
    """A message that woke a thread which is interrupted before it looks wakes the next one."""
    receive_queue = ThreadReceiveQueue()
    leaving = module._Waiter(None, lambda: None)
    receive_queue._waiters[leaving] = None
    getting = waiting(receive_queue)
    arrive(receive_queue, A, b"1")
    assert leaving.woken
    assert not getting.done()
    receive_queue._leave(leaving)
    assert getting.result(PATIENCE) == b"1"


def test_a_timeout_that_comes_with_a_message_takes_it() -> None:
    """A thread that was woken while its time ended gets the message."""
    receive_queue = ThreadReceiveQueue()

    def check() -> None:
        arrive(receive_queue, A, b"late")

    taken: Taken = [None]
    receive_queue.get(taken, None, 0, check)
    assert taken[0] is not None
    assert taken[0].body == b"late"


def test_where_waiting_is_not_allowed_it_raises() -> None:
    """What checks whether a thread may wait is asked only if it would, and leaves nobody waiting."""
    receive_queue = ThreadReceiveQueue()
    arrive(receive_queue, A, b"1")

    def check() -> None:
        raise ZeroDivisionError

    taken: Taken = [None]
    receive_queue.get(taken, None, None, check)
    with pytest.raises(ZeroDivisionError):
        receive_queue.get(taken, None, None, check)
    assert not receive_queue._waiters


def test_those_that_wait_are_interrupted() -> None:
    """They are told of a loss, each by an error of its own, and who gets afterwards waits."""
    receive_queue = ThreadReceiveQueue()
    both = waiting(receive_queue), waiting(receive_queue, A)
    receive_queue.interrupt(ConnectionResetError(A))
    errors = [each.exception(PATIENCE) for each in both]
    assert [type(error) for error in errors] == [ConnectionResetError] * 2
    assert errors[0] is not errors[1]
    with pytest.raises(TimeoutError):
        get(receive_queue, timeout=0)


def test_a_loss_that_nobody_heard_of_is_told_once() -> None:
    """If nobody waited then the next who would wait is told, behind all that came; unless it is mended before."""
    receive_queue = ThreadReceiveQueue()
    arrive(receive_queue, A, b"1")
    receive_queue.interrupt(ConnectionResetError(A))
    assert get(receive_queue) == b"1"
    with pytest.raises(ConnectionResetError):
        get(receive_queue)
    with pytest.raises(TimeoutError):
        get(receive_queue, timeout=0)
    receive_queue.interrupt(ConnectionResetError(A))
    receive_queue.renewed()
    with pytest.raises(TimeoutError):
        get(receive_queue, timeout=0)


def test_a_loss_that_comes_with_a_message_is_told_then() -> None:
    """Who was told and found a message gets that, and the next one who would wait is told."""
    receive_queue = ThreadReceiveQueue()
    getting = waiting(receive_queue)
    with receive_queue._lock:
        arrive(receive_queue, A, b"1")
        receive_queue.interrupt(ConnectionResetError(A))
    assert getting.result(PATIENCE) == b"1"
    with pytest.raises(ConnectionResetError):
        get(receive_queue)


def test_ctrl_c_while_it_waits() -> None:
    """A thread that is interrupted took nothing, and waits no longer."""
    receive_queue = ThreadReceiveQueue()
    with interrupting(lambda: receive_queue._waiters), pytest.raises(KeyboardInterrupt):
        get(receive_queue, timeout=None)
    assert not receive_queue._waiters
    arrive(receive_queue, A, b"1")
    assert get(receive_queue) == b"1"


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


async def begin(
    receive_queue: LoopReceiveQueue, *peers: uuid.UUID, timeout: float | None = None
) -> asyncio.Task[QueuedMessage]:
    """A task that waits for one."""
    task = asyncio.create_task(receive_queue.get(frozenset(peers) or None, timeout))
    await asyncio.sleep(0)
    assert not task.done()
    return task


@pytest.mark.asyncio
async def test_a_task_waits() -> None:
    """It gets what comes, of whom it waits for, and what is there at once."""
    receive_queue = LoopReceiveQueue()
    picky, any_one = await begin(receive_queue, B), await begin(receive_queue)
    arrive(receive_queue, A, b"1")
    assert (await any_one).body == b"1"
    arrive(receive_queue, A, b"2")
    assert (await receive_queue.get(None, 0)).body == b"2"
    arrive(receive_queue, B, b"3")
    assert (await picky).body == b"3"


@pytest.mark.asyncio
async def test_a_task_that_is_cancelled_loses_nothing() -> None:
    """Cancelled while it waits, or when it was woken: another that waits gets the message, or the next one that gets."""
    receive_queue = LoopReceiveQueue()
    first, second = await begin(receive_queue), await begin(receive_queue)
    arrive(receive_queue, A, b"1")
    first.cancel()
    assert (await second).body == b"1"
    with pytest.raises(asyncio.CancelledError):
        await first
    third = await begin(receive_queue)
    arrive(receive_queue, A, b"2")
    third.cancel()
    with pytest.raises(asyncio.CancelledError):
        await third
    assert (await receive_queue.get(None, 0)).body == b"2"
    assert not receive_queue._waiters


@pytest.mark.asyncio
async def test_a_task_has_a_limit() -> None:
    """A timeout says so, and takes nothing; an outer one stays what it is."""
    receive_queue = LoopReceiveQueue()
    with pytest.raises(TimeoutError, match=r"no message came within 0\.001 s"):
        await receive_queue.get(None, 0.001)
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.001):
            await receive_queue.get(None, 100)
    assert not caught.value.args
    assert not receive_queue._waiters


@pytest.mark.asyncio
async def test_tasks_are_told_of_a_loss() -> None:
    """Those that wait are, one that is cancelled then leaves it to the next, and nothing is left unretrieved."""
    receive_queue = LoopReceiveQueue()
    told, cancelled = await begin(receive_queue), await begin(receive_queue, A)
    receive_queue.interrupt(ConnectionResetError(A))
    cancelled.cancel()
    with pytest.raises(ConnectionResetError):
        await told
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(ConnectionResetError):
        await receive_queue.get(None, 0)
    with pytest.raises(TimeoutError):
        await receive_queue.get(None, 0)


@pytest.mark.asyncio
async def test_tasks_are_told_of_the_close() -> None:
    """All that wait are, and each that gets later."""
    receive_queue = LoopReceiveQueue()
    tasks = [await begin(receive_queue) for _ in range(3)]
    receive_queue.close(ConnectionAbortedError(ME))
    for task in tasks:
        with pytest.raises(ConnectionAbortedError):
            await task
    with pytest.raises(ConnectionAbortedError):
        await receive_queue.get(frozenset((A,)), None)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.errors import Expired
from redpoll.serializers import gather
from redpoll.wire.frames import Control
from redpoll.wire.outgoing import Body, Payload, Stage
from redpoll.wire.transfer import LONG, LONG_PIECE, PIECES_PER_TURN, Transfer, Transfers
from tests.wire.support import (
    CONTINUED,
    FRAGMENT,
    METADATA,
    NAME,
    REQ_ACK,
    Sent,
    add_link,
    arrived,
    deadline,
    feed,
    frame,
    frames,
    linked,
    make_peer,
    taken,
)


def pieces_of(transfer: Transfer) -> list[list[Body]]:
    """All pieces of a transfer, to the last."""
    found = []
    done = False
    while not done:
        pieces, done = transfer.take()
        found.append(pieces)
    return found


def fragments(
    body: Payload, piece: int, *, header: bytes = b"", metadata: bytes = b"", kind: int = REQ_ACK
) -> Transfer:
    out = Sent(body, kind, header=header)
    out.identity = NAME
    out.serial = 9
    transfer = Transfer(out, kind, piece)
    transfer.begin(metadata)
    return transfer


def test_golden_bytes() -> None:
    """A continued frame has the whole length in 64 bits before its piece; fragments have its serial."""
    pieces = pieces_of(fragments(b"abcde", 3, header=b"H"))
    assert [b"".join(each).hex() for each in pieces] == [
        ("000102030405060708090a0b0c0d0e0f000000090000000b000181480000000000000005616263"),
        ("000102030405060708090a0b0c0d0e0f00000009000000020000346465"),
    ]


@given(st.binary(min_size=1, max_size=400), st.integers(1, 100), st.binary(max_size=5), st.booleans())
def test_round_trip(body: bytes, piece: int, header: bytes, timed: bool) -> None:
    """A message in fragments is assembled again, with header and metadata."""
    link = linked()
    whole = b"".join(
        b"".join(pieces)
        for pieces in pieces_of(fragments(body, piece, header=header, metadata=deadline(5) if timed else b""))
    )
    kinds = [kind for kind, *_ in frames(whole)]
    assert kinds[1:] == [FRAGMENT] * ((len(body) - 1) // piece)
    feed(link, whole)
    kind = REQ_ACK | CONTINUED | (METADATA if timed else 0)
    assert arrived(link) == [(kind, 9, NAME, header, body)]


@pytest.mark.parametrize(
    "body", [b"abcdef", bytearray(b"abcdef"), memoryview(b"abcdef"), memoryview(b"abcdef").cast("H")]
)
def test_any_buffer(body: Body) -> None:
    """Any buffer goes by its bytes, and is not copied."""
    transfer = fragments(memoryview(body).cast("B"), 4)
    (_, first), ((_, second)) = pieces_of(transfer)
    assert bytes(first) + bytes(second) == b"abcdef"
    assert isinstance(first, memoryview)
    assert first.obj is memoryview(body).obj


@pytest.mark.parametrize("piece", [1000, 40_000, 70_000, 1_000_000])
def test_parts(piece: int) -> None:
    """A body in parts goes in fragments like one in one piece, and its large parts are not copied."""
    memory = bytearray(range(256)) * 300
    body = gather([b"head", memoryview(memory), b"tail"])
    whole = b"head" + bytes(memory) + b"tail"
    assert b"".join(b"".join(pieces) for pieces in pieces_of(fragments(body, piece))) == b"".join(
        b"".join(pieces) for pieces in pieces_of(fragments(whole, piece))
    )
    found = [each for pieces in pieces_of(fragments(body, piece)) for each in pieces]
    assert sum(len(each) for each in found if isinstance(each, memoryview) and each.obj is memory) == len(memory)


def test_parts_for_libchirp() -> None:
    """To libchirp a body in parts is one frame."""
    out = Sent(gather([b"head", bytes(40_000), bytes(40_000)]))
    out.identity, out.serial = NAME, 9
    transfer = Transfer(out, REQ_ACK, 30_000, whole=True)
    transfer.begin(b"")
    written = b"".join(b"".join(pieces) for pieces in pieces_of(transfer))
    assert written == frame(REQ_ACK, 9, b"head" + bytes(80_000))


def test_whole() -> None:
    """For libchirp a large body is one frame, and while it is half written nothing may be between."""
    out = Sent(b"abcdefgh")
    out.identity, out.serial = NAME, 9
    transfer = Transfer(out, REQ_ACK, 3, whole=True)
    transfer.begin(b"")
    seen = [(transfer.begun, transfer.begun_whole)]
    written = []
    done = False
    while not done:
        pieces, done = transfer.take()
        written.append(b"".join(pieces))
        seen.append((transfer.begun, transfer.begun_whole))
    assert written == [frame(REQ_ACK, 9, b"abc", size=8), b"def", b"gh"]
    assert seen == [(False, False), (True, True), (True, True), (True, True)]


def test_fragments_let_others_pass() -> None:
    """A transfer in fragments is never in the way of other output."""
    transfer = fragments(b"abcdef", 2)
    transfer.take()
    assert (transfer.begun, transfer.begun_whole) == (True, False)


def test_two_take_turns() -> None:
    """Two large messages on one link go in turn, some fragments of one and then some of the other."""
    peer = make_peer(fragment_size=2)
    link = add_link(peer)
    first, second = Sent(b"a" * 4 * PIECES_PER_TURN), Sent(b"b" * 4 * PIECES_PER_TURN)
    peer.submit(first, 0.0)
    peer.submit(second, 0.0)
    written = b""
    while link.transfers:
        written += b"".join(link.take_fragment(0.0))
    assert [serial for _, serial, *_ in frames(written)] == ([1] * PIECES_PER_TURN + [2] * PIECES_PER_TURN) * 2


def test_messages_in_order() -> None:
    """With `in_order` what was sent behind a large message waits for its last piece, and other frames do not."""
    peer = make_peer(fragment_size=2, in_order=True)
    link = add_link(peer)
    large, small, second = Sent(b"abcd"), Sent(b"x"), Sent(b"efgh")
    for out in (large, small, second):
        peer.submit(out, 0.0)
    assert len(link.transfers) == 1
    link.take_fragment(0.0)
    peer.pump(0.0)
    link.control(Control.PING, 7)
    assert frames(b"".join(link.take_output()))[-1][0] == Control.PING
    assert (large.stage, small.stage) == (Stage.SENT, Stage.QUEUED)
    assert not peer.ready
    link.take_fragment(0.0)
    peer.pump(0.0)
    assert small.stage == Stage.SENT
    assert [each.out for each in link.transfers] == [second]


@pytest.mark.parametrize("in_order", [False, True])
def test_places_behind_a_large_message(in_order: bool) -> None:
    """With `in_order` a run of small messages has no place while a large one is on its way."""
    peer = make_peer(fragment_size=2, in_order=in_order)
    link = add_link(peer)
    peer.submit(Sent(b"abcd"), 0.0)
    assert (peer.free_window > 0, peer.ready) == (not in_order, not in_order)
    taken(link)
    assert peer.free_window == 63


def test_progress_moves_the_deadline() -> None:
    """While pieces of a body go out its deadline counts from the last of them."""
    peer = make_peer(fragment_size=4)
    link = add_link(peer)
    out = Sent(b"a" * 12, timeout=5.0)
    peer.submit(out, 0.0)
    for now in (3.0, 6.0, 9.0):
        peer.expire(now)
        assert not out.settled
        link.take_fragment(now)
    assert out.deadline == 14.0
    assert not link.transfers


def test_progress_of_another_in_turn_is_progress() -> None:
    """Bodies that have begun do not time out while others have their turn, however long that takes; queued ones do."""
    peer = make_peer(fragment_size=4)
    link = add_link(peer)
    begun = [Sent(bytes(4 * (PIECES_PER_TURN + 1)), timeout=5.0) for _ in range(3)]
    waits = Sent(bytes(100), timeout=5.0)
    for out in begun:
        peer.submit(out, 0.0)
    for _ in range(3 * PIECES_PER_TURN):
        link.take_fragment(0.0)
    peer.submit(waits, 0.0)
    for now in (3.0, 6.0, 9.0):
        peer.expire(now)
        link.take_fragment(now)
    assert not any(out.settled for out in begun)
    assert type(waits.error) is Expired
    assert not link.transfers


# In turn


def answer_to(serial: int, body: bytes, *, answer: bool = False, whole: bool = False) -> Transfer:
    out = Sent(body)
    out.serial = serial
    return Transfer(out, 0, 10, whole=whole, answer=answer)


def test_transfers_take_turns() -> None:
    """Each gives `PIECES_PER_TURN` pieces in its turn and is gone with its last."""
    transfers = Transfers([answer_to(1, bytes(10 * PIECES_PER_TURN + 5)), answer_to(2, bytes(5))])
    turns = []
    while transfers:
        serial = transfers[0].out.serial
        pieces, done = transfers.take()
        turns.append((serial, sum(map(len, pieces[1:])), done))
    assert turns == [(1, 10, False)] * PIECES_PER_TURN + [(2, 5, True), (1, 5, True)]


def test_a_whole_frame_is_not_interrupted() -> None:
    """A frame of libchirp's keeps its turn to its end, and cannot be stopped once it has begun."""
    first = answer_to(1, bytes(25), whole=True)
    transfers = Transfers([first, answer_to(2, bytes(5))])
    transfers.take()
    assert transfers.stop(first.out) is None
    assert transfers[0] is first
    assert [transfers.take()[1], transfers.take()[1]] == [False, True]
    assert [each.out.serial for each in transfers] == [2]


def test_what_was_not_begun() -> None:
    """Unwritten messages are distinguished from those begun and from answers; a stopped one is removed."""
    begun, waiting, answer = answer_to(1, bytes(25)), answer_to(2, bytes(5)), answer_to(3, bytes(5), answer=True)
    transfers = Transfers([begun, waiting, answer])
    transfers.take()
    assert transfers.unbegun() == [waiting.out]
    assert (transfers.stop(waiting.out), transfers.stop(waiting.out)) == (waiting, None)
    assert transfers == [begun, answer]


def test_answers_beside_the_largest_are_counted() -> None:
    """The size of waiting answers excludes the largest, which may be of any size; messages do not count."""
    sizes = (25, 5, 100)
    answers = [answer_to(number, bytes(size), answer=True) for number, size in enumerate(sizes)]
    assert Transfers([*answers, answer_to(9, bytes(1_000))]).waiting_answers == 30
    assert (Transfers(answers[:1]).waiting_answers, Transfers().waiting_answers) == (0, 0)


def test_long_bodies() -> None:
    """A body is a long one if it has more than `LONG` bytes."""
    assert not fragments(bytes(LONG), LONG).long
    assert fragments(bytes(LONG + 1), LONG).long


def test_long_bodies_go_in_small_pieces() -> None:
    """A long body goes in pieces of `LONG_PIECE` bytes at most, any other one in those that were asked for."""
    for size, piece, expected in (
        (LONG, 4 * LONG_PIECE, 4 * LONG_PIECE),
        (LONG + 1, 4 * LONG_PIECE, LONG_PIECE),
        (LONG + 1, 1000, 1000),
    ):
        transfer = fragments(bytes(size), piece)
        for _ in range(3):
            pieces, _ = transfer.take()
            assert len(pieces[1]) == expected

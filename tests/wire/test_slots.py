from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from redpoll.errors import PeerLost, Withdrawn
from redpoll.wire.inbound import Phase
from redpoll.wire.inbox import OVERHEAD
from redpoll.wire.link import Link
from redpoll.wire.link_lifecycle import detach
from redpoll.wire.peer import Peer
from redpoll.wire.slots import SlotPool
from redpoll.wire.states import LinkState
from tests.wire.support import (
    ACK,
    ANSWER,
    CANCEL,
    CONTINUED,
    CREDIT,
    FRAGMENT,
    GOODBYE,
    METADATA,
    NAME,
    NOOP,
    REQ_ACK,
    RETRY,
    THEIRS,
    THERE,
    WANTED,
    Owned,
    Work,
    add_link,
    announcement,
    begin_all,
    deadline,
    feed,
    frame,
    linked,
    make_peer,
    owner,
    peer_of,
    plain_link,
    sent,
    settings,
    taken,
)
from tests.wire.support import (
    message as packed,
)

WITHDRAWN = bytes((Withdrawn.code,))


def receive(link: Link[Peer], *serials: int, kind: int = REQ_ACK) -> None:
    """Let messages of four bytes arrive and wait."""
    feed(link, b"".join(frame(kind, serial, b"work") for serial in serials))
    peer_of(link).slots.inbox.add(link)


def begin(link: Link[Peer], *, now: float = 0.0) -> Work:
    message = peer_of(link).slots.begin(now)
    assert isinstance(message, Work)
    return message


# Beginning


@pytest.mark.parametrize("kind", [REQ_ACK, 0])
def test_slots(kind: int) -> None:
    """No more messages begin than there are slots, in the order of arrival; an end frees a slot."""
    link = linked(slots=2)
    receive(link, 1, 2, 3, 4, kind=kind)
    slots = peer_of(link).slots
    first, second = begin(link), begin(link)
    assert (first.serial, second.serial, slots.begin(0.0), slots.running) == (1, 2, None, 2)
    slots.release(second)
    third = begin(link)
    assert (third.serial, slots.begin(0.0)) == (3, None)
    slots.refuse(first, 1, "no")
    assert begin(link).serial == 4


def test_slots_are_of_the_peer() -> None:
    """The slots of one peer are shared by all its links, and survive them."""
    peer = make_peer(slots=1)
    first = add_link(peer)
    receive(first, 1)
    second = add_link(peer)
    receive(second, 2)
    running = begin(first)
    assert peer.slots.begin(0.0) is None
    detach(peer, first, PeerLost(THERE, "cut"), 0.0)
    assert peer.slots.begin(0.0) is None
    peer.slots.release(running)
    assert begin(second).serial == 2


def test_slots_of_the_node() -> None:
    """Peers share the slots of their node: one may not begin what another's messages occupy."""
    pool = SlotPool(2)
    peers = [Peer(THERE, THEIRS, settings(slots=2), pool, Owned(), 0) for _ in range(2)]
    links = [add_link(peer) for peer in peers]
    for link in links:
        receive(link, 1, 2)
    begin(links[0])
    last = begin(links[1])
    assert (pool.free, peers[0].slots.begin(0.0), peers[1].slots.begin_many(0.0, 5)) == (0, None, [])
    peers[1].slots.release(last)
    assert pool.free == 1
    assert begin(links[0]).serial == 2


def test_begin_many() -> None:
    """A batch has what is there and has slots, at most as many as asked for."""
    link = linked(slots=3)
    slots = peer_of(link).slots
    receive(link, 1, 2, 3, 4)
    assert [message.serial for message in slots.begin_many(0.0, 2)] == [1, 2]
    assert [message.serial for message in slots.begin_many(0.0, 9)] == [3]
    assert slots.begin_many(0.0, 9) == []
    assert (slots.running, slots.pool.used) == (3, 3)


def test_put_back() -> None:
    """Messages that began unseen wait again, in front and in order, without a slot; so they may be withdrawn."""
    link = linked(slots=3)
    slots = peer_of(link).slots
    receive(link, 1, 2, 3, 4)
    batch = slots.begin_many(0.0, 3)
    slots.put_back(batch[1:])
    assert (slots.running, slots.pool.used) == (1, 1)
    slots.withdraw(2, hard=False)
    assert batch[1].phase
    assert [message.serial for message in slots.begin_many(0.0, 9)] == [3, 4]


def test_put_back_counts_as_waiting() -> None:
    """Messages that are put back count in the limits of bytes, of the inbox and of the node, even if it was empty."""
    link = linked(slots=2, lookahead=0, window_bytes=1 << 16)
    slots = peer_of(link).slots

    def receive_large(*serials: int) -> None:
        feed(link, b"".join(frame(REQ_ACK, serial, bytes(40_000)) for serial in serials))
        slots.inbox.add(link)

    receive_large(1, 2)
    batch = slots.begin_many(0.0, 2)
    receive_large(3)
    slots.put_back(batch)
    assert not slots.inbox.overrun
    assert slots.pool.memory.inbox_bytes >= slots.inbox.charged >= 120_000
    receive_large(4)
    assert slots.inbox.overrun


def test_next_in_the_same_slot() -> None:
    """A message that was finished hands its slot on; with nothing more to begin it is free."""
    link = linked(slots=1)
    slots = peer_of(link).slots
    receive(link, 1, 2)
    message = begin(link)
    slots.finish(message)
    following = slots.next(0.0)
    assert following is not None
    assert (following.serial, slots.running) == (2, 1)
    slots.finish(following)
    assert (slots.next(0.0), slots.running, slots.pool.used) == (None, 0, 0)
    assert [(kind, serial) for kind, serial, *_ in sent(link)] == [(ACK, 1), (ACK, 2)]


# Ends


def test_acknowledged_when_released() -> None:
    """Nothing is acknowledged before it is released, and then once, however often that is called."""
    link = linked()
    receive(link, 7)
    message = begin(link)
    assert taken(link) == b""
    assert peer_of(link).slots.release(message)
    assert not peer_of(link).slots.release(message)
    assert not peer_of(link).slots.refuse(message, 1, "late")
    assert taken(link) == frame(ACK, 7, identity=NAME)
    assert (message.phase, peer_of(link).slots.running, peer_of(link).unacked) == (Phase.ENDED, 0, {})


def test_refused() -> None:
    """A refused message frees its slot and the sender gets the reason; it is never acknowledged."""
    link = linked()
    receive(link, 7)
    message = begin(link)
    assert peer_of(link).slots.refuse(message, 1, "ValueError: no")
    assert not peer_of(link).slots.release(message)
    assert taken(link) == frame(ACK | RETRY, 7, b"\x01ValueError: no", identity=NAME)
    slots = peer_of(link).slots
    assert (slots.running, slots.pool.used, peer_of(link).counters.refused) == (0, 0, 1)


def test_refused_toward_libchirp() -> None:
    """Libchirp understands no refusal: its failed message is not acknowledged, and its slot is free."""
    link = plain_link()
    receive(link, 7)
    peer_of(link).slots.refuse(begin(link), 1, "no")
    assert (taken(link), peer_of(link).slots.running, link.unreleased) == (b"", 0, 0)


def test_unacknowledged_places_come_back() -> None:
    """An unacknowledged message gives its place back however it ended: released, refused, or in a batch."""
    for how in ("release", "refuse", "batch"):
        link = linked(window=4, slots=4)
        receive(link, 1, 2, kind=0)
        slots = peer_of(link).slots
        batch = slots.begin_many(0.0, 9)
        if how == "batch":
            slots.release_many(batch)
        for message in batch:
            if how == "release":
                slots.release(message)
            elif how == "refuse":
                slots.refuse(message, 1, "no")
        credit = [struct.unpack("!IQ4x", data) for kind, _, _, _, data in sent(link) if kind == CREDIT]
        assert tuple(map(sum, zip(*credit, strict=True))) == (2, 8)
        assert (slots.running, link.unreleased) == (0, 0)


@pytest.mark.parametrize("other", [None, "text"])
def test_a_batch_with_something_else_in_it(other: Any) -> None:
    """What stands before something that is no message ends, and its places are free."""
    peer = make_peer(slots=20, window=8)
    link = add_link(peer)
    receive(link, 0, 1, 2, kind=0)
    batch: list[Any] = peer.slots.begin_many(0.0, 20)
    batch.insert(2, other)
    with pytest.raises(AttributeError):
        peer.slots.release_many(batch)
    assert (peer.slots.running, peer.slots.pool.used, link.unreleased) == (1, 1, 1)
    peer.slots.release_many(batch[3:])
    assert (peer.slots.running, peer.slots.pool.used, link.unreleased) == (0, 0, 0)


def test_batches_of_all_kinds() -> None:
    """A batch may hold messages of several links and kinds, some ended: each ends once, as its kind asks."""
    peer = make_peer(slots=20, window=4)
    links = []
    for number in range(3):
        links.append(add_link(peer, plain=number == 2))
        receive(links[-1], 10 * number, 10 * number + 1, kind=0)
        receive(links[-1], 10 * number + 2)
    batch = peer.slots.begin_many(0.0, 20)
    peer.slots.release(batch[0])
    peer.slots.release_many(batch)
    peer.slots.release_many(batch)
    assert (peer.slots.running, peer.slots.pool.used, peer.unacked) == (0, 0, {})
    for link in links:
        found = [frame for frame in sent(link) if frame[0] in {ACK, CREDIT}]
        assert [kind for kind, *_ in found].count(ACK) == 1
        places = sum(struct.unpack("!IQ4x", data)[0] for kind, _, _, _, data in found if kind == CREDIT)
        assert places == (0 if link is links[2] else 2)
        assert link.unreleased == 0


def test_answer_that_ends() -> None:
    """An answer that ends its message is one frame; the slot is free and the message remembered as done."""
    link = linked()
    receive(link, 7, kind=REQ_ACK | WANTED)
    message = begin(link)
    peer_of(link).slots.release_with_answer(message, b"answer")
    assert sent(link) == [(ACK | ANSWER, 7, NAME, b"", b"answer")]
    assert (message.phase, peer_of(link).slots.running, link.unreleased, peer_of(link).unacked) == (
        Phase.ENDED,
        0,
        0,
        {},
    )


def test_all_that_waits_is_refused() -> None:
    """Waiting messages can be refused at once; those that have begun continue."""
    link = linked()
    receive(link, 1, 2, 3)
    running = begin(link)
    peer_of(link).slots.refuse_all_waiting(7, "stopping")
    assert [(kind, serial) for kind, serial, *_ in sent(link)] == [(ACK | RETRY, 2), (ACK | RETRY, 3)]
    assert (link.unreleased, list(peer_of(link).slots.inbox)) == (1, [])
    assert peer_of(link).slots.release(running)


def test_turned_away() -> None:
    """Messages to a node that stops are refused, except acknowledged ones that its goodbye promised to handle."""
    link = linked()
    slots = peer_of(link).slots
    feed(link, frame(REQ_ACK, 1) + frame(0, 2))
    link.leave()
    slots.reject_arrived(link, 7, "stopping", promised=False)
    assert [message.serial for message in link.arrived.messages] == [1]
    assert [(kind, serial) for kind, serial, *_ in sent(link)] == [(GOODBYE, 2), (CREDIT, 0)]
    slots.reject_arrived(link, 7, "stopping", promised=True)
    assert link.arrived.messages == []
    assert [(kind, serial) for kind, serial, *_ in sent(link)] == [(ACK | RETRY, 1)]
    assert (link.unreleased, peer_of(link).unacked, slots.running) == (0, {}, 0)


def test_turned_back() -> None:
    """Messages before the goodbye of a node that stops are not refused: the goodbye says that they were not accepted."""
    link = linked()
    slots = peer_of(link).slots
    feed(link, frame(REQ_ACK, 1))
    slots.inbox.add(link)
    running = begin(link)
    feed(link, frame(REQ_ACK, 2) + frame(0, 3) + frame(REQ_ACK, 4))
    slots.reject_arrived(link, 7, "stopping", promised=False)
    feed(link, frame(REQ_ACK, 5) + frame(REQ_ACK | RETRY, 0))
    slots.reject_arrived(link, 7, "stopping", promised=False)
    assert (link.arrived.messages, list(peer_of(link).unacked)) == ([], [1])
    assert [(kind, serial) for kind, serial, *_ in sent(link)] == [(ACK | RETRY, 0)], (
        "one sent again is older than those"
    )
    link.leave(accept_all=True)
    assert sent(link)[0][:2] == (GOODBYE, 1), "and none of them can be taken any more"
    assert slots.release(running)


def test_nothing_is_turned_back_of_libchirp() -> None:
    """Toward libchirp, which has no goodbye, the missing acknowledgement says it."""
    link = plain_link()
    feed(link, frame(REQ_ACK, 1))
    peer_of(link).slots.reject_arrived(link, 7, "stopping", promised=False)
    assert (link.arrived.messages, link.rejected_from, sent(link)) == ([], None, [])


# Deadlines and withdrawals


def test_past_its_deadline() -> None:
    """A message whose deadline passes while it waits does not begin: its sender is told so."""
    link = linked()
    feed(link, frame(REQ_ACK, 1) + frame(REQ_ACK | METADATA, 2, deadline(1000)) + frame(REQ_ACK, 3), now=5.0)
    slots = peer_of(link).slots
    slots.inbox.add(link)
    slots.release(begin(link, now=5.5))
    assert begin(link, now=6.0).serial == 3
    assert [(kind, serial, data[:1]) for kind, serial, _, _, data in sent(link)] == [
        (ACK, 1, b""),
        (ACK | RETRY, 2, WITHDRAWN),
    ]


@pytest.mark.parametrize("how", ["begin_many", "next"])
def test_past_its_deadline_in_a_batch(how: str) -> None:
    """Neither a batch nor a slot that is handed on begins what is past its deadline."""
    link = linked(slots=9)
    feed(link, frame(REQ_ACK, 1) + frame(REQ_ACK | METADATA, 2, deadline(1000)) + frame(REQ_ACK, 3))
    slots = peer_of(link).slots
    slots.inbox.add(link)
    if how == "begin_many":
        assert [message.serial for message in slots.begin_many(1.0, 9)] == [1, 3]
    else:
        slots.finish(begin(link))
        following = slots.next(1.0)
        assert following is not None
        assert following.serial == 3


def test_withdrawn_while_it_waits() -> None:
    """A message that its sender withdraws while it waits is refused as not begun, and never begins."""
    link = linked()
    receive(link, 1, 2, 3)
    running = begin(link)
    feed(link, frame(CANCEL, 2))
    assert [(kind, serial, data[:1]) for kind, serial, _, _, data in sent(link)] == [(ACK | RETRY, 2, WITHDRAWN)]
    peer_of(link).slots.release(running)
    assert begin(link).serial == 3


def test_withdrawn_in_the_read_that_brought_it() -> None:
    """A cancel in the same read as its message withdraws it before it ever waits; batches pass it over too."""
    link = linked(slots=9)
    feed(link, frame(REQ_ACK, 1) + frame(REQ_ACK, 2) + frame(CANCEL, 1))
    slots = peer_of(link).slots
    slots.inbox.add(link)
    assert [message.serial for message in slots.begin_many(0.0, 9)] == [2]
    assert link.unreleased == 1


def test_withdrawn_in_a_read_that_is_refused() -> None:
    """Of a read whose messages are all refused, one that was withdrawn in it is refused once, and counted once."""
    link = linked(slots=9)
    taken(link)
    feed(link, frame(REQ_ACK, 1) + frame(REQ_ACK, 2) + frame(CANCEL, 1))
    slots = peer_of(link).slots
    slots.refuse_arrived(link, 1, "no")
    assert [serial for _, serial, _, _, _ in sent(link)] == [1, 2]
    assert (link.unreleased, slots.inbox.withdrawn, slots.busy, link.busy) == (0, 0, False, False)


@pytest.mark.parametrize("many", [False, True])
def test_withdrawn_behind_one_that_is_not_acknowledged(many: bool) -> None:
    """A message withdrawn in its read never begins, also where only unacknowledged ones wait: its slot stayed taken."""
    link = linked(slots=9)
    feed(link, frame(0, 1, b"work") + frame(REQ_ACK, 2, b"work") + frame(CANCEL, 2))
    slots = peer_of(link).slots
    slots.inbox.add(link)
    begun = slots.begin_many(0.0, 9) if many else [begin(link)]
    assert [message.serial for message in begun] == [1]
    slots.release_many(begun)
    assert slots.begin(0.0) is None
    assert (slots.running, slots.pool.used, slots.inbox.withdrawn, slots.busy) == (0, 0, 0, False)


def test_withdrawn_before_anybody_took_it() -> None:
    """A message withdrawn before its link's messages are taken is refused once, and nothing is left of it."""
    peer = make_peer()
    link = add_link(peer)
    feed(link, frame(REQ_ACK, 1) + frame(CANCEL, 1))
    peer.slots.reject_arrived(link, 7, "stopping", promised=False)
    assert (link.unreleased, peer.counters.refused, link.rejected_from) == (0, 1, None)
    assert [(kind, serial, data[:1]) for kind, serial, _, _, data in sent(link)] == [(ACK | RETRY, 1, WITHDRAWN)]
    feed(link, frame(REQ_ACK, 2) + frame(CANCEL, 2))
    lose(link)
    assert (peer.slots.inbox.carried, peer.slots.pool.carried) == (0, 0)


@pytest.mark.parametrize("where", ["front", "middle", "end"])
@pytest.mark.parametrize("size", [0, 60_000])
def test_a_withdrawn_message_frees_its_place(where: str, size: int) -> None:
    """Withdrawn anywhere in the inbox, a message uses no place and no memory: a sender within its window continues."""
    link = linked(window=4, lookahead=0)
    slots = peer_of(link).slots
    receive(link, 1, 2)
    running = begin(link)
    serial = 2
    waits = [2]
    for _ in range(200):
        feed(link, b"".join(frame(REQ_ACK, serial + number, bytes(size)) for number in (1, 2)))
        serial += 2
        waits += [serial - 1, serial]
        assert not slots.inbox.add(link)
        for _ in range(2):
            given_up = waits.pop({"front": 0, "middle": 1, "end": -1}[where])
            feed(link, frame(CANCEL, given_up))
            assert sent(link)[-1][:2] == (ACK | RETRY, given_up)
        slots.inbox.recount()
        assert len(slots.inbox) <= 10
        assert slots.inbox.charged <= size + 4
    assert (slots.inbox.overrun, link.unreleased, len(slots.unacked)) == (False, 2, 2)
    slots.release(running)
    last = begin(link)
    assert [last.serial] == waits
    slots.release(last)
    assert not slots.busy
    assert (slots.begin(0.0), len(slots.inbox), slots.inbox.withdrawn) == (None, 0, 0)


def test_reading_goes_on_when_what_waits_is_withdrawn() -> None:
    """Withdrawn messages no longer count when reading has stopped because too much waits."""
    link = linked(window=4, lookahead=0)
    slots = peer_of(link).slots
    receive(link, 1)
    begin(link)
    receive(link, 2, 3, 4, 5, 6, 7)
    assert slots.inbox.overrun
    assert not slots.inbox.end_overrun()
    feed(link, frame(CANCEL, 3) + frame(CANCEL, 4) + frame(CANCEL, 5))
    assert slots.inbox.end_overrun()


class Unscanned(Work):
    """A message that a search through many for another one would touch."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise AssertionError("looked at in passing")

    __hash__ = Work.__hash__


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("put_back", [False, True])
def test_withdrawing_looks_at_one_message(timed: bool, put_back: bool) -> None:
    """A cancel costs the same however much waits, whether its message is handled, waiting, or in the same read."""
    link = linked(slots=2)
    link.make = Unscanned
    slots = peer_of(link).slots
    kind, block = (REQ_ACK | METADATA, deadline(9000)) if timed else (REQ_ACK, b"")
    feed(link, b"".join(frame(kind, serial, block) for serial in range(1, 7)))
    slots.inbox.add(link)
    running = slots.begin_many(0.0, 2)
    if put_back:
        slots.put_back(running)
        running = slots.begin_many(0.0, 2)
    feed(link, b"".join(frame(kind, serial, block) for serial in range(7, 10)) + frame(CANCEL, 8))
    slots.inbox.add(link)
    feed(link, frame(CANCEL, 2) + frame(CANCEL, 5))
    assert [(each, serial) for each, serial, *_ in sent(link)] == [(ACK | RETRY, 8), (ACK | RETRY, 5)]
    assert [message.told for message in running if isinstance(message, Work)] == [None, False]
    slots.release_many(running)
    left = []
    while (message := slots.begin(0.0)) is not None:
        left.append(message.serial)
        slots.release(message)
    assert left == [3, 4, 6, 7, 9]


@pytest.mark.parametrize(("body", "hard"), [(b"", False), (b"\x01", True)])
def test_withdrawn_while_it_is_handled(body: bytes, hard: bool) -> None:
    """A message in handling continues; its handler is notified, and whether to cancel the work."""
    link = linked()
    receive(link, 1)
    message = begin(link)
    told = [message.told]
    feed(link, frame(CANCEL, 1, body))
    assert [*told, message.told] == [None, hard]
    assert taken(link) == b""
    assert peer_of(link).slots.release(message)


def test_cancel_of_nothing() -> None:
    """A cancel of a message that has ended, or never arrived, does nothing."""
    link = linked()
    receive(link, 1)
    peer_of(link).slots.release(begin(link))
    taken(link)
    feed(link, frame(CANCEL, 1) + frame(CANCEL, 99))
    assert taken(link) == b""


# Overrun


def test_redpoll_is_never_stopped() -> None:
    """A redpoll node within its window is never stopped from sending, however large its messages are."""
    link = linked(lookahead=10, window=64)
    feed(link, b"".join(frame(0, serial, bytes(1000)) for serial in range(64)))
    assert not peer_of(link).slots.inbox.add(link)


@pytest.mark.parametrize("make", [linked, plain_link])
def test_overrun(make: Callable[..., Link[Peer]]) -> None:
    """A peer that sends more than it may, libchirp at once, is not read while more than `lookahead` waits."""
    link = make(lookahead=50 * OVERHEAD, window=8, slots=100)
    slots = peer_of(link).slots
    receive(link, *range(49), kind=0)
    assert not slots.inbox.overrun
    feed(link, frame(0, 51) * 51)
    assert slots.inbox.add(link)
    resumable = [slots.inbox.end_overrun()]
    while len(slots.inbox) > 50:
        begin(link)
    assert [*resumable, slots.inbox.end_overrun(), slots.inbox.end_overrun()] == [False, True, False]


@pytest.mark.parametrize("plain", [True, False])
def test_overrun_over_another_link(plain: bool) -> None:
    """A peer that overran its window is not read over a link that it opens meanwhile either."""
    peer = make_peer(lookahead=50 * OVERHEAD, window=8)
    first = add_link(peer, plain=plain)
    feed(first, frame(0, 51) * 60)
    told = [peer.slots.inbox.add(first)]
    if not plain:
        # Of two links between redpoll nodes one would be left.
        lose(first)
    second = add_link(peer, plain=plain)
    feed(second, frame(0, 51))
    told.append(peer.slots.inbox.add(second))
    peer.slots.refuse_all_waiting(1, "no")
    resumable = [peer.slots.inbox.end_overrun(), peer.slots.inbox.end_overrun()]
    feed(second, frame(0, 51))
    assert (told, resumable, peer.slots.inbox.add(second)) == ([True, True], [True, False], False)


# Messages that outlive their link


def lose(link: Link[Peer]) -> None:
    detach(peer_of(link), link, PeerLost(THERE, "cut"), 0.0)


def window_told(link: Link[Peer]) -> list[int]:
    """The windows announced over a link since its output was last taken."""
    return [struct.unpack_from("!I", identity, 6)[0] for kind, _, identity, _, _ in sent(link) if kind == NOOP]


def test_window_is_smaller_by_what_is_carried_over() -> None:
    """After a reconnect the window is smaller by what lost links left open, and grows as that ends."""
    peer = make_peer(window=8, slots=4)
    first = add_link(peer)
    receive(first, 1, 2, 3, 4, 5)
    jobs = begin_all(first)
    lose(first)
    assert peer.slots.inbox.carried == 5
    second = add_link(peer)
    assert window_told(second) == [3]
    peer.slots.release(jobs[0])
    peer.slots.refuse(jobs[1], 1, "no")
    peer.slots.release_many(jobs[2:])
    assert window_told(second) == [4, 5, 6, 7]
    peer.slots.release(begin(second))
    assert window_told(second) == [8]
    assert (peer.slots.inbox.carried, second.unreleased, peer.slots.running) == (0, 0, 0)


@pytest.mark.parametrize("how", ["one by one", "batch"])
def test_unacknowledged_messages_are_carried_over_too(how: str) -> None:
    """Unacknowledged messages of a lost link count until they end, in a batch or not, and return no credit."""
    peer = make_peer(window=8, slots=4)
    first = add_link(peer)
    receive(first, 1, 2, kind=0)
    jobs = peer.slots.begin_many(0.0, 4)
    lose(first)
    second = add_link(peer)
    assert window_told(second) == [6]
    if how == "batch":
        peer.slots.release_many(jobs)
    else:
        for job in jobs:
            peer.slots.release(job)
    assert [kind for kind, *_ in sent(second)] == [NOOP, NOOP]
    assert peer.slots.inbox.carried == 0


def test_bytes_that_are_carried_over() -> None:
    """A window is smaller by the bytes of waiting messages until these end, whichever others were handled meanwhile."""
    peer = make_peer(window=8, slots=1, window_bytes=4 * 65_536)
    first = add_link(peer)
    feed(first, frame(0, 1, bytes(65_536)) + frame(0, 2, bytes(65_536)))
    peer.slots.inbox.add(first)
    running = begin(first)
    lose(first)
    add_link(peer)
    assert peer.slots.window == (6, 3 * 65_536)
    peer.slots.release(running)
    assert peer.slots.window == (7, 3 * 65_536)
    (waiting,) = peer.slots.begin_many(0.0, 1)
    peer.slots.release(waiting)
    assert peer.slots.window == (8, 4 * 65_536)


def test_sent_again_while_it_is_handled() -> None:
    """A message resent while it is handled does not begin again, and is acknowledged over the new link."""
    peer = make_peer(slots=4, window=8)
    first = add_link(peer)
    receive(first, 5)
    job = begin(first)
    lose(first)
    second = add_link(peer)
    assert window_told(second) == [7]
    receive(second, 5, kind=REQ_ACK | RETRY)
    assert window_told(second) == [8]
    assert (list(peer.slots.inbox), second.unreleased, peer.slots.inbox.carried) == ([], 1, 0)
    peer.slots.release(job)
    assert [(kind, serial) for kind, serial, *_ in sent(second)] == [(ACK, 5)]
    assert second.unreleased == 0


@pytest.mark.parametrize(("code", "expected"), [(None, (ACK, b"")), (1, (ACK | RETRY, b"\x01no"))])
def test_sent_again_after_its_end(code: int | None, expected: tuple[int, bytes]) -> None:
    """A message resent after its end gets its outcome again, and does not begin."""
    peer = make_peer()
    first = add_link(peer)
    receive(first, 5)
    job = begin(first)
    lose(first)
    if code is None:
        peer.slots.release(job)
    else:
        peer.slots.refuse(job, code, "no")
    second = add_link(peer)
    taken(second)
    receive(second, 5, kind=REQ_ACK | RETRY)
    assert [(kind, data) for kind, _, _, _, data in sent(second)] == [expected]
    assert list(peer.slots.inbox) == []


def test_sent_again_while_its_answer_is_written() -> None:
    """A request resent behind the first piece of its answer is acknowledged: the answer is not lost."""
    peer = make_peer(fragment_size=64)
    first = add_link(peer)
    receive(first, 5, kind=REQ_ACK | WANTED)
    job = begin(first)
    lose(first)
    second = add_link(peer)
    taken(second)
    second.answer(job, bytes(100), ends=False)
    second.take_fragment(0.0)
    peer.slots.release(job)
    feed(second, frame(REQ_ACK | RETRY | WANTED, 5, b"work"))
    assert [(kind, serial) for kind, serial, *_ in sent(second)][-2:] == [(ACK, 5), (FRAGMENT, 5)]


@pytest.mark.parametrize("how", ["lost", "alive"])
def test_what_is_answered_is_remembered_as_long_as_that_takes(how: str) -> None:
    """Any number of messages may end while a large answer is written: its resent request is not handled again."""
    peer = make_peer(fragment_size=64, window=4)
    first = add_link(peer)
    receive(first, 5, kind=REQ_ACK | WANTED)
    peer.slots.release_with_answer(begin(first), bytes(100))
    first.take_fragment(0.0)
    for serial in range(6, 60):
        receive(first, serial)
        peer.slots.release(begin(first))
    if how == "lost":
        lose(first)
    second = add_link(peer)
    taken(second)
    receive(second, 5, kind=REQ_ACK | RETRY | WANTED)
    assert [(kind, data[:1]) for kind, _, _, _, data in sent(second)] == [(ACK | RETRY, b"\x09")]
    assert not peer.slots.inbox


def test_what_is_sent_again_and_again_is_remembered() -> None:
    """A message is remembered as long as its sender asks, whatever withdrawn messages end meanwhile."""
    peer = make_peer(window=4)
    link = add_link(peer)
    receive(link, 5)
    peer.slots.release(begin(link))
    for cycle in range(1, 10):
        lose(link)
        peer.slots.trim_outcomes()
        link = add_link(peer)
        taken(link)
        receive(link, 5, kind=REQ_ACK | RETRY)
        assert [kind for kind, *_ in sent(link)] == [ACK]
        for serial in range(100 * cycle, 100 * cycle + 7):
            receive(link, serial)
            peer.slots.release(begin(link))
    assert not peer.slots.inbox


@pytest.mark.parametrize("pieces", [None, [2]])
def test_the_first_attempt_comes_after_the_second(pieces: list[int] | None) -> None:
    """Messages resent over another link are not accepted from an older one; the rest of its messages are."""
    peer = make_peer(window=4)
    first, second = add_link(peer), add_link(peer)
    receive(second, 5, kind=REQ_ACK | RETRY)
    peer.slots.release(begin(second))
    for serial in range(100, 130):
        receive(second, serial)
        peer.slots.release(begin(second))
    feed(first, packed(REQ_ACK, 5, b"work", pieces=pieces) + packed(REQ_ACK, 6, b"work", pieces=pieces))
    peer.slots.inbox.add(first)
    assert [each.serial for each in peer.slots.inbox] == [6]
    receive(second, 5)
    assert [each.serial for each in peer.slots.inbox] == [6, 5], "only what the older link brings is in doubt"


def test_a_link_that_all_was_sent_again_of_is_closed() -> None:
    """A peer cannot have more in flight on a link than a window: if it resends more, that link is closed."""
    peer = make_peer(window=4)
    first, second = add_link(peer), add_link(peer)
    for serial in range(4):
        receive(second, serial, kind=REQ_ACK | RETRY)
    assert owner(peer).closed == []
    receive(second, 4, kind=REQ_ACK | RETRY)
    assert [link for link, _ in owner(peer).closed] == [first]


def test_remembered_refusals_are_short() -> None:
    """Of a refusal no more text is remembered than was sent, and that is sent again."""
    link = linked()
    receive(link, 7)
    peer_of(link).slots.refuse(begin(link), 1, "\N{SNOWMAN}" * 100_000)
    first = sent(link)
    outcomes = peer_of(link).slots.outcomes
    assert outcomes is not None
    assert outcomes[7] == (1, "\N{SNOWMAN}" * 341)
    feed(link, frame(REQ_ACK | RETRY, 7, b"work"))
    assert sent(link) == first


def test_a_window_of_outcomes_is_remembered() -> None:
    """A peer may have a window open and send it again: the ends of so many are remembered, and of few more."""
    peer = make_peer(window=8, slots=1)
    link = add_link(peer)
    for serial in range(1, 51):
        feed(link, frame(REQ_ACK, serial, b"x"))
        peer.slots.inbox.add(link)
        (message,) = peer.slots.begin_many(0.0, 9)
        assert peer.slots.release(message)
    assert 16 <= peer.slots.remembered <= 32
    taken(link)
    feed(link, b"".join(frame(REQ_ACK | RETRY, serial, b"x") for serial in range(43, 51)))
    peer.slots.inbox.add(link)
    assert not peer.slots.inbox
    assert [(kind, serial) for kind, serial, *_ in sent(link)] == [(ACK, serial) for serial in range(43, 51)]


def test_sent_again_in_fragments_is_known_by_the_first() -> None:
    """A large message that was done is answered with its first fragment: others may end before its last is here."""
    link = linked()
    receive(link, 7)
    assert peer_of(link).slots.release(begin(link))
    taken(link)
    total = (9).to_bytes(8, "big")
    feed(link, frame(REQ_ACK | RETRY | CONTINUED, 7, total + b"abc"))
    assert [(kind, serial) for kind, serial, *_ in sent(link)] == [(ACK, 7)]
    feed(link, frame(FRAGMENT, 7, b"def") + frame(FRAGMENT, 7, b"ghi"))
    peer_of(link).slots.inbox.add(link)
    assert not peer_of(link).slots.inbox
    assert not link.incoming.unfinished


def test_sent_again_before_it_was_taken() -> None:
    """A message received over another link, not taken there yet, is taken where it is resent, and counts there."""
    peer = make_peer()
    first, second = add_link(peer), add_link(peer)
    feed(first, frame(REQ_ACK, 5, b"work"))
    assert len(first.arrived.messages) == 1
    receive(second, 5, kind=REQ_ACK | RETRY)
    assert (first.unreleased, first.arrived.messages, second.unreleased) == (0, [], 1)
    lose(first)
    assert (peer.slots.inbox.carried, peer.slots.pool.carried) == (0, 0)
    job = begin(second)
    taken(second)
    assert peer.slots.release(job)
    assert [(kind, serial) for kind, serial, *_ in sent(second)] == [(ACK, 5)]


def test_sent_again_and_not_known() -> None:
    """A resend of what never arrived is handled."""
    link = linked()
    receive(link, 5, kind=REQ_ACK | RETRY)
    assert begin(link).serial == 5


def test_without_the_bit_nothing_is_a_duplicate() -> None:
    """The same serial or identity without the retry bit is another message."""
    link = linked(slots=9)
    receive(link, 5, 5, 6)
    peer_of(link).slots.release(begin(link))
    receive(link, 5)
    assert len(begin_all(link)) == 3


def test_sent_again_in_the_first_read() -> None:
    """A resend in the same read as the handshake is recognized all the same."""
    peer = make_peer()
    first = add_link(peer)
    receive(first, 5)
    peer.slots.release(begin(first))
    lose(first)
    second = add_link(peer, announced=announcement() + frame(REQ_ACK | RETRY, 5) + frame(REQ_ACK, 6))
    peer.slots.inbox.add(second)
    assert [(kind, serial) for kind, serial, *_ in sent(second)] == [(ACK, 5)]
    assert [message.serial for message in peer.slots.inbox] == [6]
    assert second.unreleased == 1


def test_a_peer_that_started_anew() -> None:
    """After a restart its serials mean other messages: none is taken for a resend, the old ones end unanswered."""
    peer = make_peer(slots=4)
    first = add_link(peer, announced=announcement(epoch=1))
    receive(first, 5, 6)
    old = begin_all(first)
    peer.slots.release(old[1])
    lose(first)
    second = add_link(peer, announced=announcement(epoch=2))
    taken(second)
    receive(second, 5, 6, kind=REQ_ACK | RETRY)
    new = begin_all(second)
    assert [message.serial for message in new] == [5, 6]
    peer.slots.release(old[0])
    assert sorted(peer.unacked) == [5, 6]
    feed(second, frame(CANCEL, 5))
    assert [message.told for message in new] == [False, None]


def test_a_late_announcement_tells_of_the_restart() -> None:
    """An announcement in a read of its own is equal to one with the handshake."""
    peer = make_peer()
    first = add_link(peer, announced=announcement(epoch=1))
    receive(first, 5)
    peer.slots.release(begin(first))
    lose(first)
    second = add_link(peer, plain=True)
    feed(second, announcement(epoch=2))
    receive(second, 5, kind=REQ_ACK | RETRY)
    assert begin(second).serial == 5
    assert peer.epoch == 2


def test_acknowledgement_for_libchirp_finds_its_way() -> None:
    """A message of a lost link to libchirp is acknowledged over the present one: libchirp matches it there."""
    peer = make_peer()
    first = add_link(peer, plain=True)
    receive(first, 5)
    job = begin(first)
    lose(first)
    second = add_link(peer, plain=True)
    peer.slots.release(job)
    assert first.state is LinkState.CLOSED
    assert sent(second) == [(ACK, 1, NAME, b"", b"")]


def test_acknowledgement_for_libchirp_avoids_a_link_that_ends() -> None:
    """Of the links that are left it takes the newest that is still used: what a closing one is given may not be written."""
    peer = make_peer()
    first = add_link(peer, plain=True)
    receive(first, 5)
    job = begin(first)
    second = add_link(peer, plain=True)
    third = add_link(peer, plain=True)
    lose(first)
    third.leave()
    peer.slots.release(job)
    assert sent(second) == [(ACK, 1, NAME, b"", b"")]
    assert ACK not in [each[0] for each in sent(third)]


def test_what_nobody_took_is_as_if_it_had_not_come() -> None:
    """Messages of the read whose later bytes broke the link are not known when they are resent."""
    peer = make_peer()
    first = add_link(peer)
    feed(first, frame(REQ_ACK, 5))
    lose(first)
    assert peer.unacked == {}
    second = add_link(peer)
    receive(second, 5, kind=REQ_ACK | RETRY)
    assert begin(second).serial == 5

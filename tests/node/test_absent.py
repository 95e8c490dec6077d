"""Peers that are remembered for a time after their link was lost."""

from __future__ import annotations

import asyncio

import pytest

from redpoll.config import MAX_RESUME
from redpoll.node import absent
from redpoll.node.absent import Absent
from redpoll.wire.peer import Peer
from redpoll.wire.session import of
from tests.node.support import until
from tests.wire.support import REQ_ACK, add_link, feed, frame, make_peer

pytestmark = pytest.mark.asyncio


def known(outcomes: int = 1) -> Peer:
    """A peer some of whose messages have ended."""
    peer = make_peer(slots=outcomes + 1)
    link = add_link(peer)
    for serial in range(outcomes):
        feed(link, frame(REQ_ACK, serial + 1))
    peer.slots.arrived(link)
    while (message := peer.slots.begin(0.0)) is not None:
        peer.slots.release(message)
    assert peer.slots.remembered == outcomes
    return peer


def remembering(seconds: float = 3600.0) -> tuple[Absent, list[Peer]]:
    """Who is absent, and whom it forgot."""
    forgotten: list[Peer] = []
    return Absent(asyncio.get_running_loop(), seconds, forgotten.append), forgotten


async def test_a_peer_is_remembered_for_its_time() -> None:
    """A peer with outcomes is remembered until its time is over, then it may be forgotten."""
    gone, forgotten = remembering(0.01)
    peer = known()
    gone.add(peer)
    assert peer in gone
    await until(lambda: forgotten, "its end")
    assert forgotten == [peer]
    assert peer not in gone


async def test_a_session_makes_it_longer() -> None:
    """Who said that its session lasts a time is remembered for so much longer, up to a day."""
    gone, forgotten = remembering(0.01)
    loop = asyncio.get_running_loop()
    patient, endless, other = known(), known(), known()
    of(patient).seconds = 100
    of(endless).seconds = 2**32 - 1
    for peer in (patient, endless, other):
        gone.add(peer)
    await until(lambda: forgotten, "the end of the one without")
    assert forgotten == [other]
    left = [gone._peers[peer][1].when() - loop.time() for peer in (patient, endless)]
    assert 99 < left[0] < 101
    assert MAX_RESUME - 1 < left[1] < MAX_RESUME + 1
    gone.clear()


async def test_a_peer_without_outcomes_is_not_remembered() -> None:
    """Who has nothing to ask for again is not kept."""
    gone, _ = remembering()
    gone.add(known(0))
    assert len(gone) == 0


async def test_who_is_back_is_not_counted() -> None:
    """A peer that is back is no longer absent, and nothing rings later; one that was not absent may be back too."""
    gone, forgotten = remembering(0.01)
    peer, other = known(), known()
    gone.add(peer)
    gone.remove(peer)
    gone.remove(peer)
    gone.add(other)
    await until(lambda: forgotten, "the end of the other")
    assert forgotten == [other]


async def test_the_longest_absent_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a bound to how many are remembered; who went first is forgotten first."""
    monkeypatch.setattr(absent, "MAX_PEERS", 2)
    gone, forgotten = remembering()
    peers = [known() for _ in range(4)]
    for peer in peers:
        gone.add(peer)
    assert forgotten == peers[:2]
    assert len(gone) == 2
    gone.clear()


async def test_outcomes_are_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a bound to what is remembered of all together, and who comes and goes is counted once."""
    monkeypatch.setattr(absent, "MAX_OUTCOMES", 10)
    gone, forgotten = remembering()
    peers = [known(4) for _ in range(3)]
    for peer in (peers[0], peers[0], peers[1]):
        gone.add(peer)
    assert not forgotten
    gone.add(peers[2])
    assert forgotten == peers[:1]
    gone.clear()
    assert len(gone) == 0

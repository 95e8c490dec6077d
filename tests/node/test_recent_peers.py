"""Peers that are remembered for a time after their link was lost."""

from __future__ import annotations

import asyncio
from sys import getsizeof
from typing import Any

import pytest

from redpoll import Config
from redpoll.config import MAX_RESUME
from redpoll.node.connection_limits import PEER_SIZE, LostPeers, RecentPeers
from redpoll.wire.duplicates import OUTCOME_SIZE
from redpoll.wire.peer import Peer
from tests.node.support import until
from tests.wire.support import REQ_ACK, Sent, add_link, feed, frame, make_peer

pytestmark = pytest.mark.asyncio


def known(outcomes: int = 1, *, host: str | None = None, session: int = 0, text: str = "") -> Peer:
    """A peer some of whose messages have ended, refused if there is a text, and whose session lasts so many seconds."""
    peer = make_peer(slots=outcomes + 1)
    link = add_link(peer)
    for serial in range(outcomes):
        feed(link, frame(REQ_ACK, serial + 1))
    peer.slots.inbox.add(link)
    while (message := peer.slots.begin(0.0)) is not None:
        if text:
            peer.slots.refuse(message, 0, text)
        else:
            peer.slots.release(message)
    assert peer.slots.remembered == outcomes
    peer.host = host
    peer.session.seconds = session
    return peer


def remembering(seconds: float = 3600.0, **options: Any) -> tuple[RecentPeers, list[Peer]]:
    """Who is absent, and whom it forgot."""
    forgotten: list[Peer] = []
    return RecentPeers(asyncio.get_running_loop(), Config(**options), seconds, forgotten.append), forgotten


async def test_a_peer_is_remembered_for_its_time() -> None:
    """A peer with outcomes is remembered until its time is over, then it may be forgotten."""
    gone, forgotten = remembering(0.01)
    peer = known()
    gone.remember(peer)
    assert peer in gone
    await until(lambda: forgotten, "its end")
    assert forgotten == [peer]
    assert (peer in gone, gone.size) == (False, 0)


async def test_a_session_makes_it_longer() -> None:
    """Who said that its session lasts a time is remembered for so much longer, up to a day."""
    gone, forgotten = remembering(0.01)
    loop = asyncio.get_running_loop()
    patient, endless, other = known(session=100), known(session=2**32 - 1), known()
    for peer in (patient, endless, other):
        gone.remember(peer)
    await until(lambda: forgotten, "the end of the one without")
    assert forgotten == [other]
    left = [gone._entries[peer].timer.when() - loop.time() for peer in (patient, endless)]
    assert 99 < left[0] < 101
    assert MAX_RESUME - 1 < left[1] < MAX_RESUME + 1
    gone.clear()


async def test_a_peer_that_can_send_nothing_again_is_not_remembered() -> None:
    """A peer without outcomes is kept if it was told that it is known: what it sent may have been lost on its way."""
    gone, _ = remembering()
    gone.remember(known(0))
    assert len(gone) == 0
    told = known(0)
    told.record_sent = True
    gone.remember(told)
    assert told in gone
    gone.clear()


async def test_who_is_back_is_not_counted() -> None:
    """A peer that is back is no longer absent, and nothing rings later; one that was not absent may be back too."""
    gone, forgotten = remembering(0.01)
    peer, other = known(host="there"), known()
    gone.remember(peer)
    gone.remove(peer)
    gone.remove(peer)
    gone.remember(other)
    await until(lambda: forgotten, "the end of the other")
    assert forgotten == [other]
    assert not gone._ranks


async def test_the_longest_absent_go_first() -> None:
    """As many are remembered as there may be links; the one that went first is forgotten first."""
    gone, forgotten = remembering(max_connections=2)
    peers = [known() for _ in range(4)]
    for peer in peers:
        gone.remember(peer)
    assert forgotten == peers[:2]
    assert len(gone) == 2
    gone.clear()


async def test_strangers_do_not_drive_out_sessions() -> None:
    """One that has a session, or that something waits for, is not forgotten for one that has none."""
    gone, forgotten = remembering(max_connections=3)
    session, waiting = known(session=30), known()
    waiting.submit(Sent(), 0.0)
    for link in list(waiting.links):
        link.window.limit = 0
    waiting.submit(Sent(), 0.0)
    strangers = [known() for _ in range(20)]
    for peer in (session, waiting, *strangers):
        gone.remember(peer)
    assert forgotten == strangers[:-1]
    late = known(session=30)
    gone.remember(late)
    assert forgotten == strangers
    gone.remember(known(session=30))
    assert forgotten == [*strangers, session]
    gone.clear()


async def test_a_host_drives_out_its_own() -> None:
    """As many of one host are remembered as there may be links of it; one too many is at the cost of that host."""
    gone, forgotten = remembering(max_connections_per_host=2)
    other = known(host="other")
    peers = [known(host="one", session=30) for _ in range(4)]
    for peer in (other, *peers):
        gone.remember(peer)
    assert forgotten == peers[:2]
    gone.clear()


async def test_bytes_are_bounded_in_all() -> None:
    """What is remembered of all has a quarter of `memory_limit`, and a peer that comes and goes is counted once."""
    gone, forgotten = remembering(memory_limit=4 * (2 * PEER_SIZE + 10 * OUTCOME_SIZE))
    peers = [known(4) for _ in range(3)]
    for peer in (peers[0], peers[0], peers[1]):
        gone.remember(peer)
    assert gone.size == 2 * PEER_SIZE + 8 * OUTCOME_SIZE
    assert not forgotten
    gone.remember(peers[2])
    assert forgotten == peers[:1]
    gone.clear()
    assert (len(gone), gone.size) == (0, 0)
    assert remembering(memory_limit=None)[0]._size_limit == 256 * 1024 * 1024


async def test_the_text_of_refusals_counts() -> None:
    """A peer whose messages were refused at length takes more room."""
    gone, _ = remembering()
    text = "no" * 100
    gone.remember(known(2, text=text))
    assert gone.size == PEER_SIZE + 2 * (OUTCOME_SIZE + getsizeof(text))
    gone.clear()


async def test_two_windows_of_outcomes_are_enough() -> None:
    """Of a peer without a link as many outcomes are remembered as two windows have places, the latest."""
    gone, _ = remembering()
    peer = known(0)
    for serial in range(1000):
        peer.slots.renew_outcome(serial)
    count = 2 * peer.settings.window
    assert peer.slots.remembered > count
    peer.record_sent = True
    gone.remember(peer)
    assert peer.slots.remembered == count
    assert peer.slots.outcomes is not None
    assert all(serial in peer.slots.outcomes for serial in range(1000 - count, 1000))
    gone.clear()


async def test_gone_counts_once() -> None:
    """A peer that is added again went last, and one that is not there may be removed."""
    gone = LostPeers(asyncio.get_running_loop(), Config(), lambda *_: None)
    one, other = known(host="there"), known(host="there")
    gone.add(one, 60.0)
    gone.add(other, 60.0)
    gone.add(one, 60.0)
    assert (list(gone), len(gone), one in gone) == ([other, one], 2, True)
    gone.remove(known())
    for peer in gone:
        gone.remove(peer)
    assert (len(gone), gone._ranks) == (0, {})

"""Of two servers with one prefix one stays."""

from __future__ import annotations

import pytest

from redpoll.nq.mqtt.leadership import LeadershipClaim
from redpoll.nq.mqtt.payloads import Payload, read


def leadership() -> LeadershipClaim:
    """A server that is connected."""
    made = LeadershipClaim()
    made.connected()
    return made


@pytest.fixture
def pair() -> tuple[LeadershipClaim, LeadershipClaim]:
    """Two servers, the one with the smaller key first."""
    one, other = sorted((leadership(), leadership()), key=lambda each: each.key)
    return one, other


def claim(of: LeadershipClaim) -> Payload | None:
    """What it publishes."""
    return read(of.claim)


def test_before_it_serves_every_other_claim_is_a_rivals(pair: tuple[LeadershipClaim, LeadershipClaim]) -> None:
    """Whoever was there first stays."""
    for mine, theirs in (pair, pair[::-1]):
        mine.heard(claim(theirs), serving=False)
        assert mine.has_rival()
        assert not mine.has_rival()


def test_of_two_that_serve_one_yields(pair: tuple[LeadershipClaim, LeadershipClaim]) -> None:
    """With equal numbers the one with the larger key; the other one claims again."""
    smaller, larger = pair
    assert smaller.heard(claim(larger), serving=True)
    assert not smaller.has_rival()
    assert not larger.heard(claim(smaller), serving=True)
    assert larger.has_rival()


def test_who_takes_over_is_stronger(pair: tuple[LeadershipClaim, LeadershipClaim]) -> None:
    """The one that stood still yields when it goes on."""
    frozen, other = pair
    other.heard(claim(frozen), serving=False)
    assert other.has_rival()
    other.take_over()
    assert other.heard(claim(frozen), serving=True)
    assert not other.has_rival()
    frozen.heard(claim(other), serving=True)
    assert frozen.has_rival()


def test_its_own_claims_are_no_rivals() -> None:
    """Nor one of a connection before, or the will of that."""
    mine = leadership()
    old, will = claim(mine), read(mine.will)
    mine.connected()
    assert not mine.heard(old, serving=False)
    assert not mine.heard(claim(mine), serving=True)
    assert mine.heard(will, serving=True)
    assert not mine.has_rival()


def test_what_is_no_claim_is_answered_by_one() -> None:
    """Garbage, a probe, the end of another: the broker has to keep this server's claim."""
    mine = leadership()
    for payload in (None, read(leadership().probe), read(leadership().will)):
        assert mine.heard(payload, serving=True)
    assert not mine.has_rival()
    assert not mine.echoed


def test_its_own_probe_comes_back() -> None:
    """What the broker kept was heard by then; with the next connection it is waited for anew."""
    mine = leadership()
    assert not mine.heard(read(mine.probe), serving=False)
    assert mine.echoed
    mine.connected()
    assert not mine.echoed

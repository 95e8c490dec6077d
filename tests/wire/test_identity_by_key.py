"""Which peer a link belongs to that shows a certificate, or shows none where one was shown before."""

from __future__ import annotations

import pytest

from redpoll.address import Address
from redpoll.wire.identity import Claim, Claimant
from redpoll.wire.link_lifecycle import attach
from redpoll.wire.session import Shown
from tests.wire.book import (
    ELSEWHERE,
    NAME,
    ONE,
    THERE,
    Book,
    held,
    link,
    lose,
    new_peer,
    shown,
)


@pytest.fixture
def routes() -> Book:
    return Book()


@pytest.mark.parametrize(
    ("first", "second", "state", "same", "claim"),
    [
        ("a", "a", "linked", True, Claim.PLAIN),
        ("a", "a", "kept", True, Claim.PLAIN),
        ("a", "b", "linked", True, Claim.TO_PROVE),
        ("a", "b", "kept", False, Claim.CONFLICT),
        ("a", "b", "idle", False, Claim.PLAIN),
        ("a", None, "linked", False, Claim.CONFLICT),
        ("a", None, "kept", False, Claim.CONFLICT),
        ("a", None, "idle", False, Claim.PLAIN),
        (None, "b", "linked", True, Claim.TO_PROVE),
        (None, "b", "kept", True, Claim.PLAIN),
        (None, None, "linked", True, Claim.TO_PROVE),
        (None, None, "kept", True, Claim.PLAIN),
    ],
)
def test_what_was_shown_and_is_shown(
    routes: Book, first: str | None, second: str | None, state: str, same: bool, claim: Claim
) -> None:
    """Who showed a key is met again by that key alone; without one before, by what it says. None never follows one."""
    peer, _ = routes.accept(link(ONE), certificate=shown(first, "old") if first else None)
    if state == "kept":
        held(peer)
    if state != "linked":
        lose(peer)
    found, claimed = routes.accept(link(ONE), certificate=shown(second, "new") if second else None)
    assert (found is peer, claimed) == (same, claim)
    # What is kept, or is up, keeps its address.
    assert routes.get(THERE) is (peer if state != "idle" or same else found)


def test_the_same_certificate_where_this_node_dialled(routes: Book) -> None:
    """A link that came in from who was dialled is the same peer's if it is of the same run; else it is to be proven."""
    target = routes.known(THERE)
    routes.dial(link(ONE, dialled=True), target)
    target.certificate = shown("a")
    assert routes.accept(link(ONE, epoch=8), certificate=shown("a")) == (target, Claim.TO_PROVE)
    assert routes.accept(link(ONE), certificate=shown("a")) == (target, Claim.PLAIN)


@pytest.mark.parametrize(("seconds", "claim"), [(0, Claim.PLAIN), (30, Claim.TO_PROVE)])
def test_who_sends_again_waits_for_the_older_link(routes: Book, seconds: int, claim: Claim) -> None:
    """Where this node dialled, a link whose node sends again what it lost is proven first: the older may bring it yet."""
    target = routes.known(THERE)
    routes.dial(link(ONE, dialled=True), target)
    target.certificate = shown("a")
    newer = link(ONE)
    newer.shown = Shown(seconds)
    assert routes.accept(newer, certificate=shown("a")) == (target, claim)


def test_the_same_run_wherever_it_is(routes: Book) -> None:
    """A node that shows its certificate from another place in the same run is the same peer, and that place means it."""
    peer, _ = routes.accept(link(ONE), certificate=shown("a"))
    assert routes.accept(link(ONE, 5000), certificate=shown("a")) == (peer, Claim.PLAIN)
    assert routes.get(THERE) is routes.get(ELSEWHERE) is peer
    assert peer.address == THERE
    for made, certificate in ((link(ONE, 6000, epoch=8), shown("a")), (link(ONE, 7000), shown("b"))):
        assert routes.accept(made, certificate=certificate)[1] is Claim.CONFLICT
    assert routes.accept(link(ONE, 8000, epoch=None), certificate=shown("a"))[1] is Claim.CONFLICT


def test_who_does_not_listen_moves(routes: Book) -> None:
    """A node that does not listen and comes from another host in the same run is the same peer, which is there now."""
    peer, _ = routes.accept(link(ONE, 41_000, listens=False), certificate=shown("a"))
    moved = Address("tcp", "127.0.0.9", 40_123)
    assert routes.accept(link(ONE, 41_000, listens=False), moved, shown("a")) == (peer, Claim.PLAIN)
    assert peer.address == Address("tcp", "127.0.0.9", 0)


@pytest.mark.parametrize("kept", [True, False])
def test_another_certificate_where_a_peer_was_dialled(routes: Book, kept: bool) -> None:
    """Who is dialled and shows another certificate is another peer, meant by the address; a conflict if something is kept."""
    target = routes.known(THERE)
    routes.dial(link(ONE, dialled=True), target)
    target.certificate = shown("a")
    lose(target)
    if kept:
        held(target)
    peer, claim = routes.identify(Claimant(link(ONE, dialled=True), THERE, target, "b"))
    assert peer is not target
    assert claim is (Claim.CONFLICT if kept else Claim.PLAIN)
    assert routes.get(THERE) is peer


def test_another_certificate_where_a_name_leads(routes: Book) -> None:
    """Who is dialled by a name of a peer's place, and shows another certificate, is not that peer."""
    peer, _ = routes.accept(link(ONE), certificate=shown("a"))
    target = routes.known(NAME)
    other, claim = routes.identify(Claimant(link(ONE, dialled=True), THERE, target, "b"))
    assert (other, claim) == (target, Claim.CONFLICT)
    again = routes.known(Address("tcp", "other.example", 4000))
    assert routes.identify(Claimant(link(ONE, dialled=True), THERE, again, "a")) == (peer, Claim.PLAIN)


@pytest.mark.parametrize(("key", "epoch", "same"), [("a", 7, True), ("b", 7, False), ("a", 8, False)])
def test_two_names_of_one_node(routes: Book, key: str, epoch: int, same: bool) -> None:
    """Where names are checked, two of them lead to one peer if its certificate and its run are the same."""
    first = routes.known(NAME)
    routes.identify(Claimant(link(ONE, dialled=True), THERE, first, "a", checks_names=True))
    first.certificate = shown("a")
    attach(first, link(ONE, dialled=True), 0.0)
    second = routes.known(THERE)
    made = link(ONE, dialled=True, epoch=epoch)
    peer, claim = routes.identify(Claimant(made, THERE, second, key, checks_names=True))
    assert (peer is first, claim) == (same, Claim.PLAIN)


@pytest.mark.parametrize(("epoch", "same"), [(7, True), (8, False), (None, False)])
@pytest.mark.parametrize("checks_names", [True, False])
def test_another_address_of_a_node_whose_link_is_lost(
    routes: Book, epoch: int | None, same: bool, checks_names: bool
) -> None:
    """A node that is dialled at a new address is the lost peer with its key and run, which is there from now on."""
    peer, _ = routes.accept(link(ONE), certificate=shown("a"))
    lose(peer)
    target = routes.known(ELSEWHERE)
    found, claim = routes.identify(
        Claimant(link(ONE, dialled=True, epoch=epoch), ELSEWHERE, target, "a", checks_names=checks_names)
    )
    assert (found, claim) == (peer if same else target, Claim.PLAIN)
    assert routes.get(ELSEWHERE) is found
    assert peer.address == (ELSEWHERE if same else THERE)


def test_an_answer_is_for_the_certificate(routes: Book) -> None:
    """A peer that was forgotten is not found again in one that showed another certificate, or none."""
    peer = new_peer(THERE, ONE)
    peer.certificate = shown("a")
    for certificate, same in ((None, False), (shown("b"), False), (shown("a", "renewed"), True)):
        book = Book()
        known = book.known(THERE, ONE)
        known.certificate = certificate
        assert book.bound_to(peer) is (known if same else peer)

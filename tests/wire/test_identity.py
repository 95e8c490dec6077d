"""Which peer a link belongs to, and which one an address means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pytest

from redpoll.address import Address
from redpoll.wire.identity import Claim, Claimant
from redpoll.wire.peer import Peer
from tests.wire.book import (
    ELSEWHERE,
    FROM_THERE,
    FROM_UNIX,
    NAME,
    ONE,
    OWN,
    THERE,
    TWO,
    UNIX,
    Book,
    held,
    link,
    lose,
    new_peer,
)


@pytest.fixture
def routes() -> Book:
    return Book()


# Knowing


def test_an_address_means_who_was_added_last(routes: Book) -> None:
    """A plain address means the newest peer there; the other is known as well."""
    one, two = routes.known(THERE, ONE), routes.known(THERE, TWO)
    assert routes.get(THERE) is two
    assert list(routes) == [one, two]
    assert len(routes) == 2


def test_quiet_adding_takes_no_address_over(routes: Book) -> None:
    """A peer that is known again does not take its address from who is there now, but has it if nobody is."""
    two = routes.known(THERE, TWO)
    routes.add(new_peer(THERE, ONE), quietly=True)
    assert routes.get(THERE) is two
    back = new_peer(ELSEWHERE, ONE)
    routes.add(back, quietly=True)
    assert routes.get(ELSEWHERE) is back


def test_peers_that_cannot_be_dialled_have_no_address(routes: Book) -> None:
    """Port 0 and no address at all mean nobody."""
    routes.known(Address("tcp", "127.0.0.1", 0), ONE)
    routes.known(None, TWO)
    assert routes.get(Address("tcp", "127.0.0.1", 0)) is None
    assert not routes.table


def test_forgetting_leaves_nothing(routes: Book) -> None:
    """A forgotten peer is known by no name and no identity; the next claim of that identity is plain."""
    target = routes.known(NAME)
    peer = routes.dial(link(ONE, dialled=True), target)
    assert set(routes.table) == {NAME, THERE}
    routes.forget(peer)
    assert not routes.table
    assert (len(routes), peer in routes) == (0, False)
    other, claim = routes.accept(link(ONE, 5000))
    assert (claim, other is peer) == (Claim.PLAIN, False)
    routes.forget(peer)


def test_forgetting_leaves_others_alone(routes: Book) -> None:
    """Forgetting who was at an address before does not take it from who is there now."""
    one, two = routes.known(THERE, ONE), routes.known(THERE, TWO)
    routes.forget(one)
    assert routes.get(THERE) is two


class Unseen(dict[Address, Peer]):
    """A table that nobody may look through."""

    def __iter__(self) -> Iterator[Address]:
        raise AssertionError

    def items(self) -> NoReturn:
        raise AssertionError


def test_forgetting_looks_at_no_other(routes: Book) -> None:
    """Forgetting one of many peers costs no look at the others."""
    one, two = routes.known(THERE, ONE), routes.known(ELSEWHERE, TWO)
    routes.table = Unseen(routes.table)
    routes.forget(one)
    assert routes.get(THERE) is None
    assert routes.get(ELSEWHERE) is two


def test_the_same_node_is_found_again(routes: Book) -> None:
    """Who was forgotten and is back is found by identity and address together."""
    peer = routes.known(THERE, ONE)
    assert routes.bound_to(peer) is peer
    for others in ([(THERE, TWO), (ELSEWHERE, ONE)], [(THERE, TWO), (ELSEWHERE, ONE), (THERE, ONE)]):
        book = Book()
        known = [book.known(*other) for other in others]
        assert book.bound_to(peer) is (known[2] if len(known) == 3 else peer)
        assert (peer in book) == (len(known) == 2)
        assert book.get(THERE) is known[-1 if len(known) == 3 else 0]


# Links that were dialled


def test_who_is_dialled_gets_its_identity(routes: Book) -> None:
    """The first handshake says who an address is."""
    target = routes.known(THERE)
    assert routes.dial(link(ONE, dialled=True), target) is target
    assert target.identity == ONE
    assert routes.dial(link(ONE, dialled=True), target) is target


def test_another_node_at_the_address(routes: Book) -> None:
    """Where another node answers it is another peer and has all the names; the old one keeps its identity."""
    target = routes.known(NAME)
    routes.dial(link(ONE, dialled=True), target)
    lose(target)
    other = routes.dial(link(TWO, dialled=True), target)
    assert other is not target
    assert (target.identity, other.identity) == (ONE, TWO)
    assert routes.get(NAME) is routes.get(THERE) is other
    assert target in routes


def test_what_a_name_stands_for_means_its_peer(routes: Book) -> None:
    """A peer that was dialled by a name is meant by the address behind it, and its own links from there are its own."""
    target = routes.known(NAME)
    routes.dial(link(ONE, dialled=True), target)
    assert routes.get(THERE) is target
    assert routes.accept(link(ONE)) == (target, Claim.TO_PROVE)


def test_without_a_link_its_own_address_alone_means_a_peer(routes: Book) -> None:
    """What else meant it is free for others, but who is there with its identity is that peer."""
    target = routes.known(NAME)
    routes.dial(link(ONE, dialled=True), target)
    target.links.clear()
    assert routes.unlinked(target) == [THERE]
    assert (routes.get(NAME), routes.get(THERE)) == (target, None)
    other = routes.known(THERE)
    assert routes.dial(link(ONE, dialled=True), other) is target
    assert routes.get(THERE) is target


def test_what_meant_a_peer_before_its_last_link_is_forgotten(routes: Book) -> None:
    """Places are not collected: who is at one that an older link showed is no longer taken for the peer."""
    target = routes.known(NAME)
    for remote in (THERE, ELSEWHERE):
        routes.dial(link(ONE, dialled=True), target, remote)
        target.links.clear()
        assert routes.unlinked(target) == [remote]
    assert routes.dial(link(ONE, dialled=True), routes.known(THERE)) is not target


def test_who_is_not_known_has_no_addresses(routes: Book) -> None:
    """A peer that is lost after it was forgotten frees nothing."""
    assert routes.unlinked(new_peer(THERE, ONE)) == []


def test_a_name_takes_no_address_from_who_lives_there(routes: Book) -> None:
    """An address that means a peer with a link keeps meaning it."""
    living, _ = routes.accept(link(ONE))
    target = routes.known(NAME)
    routes.dial(link(TWO, dialled=True), target)
    assert routes.get(THERE) is living


def test_a_name_of_who_dialled_meanwhile(routes: Book) -> None:
    """Who dialled this node while it dialled them by a name is one peer, known by both."""
    target = routes.known(NAME)
    peer, _ = routes.accept(link(ONE))
    assert peer is not target
    assert routes.dial(link(ONE, dialled=True), target) is peer
    assert routes.get(NAME) is routes.get(THERE) is peer


def test_both_ways_through_unix_sockets(routes: Book) -> None:
    """Behind unix sockets, where nobody has a port, the run that is announced says that it is one node."""
    came_in, _ = routes.accept(link(ONE, 0), FROM_UNIX)
    assert str(came_in.address) == "None"
    target = routes.known(UNIX)
    assert routes.dial(link(ONE, 0, dialled=True), target, UNIX) is came_in
    assert came_in.address == UNIX
    assert routes.get(UNIX) is came_in


def test_another_run_behind_a_unix_socket(routes: Book) -> None:
    """The same identity in another run is another peer there."""
    came_in, _ = routes.accept(link(ONE, 0, epoch=1), FROM_UNIX)
    target = routes.known(UNIX)
    assert routes.dial(link(ONE, 0, dialled=True, epoch=2), target, UNIX) is target
    assert came_in.address is None


# Links that came in


def test_a_stranger_is_a_new_peer(routes: Book) -> None:
    """Who is at an address that means nobody is a new peer, and the address means it."""
    peer, claim = routes.accept(link(ONE))
    assert claim is Claim.PLAIN
    assert (peer.address, peer.identity) == (THERE, ONE)
    assert routes.get(THERE) is peer


def test_who_is_being_dialled(routes: Book) -> None:
    """Who comes in from an address that is being dialled is the one that was to be reached there."""
    target = routes.known(THERE)
    assert routes.accept(link(ONE)) == (target, Claim.PLAIN)
    assert target.identity == ONE


def test_two_nodes_behind_one_address(routes: Book) -> None:
    """Two identities at one address are two peers; the address means the newer."""
    one, _ = routes.accept(link(ONE))
    two, claim = routes.accept(link(TWO))
    assert one is not two
    assert claim is Claim.PLAIN
    assert routes.get(THERE) is two


def test_a_second_link_has_to_be_proven(routes: Book) -> None:
    """A link that claims the identity of a peer with a link, at its address, has to prove it."""
    peer, _ = routes.accept(link(ONE))
    assert routes.accept(link(ONE)) == (peer, Claim.TO_PROVE)


def test_libchirp_may_have_two_links(routes: Book) -> None:
    """Between nodes that cannot prove anything, a second link is the same peer's, as libchirp has it."""
    peer, _ = routes.accept(link(ONE, epoch=None))
    assert routes.accept(link(ONE, epoch=None)) == (peer, Claim.PLAIN)


@pytest.mark.parametrize(("first", "second"), [(7, None), (None, 7)])
def test_libchirp_and_redpoll_are_not_one_node(routes: Book, first: int | None, second: int | None) -> None:
    """A node does not change what it is: who claims the identity and announces otherwise is a peer of its own."""
    peer, _ = routes.accept(link(ONE, epoch=first))
    other, claim = routes.accept(link(ONE, epoch=second))
    assert other is not peer
    assert claim is Claim.CONFLICT


def test_an_identity_without_a_link_is_free_at_its_address(routes: Book) -> None:
    """Who comes back to where it was is the same peer, whatever run it is in."""
    peer, _ = routes.accept(link(ONE))
    held(peer)
    lose(peer)
    assert routes.accept(link(ONE, epoch=8)) == (peer, Claim.PLAIN)


def test_an_identity_from_elsewhere_is_a_conflict(routes: Book) -> None:
    """Who claims the identity of a live peer from another address is a peer of its own, and a conflict."""
    peer, _ = routes.accept(link(ONE))
    other, claim = routes.accept(link(ONE, 5000))
    assert claim is Claim.CONFLICT
    assert (peer.address, other.address) == (THERE, ELSEWHERE)
    assert routes.get(THERE) is peer


def test_an_identity_for_which_something_is_kept_is_a_conflict(routes: Book) -> None:
    """The claim is a conflict as long as anything is kept for the old one, and none when nothing is."""
    peer, _ = routes.accept(link(ONE))
    lose(peer)
    held(peer)
    assert routes.accept(link(ONE, 5000))[1] is Claim.CONFLICT
    other = Book()
    peer, _ = other.accept(link(ONE))
    lose(peer)
    assert other.accept(link(ONE, 5000))[1] is Claim.PLAIN


def test_who_does_not_listen_comes_back_in_its_run(routes: Book) -> None:
    """A node that does not listen is known again by its identity, its host and its run; no address means it."""
    peer, _ = routes.accept(link(ONE, 41_000, listens=False))
    assert peer.address == Address("tcp", "127.0.0.1", 0)
    assert not routes.table
    held(peer)
    lose(peer)
    assert routes.accept(link(ONE, 41_001, listens=False)) == (peer, Claim.PLAIN)
    lose(peer)
    other, claim = routes.accept(link(ONE, 41_002, listens=False, epoch=8))
    assert other is not peer
    assert claim is Claim.CONFLICT


def test_who_does_not_listen_has_to_prove_a_second_link(routes: Book) -> None:
    """Such a node dials again when its link is lost, which this end may not know yet; the same run can prove it."""
    peer, _ = routes.accept(link(ONE, 41_000, listens=False))
    assert routes.accept(link(ONE, 41_001, listens=False)) == (peer, Claim.TO_PROVE)


def test_another_run_of_who_does_not_listen_is_another_peer(routes: Book) -> None:
    """Where nobody can be dialled back, the identity alone is not enough to be a peer that has a link."""
    peer, _ = routes.accept(link(ONE, 41_000, listens=False))
    other, claim = routes.accept(link(ONE, 41_001, listens=False, epoch=8))
    assert other is not peer
    assert claim is Claim.CONFLICT


def test_who_comes_back_through_a_unix_socket(routes: Book) -> None:
    """Behind a unix socket, too, a node is known again in its run."""
    peer, _ = routes.accept(link(ONE, 0), FROM_UNIX)
    held(peer)
    lose(peer)
    assert routes.accept(link(ONE, 0), FROM_UNIX) == (peer, Claim.PLAIN)


def test_who_was_dialled_through_a_unix_socket_dials_back(routes: Book) -> None:
    """Who was dialled through a unix socket and dials back has two links, and has to prove it."""
    target = routes.known(UNIX)
    routes.dial(link(ONE, 0, dialled=True), target, UNIX)
    assert routes.accept(link(ONE, 0), FROM_UNIX) == (target, Claim.TO_PROVE)


def test_unproven_strangers_do_not_take_the_address(routes: Book) -> None:
    """Who could not prove its claim is a new peer, and the address goes on meaning the one that lives there."""
    peer, _ = routes.accept(link(ONE))
    stranger = routes.accept_new(Claimant(link(ONE), FROM_THERE), take_over=False)
    assert stranger is not peer
    assert stranger in routes
    assert routes.get(THERE) is peer


def test_a_link_of_the_node_to_itself(routes: Book) -> None:
    """A node may send to itself: the end that dialled is meant by the address, the other is a peer of its own."""
    target = routes.known(THERE)
    came_in, claim = routes.accept(link(OWN))
    assert claim is Claim.PLAIN
    assert came_in is not target
    assert routes.dial(link(OWN, dialled=True), target) is target
    assert routes.get(THERE) is target
    lose(came_in)
    assert routes.accept(link(OWN)) == (came_in, Claim.PLAIN)
    routes.forget(came_in)
    assert routes.get(THERE) is target


def test_twins_are_what_this_node_dialled_twice(routes: Book) -> None:
    """Two addresses that lead to one run of a node are known; not one that came in, another run, or another kind of way."""
    first = routes.dial(link(ONE, dialled=True), routes.known(THERE))
    assert routes.twin(first) == (None, False)
    second = routes.dial(link(ONE, dialled=True), routes.known(ELSEWHERE), ELSEWHERE)
    assert second is not first
    assert routes.twin(second) == (first, True)
    again = routes.dial(link(ONE, dialled=True, epoch=8), routes.known(Address("tcp", "127.0.0.9", 1)), FROM_UNIX)
    assert routes.twin(again) == (None, False)
    through_unix = routes.dial(link(ONE, 0, dialled=True), routes.known(UNIX), UNIX)
    assert routes.twin(through_unix) == (None, False)
    came_in, _ = routes.accept(link(TWO))
    assert routes.twin(came_in) == (None, False)
    lose(first)
    assert routes.twin(second) == (None, False)

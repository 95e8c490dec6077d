"""Who is who: which peer a link belongs to, and which one an address means. Plain decisions, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeGuard

from redpoll.address import Address
from redpoll.wire.capabilities import NOT_LISTENING
from redpoll.wire.peer import Peer
from redpoll.wire.session import shows_secret_of

if TYPE_CHECKING:
    from redpoll.tls.certificate import Certificate
    from redpoll.wire.link import Link

__all__ = ["Claim", "Routes", "can_be_dialled", "is_kept", "may_be", "place_of", "proves"]

NewPeer = Callable[[Address | None, bytes | None], Peer]


class Claim(Enum):
    """What a link claims by the identity in its handshake."""

    #: One that nobody else holds, or its own.
    PLAIN = auto()
    #: One that a live link holds: it has to prove that both are one node's.
    TO_PROVE = auto()
    #: One that another link holds, or that something is kept for: it is a peer of its own.
    CONFLICT = auto()


class Routes:
    """The peers that a node knows.

    A peer is an identity at a place: two nodes behind one address are two. An address without more means the newest
    live node there; several may mean one peer, as a name and what it stands for do, while it has a link that shows it.
    """

    def __init__(self, identity: bytes) -> None:
        self._own = identity
        self._by_address: dict[Address, Peer] = {}
        self._by_identity: dict[bytes, list[Peer]] = {}
        #: All peers, each with the addresses that mean it.
        self._names: dict[Peer, list[Address]] = {}
        #: Those that meant a peer while its last link was up: who is there and has its identity is that peer.
        self._former: dict[Peer, set[Address]] = {}

    @property
    def table(self) -> dict[Address, Peer]:
        """Address to the peer that it means, for the send path to look into."""
        return self._by_address

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._names))

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, peer: object) -> bool:
        return peer in self._names

    def get(self, address: Address) -> Peer | None:
        """The peer that an address means now."""
        return self._by_address.get(address)

    def add(self, peer: Peer, *, quietly: bool = False) -> None:
        """Know a peer; its address, if it can be dialled, now means it; `quietly`: unless it means another."""
        self._know(peer)
        if not quietly or peer.address not in self._by_address:
            self._mean(peer.address, peer)

    def _know(self, peer: Peer) -> None:
        self._names[peer] = []
        if peer.identity is not None:
            self._by_identity.setdefault(peer.identity, []).append(peer)

    def forget(self, peer: Peer) -> None:
        """Know a peer no longer."""
        self._former.pop(peer, None)
        for address in self._names.pop(peer, ()):
            del self._by_address[address]
        if peer.identity is not None:
            same = self._by_identity.get(peer.identity, [])
            if peer in same:
                same.remove(peer)
            if not same:
                self._by_identity.pop(peer.identity, None)

    def unlinked(self, peer: Peer) -> list[Address]:
        """Note that a peer has no link any more: only its own address still means it; return what does no longer.

        What a name stands for may be another node when it is looked up next.
        """
        if peer not in self._names:
            return []
        others = [address for address in self._names[peer] if address != peer.address]
        for address in others:
            del self._by_address[address]
            self._names[peer].remove(address)
        self._former[peer] = set(others)
        return others

    def same_node(self, peer: Peer) -> Peer | None:
        """The peer that is known for the node of one that may have been forgotten: its identity at its address."""
        if peer in self._names:
            return peer
        known = self._by_identity.get(peer.identity, ()) if peer.identity is not None else ()
        return next((each for each in known if each.address == peer.address and may_be(peer, each.certificate)), None)

    def replace(self, target: Peer, peer: Peer) -> None:
        """What meant one peer means another from now on, which can be dialled where that one could."""
        for address in list(self._names.get(target, ())):
            self._mean(address, peer)
        if not can_be_dialled(peer.address):
            peer.address = target.address

    def _mean(self, address: Address | None, peer: Peer) -> None:
        if not can_be_dialled(address):
            return
        before = self._by_address.get(address)
        if before is not None:
            self._names[before].remove(address)
        self._by_address[address] = peer
        self._names[peer].append(address)

    def _identify(self, peer: Peer, identity: bytes) -> Peer:
        """Note whom a peer that was only an address turned out to be."""
        peer.identity = identity
        self._by_identity.setdefault(identity, []).append(peer)
        return peer

    # Links

    def identify(
        self,
        link: Link,
        remote: Address,
        target: Peer | None,
        new_peer: NewPeer,
        certificate: Certificate | None = None,
        *,
        checks_names: bool = False,
    ) -> tuple[Peer, Claim]:
        """Find the peer that a link belongs to, by its handshake.

        A peer that showed a certificate is met again by another one of the same public key, at its place or in the same
        run; not by one of another key, nor by none, unless it proves that it is the same node over a link that it has.

        Args:
            link: It has its handshake and no peer.
            remote: The other end's address as the socket knows it.
            target: The peer that it was dialled for, or None if it was accepted.
            new_peer: Makes a peer.
            certificate: What the other end showed; None if it has none, or the link is not encrypted.
            checks_names: Whether certificates are checked for the name that was dialled: then no name and no place but
                that one makes a link a peer's.

        Returns:
            The peer, and what the link claims by naming its identity.
        """
        if target is None:
            return self._identify_accepted(link, remote, new_peer, certificate)
        peer, claim = self._identify_dialled(link, remote, target, new_peer, certificate, checks_names)
        known = self._by_address.get(remote)
        if not checks_names and (known is None or not known.links):
            # What was dialled by a name stands for this address: a link that comes in from there is no stranger's.
            self._mean(remote, peer)
        return peer, claim

    def _identify_dialled(
        self,
        link: Link,
        remote: Address,
        target: Peer,
        new_peer: NewPeer,
        certificate: Certificate | None,
        checks_names: bool,
    ) -> tuple[Peer, Claim]:
        identity = _identity(link)
        place = remote if remote.kind == "tcp" else None
        is_target = target.identity == identity and may_be(target, certificate)
        if is_target and not checks_names:
            return target, Claim.PLAIN
        claim = Claim.CONFLICT if target.identity == identity and is_kept(target) else Claim.PLAIN
        for peer in self._by_identity.get(identity, ()) if identity != self._own else ():
            if peer is target:
                continue
            if checks_names:
                # Linked by another name, which leads to the same node: the other end sees one peer as well.
                same = bool(peer.links) and _is_same_run(peer, link, certificate)
            else:
                same = peer.address == target.address or self._is_at(peer, place, link)
                same = same or (bool(peer.links) and _is_same_run(peer, link, certificate))
                if same and not may_be(peer, certificate):
                    claim = Claim.CONFLICT if is_kept(peer) else claim
                    same = False
            if same:
                # It dialled us meanwhile, or it is known by another name of its host.
                self.replace(target, peer)
                return peer, Claim.PLAIN
        if is_target:
            return target, Claim.PLAIN
        if target.identity is None:
            return self._identify(target, identity), claim
        peer = new_peer(target.address, identity)
        self.add(peer)
        self.replace(target, peer)
        return peer, claim

    def _identify_accepted(
        self, link: Link, remote: Address, new_peer: NewPeer, certificate: Certificate | None
    ) -> tuple[Peer, Claim]:
        identity = _identity(link)
        place = place_of(link, remote)
        claim, take_over = Claim.PLAIN, True
        if identity == self._own:
            return self._itself(link, remote, new_peer), claim
        for peer in self._by_identity.get(identity, ()):
            same_run = link.announced is not None and _is_same_run(peer, link, certificate)
            if not shows_secret_of(peer, link) and not proves(peer, certificate):
                take_over = take_over and not is_kept(peer)
                if is_kept(peer):
                    claim = Claim.CONFLICT
            elif same_run or self._is_at(peer, place, link):
                found = _claimed(peer, link, certificate, same_run)
                if found is not None:
                    if found is Claim.PLAIN:
                        self._met_at(peer, place)
                    return peer, found
                take_over = take_over and (may_be(peer, certificate) or not is_kept(peer))
                if is_kept(peer):
                    claim = Claim.CONFLICT
            elif not peer.idle:
                claim = Claim.CONFLICT
        return self.accept_new(link, remote, new_peer, take_over=take_over), claim

    def _met_at(self, peer: Peer, place: Address | None) -> None:
        """Note where a link of a peer comes from, which may be where nobody is known."""
        if can_be_dialled(place) and place not in self._by_address:
            self._mean(place, peer)
        if not can_be_dialled(peer.address):
            peer.address = place

    def of_identity(self, identity: bytes | None) -> list[Peer]:
        """The peers that are known by an identity; none by this node's own."""
        return [] if identity is None or identity == self._own else list(self._by_identity.get(identity, ()))

    def know_again(self, peer: Peer, link: Link, remote: Address) -> None:
        """A peer proved that a link is its own, wherever that came from: there it can be dialled from now on."""
        place = place_of(link, remote)
        known = peer.address
        if can_be_dialled(place) and known is not None and known.kind == "tcp" and known.port not in (0, place.port):
            # It listens elsewhere now.
            peer.address = place
            self._mean(place, peer)
        else:
            self._met_at(peer, place)

    def twin(self, peer: Peer) -> Peer | None:
        """The peer that was dialled elsewhere and says to be the same run of the same node as one, as that does of itself."""
        if peer.epoch is None or peer.identity is None or peer.identity == self._own or not _is_dialled(peer):
            return None
        same = (
            each for each in self._by_identity.get(peer.identity, ()) if each is not peer and each.epoch == peer.epoch
        )
        return next(filter(_is_dialled, same), None)

    def _itself(self, link: Link, remote: Address, new_peer: NewPeer) -> Peer:
        """The peer of the end that came in of a link of this node to itself."""
        for peer in self._by_identity.get(self._own, ()):
            if not self._names[peer] and not peer.links:
                return peer
        return self.accept_new(link, remote, new_peer)

    def accept_new(self, link: Link, remote: Address, new_peer: NewPeer, *, take_over: bool = True) -> Peer:
        """The peer of a link that came in and is no other's: one that is being dialled there, or a new one.

        Args:
            link: It has its handshake and no peer.
            remote: The other end's address as the socket knows it.
            new_peer: Makes a peer.
            take_over: Whether its address means it from now on, as it does with the newest node there; not so while
                a peer lives whose identity it claims and cannot prove.
        """
        identity = _identity(link)
        place = place_of(link, remote)
        if identity == self._own:
            # Of a link of this node to itself the end that dialled is the one to send to.
            take_over = False
        dialling = self._by_address.get(place) if place is not None and take_over else None
        if dialling is not None and dialling.identity is None:
            return self._identify(dialling, identity)
        peer = new_peer(place, identity)
        self._know(peer)
        if take_over:
            self._mean(place, peer)
        return peer

    def _is_at(self, peer: Peer, place: Address | None, link: Link) -> bool:
        """Whether a peer is where a link comes from; where nobody can be dialled back, it has to be in the same run."""
        known = peer.address
        if can_be_dialled(place):
            return known == place or self._by_address.get(place) is peer or place in self._former.get(peer, ())
        here = known == place if place is not None else known is None or known.kind != "tcp"
        return here and link.announced is not None and peer.epoch == link.announced.epoch


def _identity(link: Link) -> bytes:
    return link.handshake.identity if link.handshake is not None else b""


def place_of(link: Link, remote: Address) -> Address | None:
    """Where the other end of a link that came in would be dialled; port 0: nowhere, None: where nodes have no port."""
    if remote.kind != "tcp" or link.handshake is None:
        return None
    listens = link.announced is None or not link.announced.flags & NOT_LISTENING
    return Address("tcp", remote.host, link.handshake.port if listens else 0)


def may_be(peer: Peer, certificate: Certificate | None) -> bool:
    """Whether what a link showed does not speak against its being a peer's: who showed a key shows it again.

    It is the key that counts, so that a renewed certificate is no stranger's; whoever shows it has the private one. And
    where there was none before there is nothing to be compared.
    """
    known: Certificate | None = peer.certificate
    return known is None or (certificate is not None and certificate.public_key == known.public_key)


def proves(peer: Peer, certificate: Certificate | None) -> bool:
    """Whether a link showed the key that a peer is known by."""
    known: Certificate | None = peer.certificate
    return certificate is not None and known is not None and certificate.public_key == known.public_key


def is_kept(peer: Peer) -> bool:
    """Whether anything is kept for a peer: links, messages, outcomes for those that it may send again."""
    return not peer.idle or peer.slots.remembered > 0


def _is_dialled(peer: Peer) -> bool:
    """Whether this node dialled a peer over TCP, can send to it, and was shown no certificate."""
    over_tcp = peer.address is not None and peer.address.kind == "tcp"
    return over_tcp and peer.certificate is None and any(link.dialled and link.sending for link in peer.links)


def _is_same_run(peer: Peer, link: Link, certificate: Certificate | None) -> bool:
    """Whether a link showed a peer's key and is of the run of the node that the peer is known by; libchirp tells none."""
    return proves(peer, certificate) and peer.epoch == (link.announced.epoch if link.announced is not None else None)


def _claimed(peer: Peer, link: Link, certificate: Certificate | None, same_run: bool) -> Claim | None:
    """What a link claims that may be a peer's; None if it is not."""
    announced = link.announced is not None and peer.epoch is not None
    if not may_be(peer, certificate):
        # Its node may have another key since its links were made; nobody but they can tell.
        return Claim.TO_PROVE if certificate is not None and announced and peer.links else None
    if not peer.links or (peer.epoch is None and link.announced is None):
        # Nobody holds the identity; or libchirp, which keeps two links and cannot prove anything.
        return Claim.PLAIN
    if same_run and (link.shown is None or not link.shown.seconds):
        return Claim.PLAIN
    # Who sends again what it had in flight over a link that this end believes in: that one is read to its end first.
    return Claim.TO_PROVE if announced or (certificate is not None and peer.certificate is not None) else None


def can_be_dialled(address: Address | None) -> TypeGuard[Address]:
    """Whether a node can be dialled there."""
    return address is not None and (address.kind != "tcp" or address.port != 0)

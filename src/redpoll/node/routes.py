"""Routes: the peer that a link belongs to, and the peer that an address means. Decisions without I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeGuard

from redpoll.address import Address
from redpoll.wire.capabilities import NOT_LISTENING
from redpoll.wire.link_lifecycle import shows_secret_of
from redpoll.wire.peer import Peer

if TYPE_CHECKING:
    from redpoll.tls.certificate import Certificate
    from redpoll.wire.link import Link

__all__ = ["Claim", "Routes", "can_be_dialled", "is_kept", "may_be", "place_of", "proves"]

NewPeer = Callable[[Address | None, bytes | None], Peer]


class Claim(Enum):
    """What a link claims by the identity in its handshake."""

    #: An identity that no other peer holds, or the peer's own.
    PLAIN = auto()
    #: An identity that a live link holds: the link has to prove that both are one node's.
    TO_PROVE = auto()
    #: An identity that another link holds, or that something is kept for: the link gets a peer of its own.
    CONFLICT = auto()


class Routes:
    """The peers that a node knows.

    A peer is an identity at a place: two nodes at one address are two peers. A plain address means the newest live node
    there; several addresses may mean one peer, as a name and the address that it resolves to, while it has such a link.
    """

    def __init__(self, identity: bytes) -> None:
        self._own = identity
        self._by_address: dict[Address, Peer] = {}
        self._by_identity: dict[bytes, list[Peer]] = {}
        #: All peers, each with the addresses that mean it.
        self._names: dict[Peer, list[Address]] = {}
        #: Addresses that meant a peer while its last link was up: a node there with its identity is that peer.
        self._former: dict[Peer, set[Address]] = {}

    @property
    def table(self) -> dict[Address, Peer]:
        """The peer that each address means, for look-ups on the send path."""
        return self._by_address

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._names))

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, peer: object) -> bool:
        return peer in self._names

    def get(self, address: Address) -> Peer | None:
        """Return the peer that an address means, or None."""
        return self._by_address.get(address)

    def add(self, peer: Peer, *, quietly: bool = False) -> None:
        """Add a peer; its address, if one can dial it, means it from now on, unless `quietly` and it means another."""
        self._register(peer)
        if not quietly or peer.address not in self._by_address:
            self._mean(peer.address, peer)

    def _register(self, peer: Peer) -> None:
        self._names[peer] = []
        if peer.identity is not None:
            self._by_identity.setdefault(peer.identity, []).append(peer)

    def forget(self, peer: Peer) -> None:
        """Forget a peer."""
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
        """Note that a peer lost its last link: only its own address still means it; return the other addresses.

        A name may resolve to another node at the next look-up.
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
        """Return the known peer for the node of one that may have been forgotten: same identity, same address."""
        if peer in self._names:
            return peer
        known = self._by_identity.get(peer.identity, ()) if peer.identity is not None else ()
        return next((each for each in known if each.address == peer.address and may_be(peer, each.certificate)), None)

    def replace(self, target: Peer, peer: Peer) -> None:
        """Let all addresses of one peer mean another, which takes over its address if it has none to dial."""
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
        """Set the identity of a peer that was known by its address only."""
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

        A peer with a certificate is recognised by another certificate of the same public key, at its place or in the
        same run; not by another key or none, unless the link proves over an existing one that it is the same node.

        Args:
            link: A link with its handshake and without a peer.
            remote: The remote address of the socket.
            target: The peer that was dialled, or None for an accepted link.
            new_peer: Makes a peer.
            certificate: The certificate of the remote node; None if it has none, or the link is not encrypted.
            checks_names: Whether certificates are checked for the dialled name: then no other name or place makes a
                link a peer's.

        Returns:
            The peer, and what the link claims by its identity.
        """
        if target is None:
            return self._identify_accepted(link, remote, new_peer, certificate)
        peer, claim = self._identify_dialled(link, remote, target, new_peer, certificate, checks_names)
        known = self._by_address.get(remote)
        if not checks_names and (known is None or not known.links):
            # The dialled name resolves to this address: a link accepted from there is not a stranger's.
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
                # Linked by another name of the same node: the remote node sees one peer as well.
                same = bool(peer.links) and _is_same_run(peer, link, certificate)
            else:
                same = peer.address == target.address or self._is_at(peer, place, link)
                same = same or (bool(peer.links) and _is_same_run(peer, link, certificate))
                if same and not may_be(peer, certificate):
                    claim = Claim.CONFLICT if is_kept(peer) else claim
                    same = False
            if same:
                # The peer dialled this node meanwhile, or is known by another name of its host.
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
                        self._note_place(peer, place)
                    return peer, found
                take_over = take_over and (may_be(peer, certificate) or not is_kept(peer))
                if is_kept(peer):
                    claim = Claim.CONFLICT
            elif not peer.idle:
                claim = Claim.CONFLICT
        return self.accept_new(link, remote, new_peer, take_over=take_over), claim

    def _note_place(self, peer: Peer, place: Address | None) -> None:
        """Note the place that a link of a peer comes from, if no other peer is known there."""
        if can_be_dialled(place) and place not in self._by_address:
            self._mean(place, peer)
        if not can_be_dialled(peer.address):
            peer.address = place

    def of_identity(self, identity: bytes | None) -> list[Peer]:
        """Return the peers with an identity; none for this node's own."""
        return [] if identity is None or identity == self._own else list(self._by_identity.get(identity, ()))

    def relocate(self, peer: Peer, link: Link, remote: Address) -> None:
        """Note the place of a link that a peer proved to be its own: it can be dialled there from now on."""
        place = place_of(link, remote)
        known = peer.address
        if can_be_dialled(place) and known is not None and known.kind == "tcp" and known.port not in (0, place.port):
            # It listens elsewhere now.
            peer.address = place
            self._mean(place, peer)
        else:
            self._note_place(peer, place)

    def twin(self, peer: Peer) -> Peer | None:
        """Return the peer that was dialled at another address and announces the same run of the same node, or None."""
        if peer.epoch is None or peer.identity is None or peer.identity == self._own or not _is_dialled(peer):
            return None
        same = (
            each for each in self._by_identity.get(peer.identity, ()) if each is not peer and each.epoch == peer.epoch
        )
        return next(filter(_is_dialled, same), None)

    def supposed_twin(self, peer: Peer) -> Peer | None:
        """Return the peer that dialled this node and announces the same run of the same node as a dialled one, or None.

        Only if that node would leave the dialled link, because the other link was dialled by the smaller identity.
        """
        if peer.epoch is None or peer.identity is None or peer.identity >= self._own or not _is_dialled(peer):
            return None
        same = (
            each for each in self._by_identity.get(peer.identity, ()) if each is not peer and each.epoch == peer.epoch
        )
        return next((each for each in same if each.certificate is None and any(map(_is_accepted, each.links))), None)

    def _itself(self, link: Link, remote: Address, new_peer: NewPeer) -> Peer:
        """Return the peer for the accepted end of a link of this node to itself."""
        for peer in self._by_identity.get(self._own, ()):
            if not self._names[peer] and not peer.links:
                return peer
        return self.accept_new(link, remote, new_peer)

    def accept_new(self, link: Link, remote: Address, new_peer: NewPeer, *, take_over: bool = True) -> Peer:
        """Return the peer of an accepted link of no known peer: the one being dialled there, or a new one.

        Args:
            link: A link with its handshake and without a peer.
            remote: The remote address of the socket.
            new_peer: Makes a peer.
            take_over: Whether the address means this peer from now on, as it does for the newest node there; False
                while a peer lives whose identity the link claims and cannot prove.
        """
        identity = _identity(link)
        place = place_of(link, remote)
        if identity == self._own:
            # For a link of this node to itself, the address means the end that dialled.
            take_over = False
        dialling = self._by_address.get(place) if place is not None and take_over else None
        if dialling is not None and dialling.identity is None:
            return self._identify(dialling, identity)
        peer = new_peer(place, identity)
        self._register(peer)
        if take_over:
            self._mean(place, peer)
        return peer

    def _is_at(self, peer: Peer, place: Address | None, link: Link) -> bool:
        """Return True if a link comes from a peer's place; where nothing can be dialled, it must be of the same run."""
        known = peer.address
        if can_be_dialled(place):
            return known == place or self._by_address.get(place) is peer or place in self._former.get(peer, ())
        here = known == place if place is not None else known is None or known.kind != "tcp"
        return here and link.announced is not None and peer.epoch == link.announced.epoch


def _identity(link: Link) -> bytes:
    return link.handshake.identity if link.handshake is not None else b""


def place_of(link: Link, remote: Address) -> Address | None:
    """Return the address to dial the remote node of an accepted link; port 0: none, None: places have no port."""
    if remote.kind != "tcp" or link.handshake is None:
        return None
    listens = link.announced is None or not link.announced.flags & NOT_LISTENING
    return Address("tcp", remote.host, link.handshake.port if listens else 0)


def may_be(peer: Peer, certificate: Certificate | None) -> bool:
    """Return True if a link's certificate does not contradict a peer's: a node that showed a key shows it again.

    The key decides, not the certificate, so that a renewed one matches; its holder has the private key. A peer without
    a certificate matches any.
    """
    known: Certificate | None = peer.certificate
    return known is None or (certificate is not None and certificate.public_key == known.public_key)


def proves(peer: Peer, certificate: Certificate | None) -> bool:
    """Return True if a link showed the key that a peer is known by."""
    known: Certificate | None = peer.certificate
    return certificate is not None and known is not None and certificate.public_key == known.public_key


def is_kept(peer: Peer) -> bool:
    """Return True if anything is kept for a peer: links, messages, outcomes of messages that it may resend."""
    return not peer.idle or peer.slots.remembered > 0


def _is_dialled(peer: Peer) -> bool:
    """Return True if this node dialled a peer over TCP, can send to it, and was shown no certificate."""
    over_tcp = peer.address is not None and peer.address.kind == "tcp"
    return over_tcp and peer.certificate is None and any(link.dialled and link.sending for link in peer.links)


def _is_accepted(link: Link) -> bool:
    """Return True if an accepted link can be sent over."""
    return link.sending and not link.dialled


def _is_same_run(peer: Peer, link: Link, certificate: Certificate | None) -> bool:
    """Return True if a link showed a peer's key and announces the same run of its node; libchirp announces none."""
    return proves(peer, certificate) and peer.epoch == (link.announced.epoch if link.announced is not None else None)


def _claimed(peer: Peer, link: Link, certificate: Certificate | None, same_run: bool) -> Claim | None:
    """Return what a link claims that may be a peer's; None if it is not."""
    announced = link.announced is not None and peer.epoch is not None
    if not may_be(peer, certificate):
        # The node may have changed its key since its links were made; only these can tell.
        return Claim.TO_PROVE if certificate is not None and announced and peer.links else None
    if not peer.links or (peer.epoch is None and link.announced is None):
        # No link holds the identity; or libchirp, which keeps two links and cannot prove anything.
        return Claim.PLAIN
    if same_run and (link.shown is None or not link.shown.seconds):
        return Claim.PLAIN
    # A node that resends what was in flight over a link that is still open here: that link is read to its end first.
    return Claim.TO_PROVE if announced or (certificate is not None and peer.certificate is not None) else None


def can_be_dialled(address: Address | None) -> TypeGuard[Address]:
    """Return True if a node can be dialled at an address."""
    return address is not None and (address.kind != "tcp" or address.port != 0)

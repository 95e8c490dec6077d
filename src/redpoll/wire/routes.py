"""Routes: the peers that a node knows, the peer that an address means, and the peer that a link belongs to.

The owner acts on the result: it binds the link, asks for a proof, or closes the links of a former run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from redpoll.address import Address
from redpoll.errors import UsageError
from redpoll.wire.identity import Claim, Claimant, can_be_dialled, claimed, is_kept, key_of, may_be, proves
from redpoll.wire.link_lifecycle import shows_secret_of
from redpoll.wire.peer import Peer
from redpoll.wire.states import LinkState

__all__ = ["Routes"]


class Routes:
    """The peers that a node knows.

    A peer is an identity at a place: two nodes at one address are two peers. A plain address means the newest live node
    there; several addresses may mean one peer, as a name and the address that it resolves to, while it has such a link.

    Args:
        identity: The identity of the node.
        new_peer: Makes a peer with an address and an identity.

    Attributes:
        table: The peer that each address means, for look-ups on the send path.
    """

    def __init__(self, identity: bytes, new_peer: Callable[[Address | None, bytes | None], Peer]) -> None:
        self._own = identity
        self._new_peer = new_peer
        self.table: dict[Address, Peer] = {}
        self._by_identity: dict[bytes, list[Peer]] = {}
        #: All peers, each with the addresses that mean it.
        self._names: dict[Peer, list[Address]] = {}
        #: Addresses that meant a peer while its last link was up: a node there with its identity is that peer.
        self._former: dict[Peer, set[Address]] = {}

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._names))

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, peer: object) -> bool:
        return peer in self._names

    # Addresses

    def get(self, address: Address) -> Peer | None:
        """Return the peer that an address means, or None."""
        return self.table.get(address)

    def at(self, address: Address) -> Peer:
        """Return the peer at an address; if there is none, one to be dialled.

        Raises:
            UsageError: The address cannot be dialled.
        """
        peer = self.table.get(address)
        if peer is None:
            if not can_be_dialled(address):
                hint = "to reach a peer that does not listen, reply to its messages"
                raise UsageError(f"{address} cannot be dialled", hint)
            peer = self._new_peer(address, None)
            self.add(peer)
        return peer

    def add(self, peer: Peer, *, quietly: bool = False) -> None:
        """Add a peer; its address, if one can dial it, means it from now on, unless `quietly` and it means another."""
        self._names[peer] = []
        if peer.identity is not None:
            self._by_identity.setdefault(peer.identity, []).append(peer)
        if not quietly or peer.address not in self.table:
            self._mean(peer.address, peer)

    def forget(self, peer: Peer) -> None:
        """Forget a peer."""
        self._former.pop(peer, None)
        for address in self._names.pop(peer, ()):
            del self.table[address]
        same = self._by_identity.get(peer.identity, []) if peer.identity is not None else []
        if peer in same:
            same.remove(peer)
            if not same:
                del self._by_identity[peer.identity]  # type: ignore[arg-type]  # it has one

    def unlinked(self, peer: Peer) -> list[Address]:
        """Note that a peer lost its last link: only its own address still means it; return the other addresses.

        A name may resolve to another node at the next look-up.
        """
        if peer not in self._names:
            return []
        others = [address for address in self._names[peer] if address != peer.address]
        for address in others:
            del self.table[address]
            self._names[peer].remove(address)
        self._former[peer] = set(others)
        return others

    def bound_to(self, peer: Peer) -> Peer:
        """Return the peer for a message pinned to a node, which may have been forgotten and be back."""
        if peer in self._names:
            return peer
        key = key_of(peer)
        for known in self.of_identity(peer.identity):
            if known.address == peer.address and (key is None or key == key_of(known)):
                return known
        self.add(peer, quietly=True)
        return peer

    def replace(self, target: Peer, peer: Peer) -> None:
        """Let all addresses of one peer mean another, which takes over its address if it has none to dial."""
        for address in list(self._names.get(target, ())):
            self._mean(address, peer)
        if not can_be_dialled(peer.address):
            peer.address = target.address

    def relocate(self, peer: Peer, claimant: Claimant) -> None:
        """Note the place of a link that a peer proved to be its own: it can be dialled there from now on."""
        place, known = claimant.place, peer.address
        if can_be_dialled(place) and known is not None and known.kind == "tcp" and known.port not in (0, place.port):
            # It listens elsewhere now.
            peer.address = place
            self._mean(place, peer)
        else:
            self._note_place(peer, place)

    def _note_place(self, peer: Peer, place: Address | None) -> None:
        """Note the place that a link of a peer comes from, if no other peer is known there."""
        if place not in self.table:
            self._mean(place, peer)
        if not can_be_dialled(peer.address):
            peer.address = place

    def _mean(self, address: Address | None, peer: Peer) -> None:
        if not can_be_dialled(address):
            return
        before = self.table.get(address)
        if before is not None:
            self._names[before].remove(address)
        self.table[address] = peer
        self._names[peer].append(address)

    # Links

    def of_identity(self, identity: bytes | None) -> list[Peer]:
        """Return the peers with an identity; none for this node's own."""
        return [] if identity is None or identity == self._own else list(self._by_identity.get(identity, ()))

    def identify(self, claimant: Claimant) -> tuple[Peer, Claim]:
        """Find the peer that a link belongs to, and what the link claims by its identity.

        A peer with a certificate is recognised by another certificate of the same public key, at its place or in the
        same run; not by another key or none, unless the link proves over an existing one that it is the same node.
        """
        if claimant.target is None:
            return self._identify_by_secret(claimant) or self._identify_accepted(claimant)
        peer, claim = self._identify_dialled(claimant, claimant.target)
        known = self.table.get(claimant.remote)
        if not claimant.checks_names and (known is None or not known.links):
            # The dialled name resolves to this address: a link accepted from there is not a stranger's.
            self._mean(claimant.remote, peer)
        return peer, claim

    def _identify_dialled(self, claimant: Claimant, target: Peer) -> tuple[Peer, Claim]:
        identity, key = claimant.identity, claimant.key
        place = claimant.remote if claimant.remote.kind == "tcp" else None
        is_target = target.identity == identity and may_be(target, key)
        if is_target and not claimant.checks_names:
            return target, Claim.PLAIN
        claim = Claim.CONFLICT if target.identity == identity and is_kept(target) else Claim.PLAIN
        for peer in self.of_identity(identity):
            if peer is target:
                continue
            # Another address of a node that is known by its key: the remote node sees one peer as well. A target that was
            # linked may have messages in flight.
            by_key = claimant.is_run_of(peer) and (
                bool(peer.links) or (target.identity is None and peer.epoch is not None)
            )
            here = peer.address == target.address or self._is_at(peer, place, claimant)
            same = by_key
            if not same and not claimant.checks_names:
                same = here
                if same and not may_be(peer, key):
                    claim = Claim.CONFLICT if is_kept(peer) else claim
                    same = False
            if same:
                # The peer dialled this node meanwhile, or is known by another name of its host.
                self.replace(target, peer)
                if not (peer.links or here):
                    # It was reached at this address; at the one that it announces it may be out of reach.
                    peer.address = target.address
                return peer, Claim.PLAIN
        if is_target:
            return target, Claim.PLAIN
        if target.identity is None:
            return self._named(target, identity), claim
        peer = self._new_peer(target.address, identity)
        self.add(peer)
        self.replace(target, peer)
        return peer, claim

    def _identify_by_secret(self, claimant: Claimant) -> tuple[Peer, Claim] | None:
        """Find the peer of an accepted link by its secret.

        A link of another run takes over from the links of the previous run, which is fenced. A link of the same run
        takes over from links that its node must have lost, if it announces that it resends what was in flight. A
        certificate takes precedence: a peer that had one must show the same key.
        """
        shown, epoch = claimant.link.shown, claimant.link.epoch
        if epoch is None or shown is None or not shown.secret:
            return None
        for peer in self.of_identity(claimant.identity):
            session = peer.session
            if not session.knows(shown.secret) or not may_be(peer, claimant.key):
                continue
            if epoch in session.former:
                return peer, Claim.FENCED
            if peer.epoch != epoch:
                return peer, Claim.FENCES
            # If both ends dialled at once, both links may live: such a link is proven as others are.
            lost = shown.seconds > 0 and not any(each.dialled for each in peer.links)
            return (peer, Claim.REPLACES) if lost or not peer.links else None
        return None

    def _identify_accepted(self, claimant: Claimant) -> tuple[Peer, Claim]:
        if claimant.identity == self._own:
            # The accepted end of a link of this node to itself: the address means the end that dialled.
            unused = (each for each in self._by_identity.get(self._own, ()) if not self._names[each] and not each.links)
            return next(unused, None) or self.accept_new(claimant, take_over=False), Claim.PLAIN
        place, key = claimant.place, claimant.key
        claim, take_over = Claim.PLAIN, True
        for peer in self.of_identity(claimant.identity):
            if shows_secret_of(peer, claimant.link) or proves(peer, key):
                same_run = claimant.link.epoch is not None and claimant.is_run_of(peer)
                if not same_run and not self._is_at(peer, place, claimant):
                    claim = claim if peer.idle else Claim.CONFLICT
                    continue
                found = claimed(peer, claimant, same_run)
                if found is Claim.PLAIN:
                    self._note_place(peer, place)
                if found is not None:
                    return peer, found
                take_over = take_over and (may_be(peer, key) or not is_kept(peer))
            else:
                take_over = take_over and not is_kept(peer)
            if is_kept(peer):
                claim = Claim.CONFLICT
        return self.accept_new(claimant, take_over=take_over), claim

    def unproven(self, claimant: Claimant, peer: Peer, *, lives: bool) -> tuple[Peer, Claim]:
        """Return the peer of a link that the holder of its identity did not prove to be its own.

        Args:
            claimant: The link.
            peer: The holder.
            lives: Whether the holder sent something since it was asked: its links are not dead.
        """
        same_key = may_be(peer, claimant.key)
        if same_key and all(link.state is LinkState.PARTING for link in peer.links):
            return peer, Claim.PLAIN
        if same_key and peer.certificate is not None and not lives:
            # Its node restarted with the same certificate: its links are dead, but not closed yet.
            return peer, Claim.REPLACES
        kept = is_kept(peer)
        take_over = not kept or (same_key and not lives)
        return self.accept_new(claimant, take_over=take_over), Claim.CONFLICT if kept else Claim.PLAIN

    def accept_new(self, claimant: Claimant, *, take_over: bool = True) -> Peer:
        """Return the peer of an accepted link of no known peer: the one being dialled there, or a new one.

        Args:
            claimant: The link.
            take_over: Whether the address means this peer from now on, as it does for the newest node there; False
                while a peer lives whose identity the link claims and cannot prove.
        """
        identity, place = claimant.identity, claimant.place
        dialling = self.table.get(place) if place is not None and take_over else None
        if dialling is not None and dialling.identity is None:
            return self._named(dialling, identity)
        peer = self._new_peer(place, identity)
        self._names[peer] = []
        self._by_identity.setdefault(identity, []).append(peer)
        if take_over:
            self._mean(place, peer)
        return peer

    def twin(self, peer: Peer) -> tuple[Peer | None, bool]:
        """Find the peer that announces the same run of the same node as a peer that was dialled.

        Returns:
            The peer, and True if it was dialled at another address. Otherwise it dialled this node, and it is a claim
            that both are one node; only if that node would leave the dialled link, because the other link was dialled
            by the smaller identity. None, and False if there is none.
        """
        if peer.epoch is None or not _is_dialled(peer):
            return None, False
        same = [each for each in self.of_identity(peer.identity) if each is not peer and each.epoch == peer.epoch]
        dialled = next(filter(_is_dialled, same), None)
        if dialled is not None or (peer.identity or b"") >= self._own:
            return dialled, dialled is not None
        for each in same:
            if each.certificate is None and any(link.sending and not link.dialled for link in each.links):
                return each, False
        return None, False

    def _named(self, peer: Peer, identity: bytes) -> Peer:
        """Set the identity of a peer that was known by its address only."""
        peer.identity = identity
        self._by_identity.setdefault(identity, []).append(peer)
        return peer

    def _is_at(self, peer: Peer, place: Address | None, claimant: Claimant) -> bool:
        """Return True if a link comes from a peer's place; where nothing can be dialled, it must be of the same run."""
        known = peer.address
        if can_be_dialled(place):
            return known == place or self.table.get(place) is peer or place in self._former.get(peer, ())
        here = known == place if place is not None else known is None or known.kind != "tcp"
        return here and claimant.link.epoch is not None and peer.epoch == claimant.link.epoch


def _is_dialled(peer: Peer) -> bool:
    """Return True if this node dialled a peer over TCP, can send to it, and was shown no certificate."""
    over_tcp = peer.address is not None and peer.address.kind == "tcp"
    return over_tcp and peer.certificate is None and any(link.dialled and link.sending for link in peer.links)

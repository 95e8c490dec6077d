"""The dialect of libchirp, and of any node that has not announced itself.

It has one buffer for acknowledgements, and names a message by its identity alone, on any of its links. Nothing but
messages, acknowledgements and probes is written to it.
"""

from __future__ import annotations

from typing import Any

from redpoll.wire.assembly import Assembly
from redpoll.wire.capabilities import Announcement
from redpoll.wire.frames import ACK, PREAMBLE, REQ_ACK, RETRY, WANTED, Control, control_frame
from redpoll.wire.inbound import Inbound
from redpoll.wire.link import Link
from redpoll.wire.outgoing import Outgoing, Stage
from redpoll.wire.output import APART, OUTPUT_LIMIT, LinkPeer
from redpoll.wire.peer import Peer
from redpoll.wire.send_errors import too_large_error
from redpoll.wire.states import LinkState
from redpoll.wire.transfer import Transfer

__all__ = ["LibchirpLink", "answered", "confirmed"]


class LibchirpLink(Link[Peer]):
    """A link whose other end has not announced itself: what every link is at first. An announcement makes it a `Link`."""

    __slots__ = ()

    libchirp = True

    def announcement_received(self, announcement: Announcement) -> bool:
        """Apply the first announcement, and speak redpoll from now on."""
        self.__class__ = Link  # type: ignore[assignment]  # both have the same slots
        Link.announcement_received(self, announcement)
        if self.state is LinkState.LEAVING:
            self._send_goodbye()
        return True

    @property
    def drained(self) -> bool:
        """True if all sent messages have ended; there is no window."""
        return not (self.in_flight or self.transfers)

    def leave(self, *, accept_all: bool = False, keep_sending: bool = False) -> None:  # noqa: ARG002
        """Say nothing, and send no more: a goodbye could not be read."""
        super().leave(accept_all=accept_all)

    def _send_goodbye(self) -> None:
        """Wait for an announcement, which may still come."""

    # Sending

    @property
    def free_places(self) -> int:
        """0: messages are confirmed one at a time."""
        return 0

    @property
    def ready(self) -> bool:
        """True if no message waits to be confirmed."""
        peer = self.peer
        return self.writable and self.sending and peer is not None and not peer.unconfirmed

    def admits(self, out: Outgoing) -> bool:
        """Return True if a message may be written now: none may overtake a large one, and one may be unconfirmed."""
        if not self.writable or self.output_size > OUTPUT_LIMIT or not self.sending or self.transfers:
            return False
        peer = self.peer
        if peer is None:
            return True
        # One unconfirmed message (chirp.md 1.6). A message to resend to a node that announced itself before waits until
        # it does so here: without the retry bit it would be handled again.
        return not (out.kind & RETRY and peer.epoch is not None) and not (out.kind & REQ_ACK and peer.unconfirmed)

    def transmit(self, out: Outgoing, peer: LinkPeer, now: float) -> None:
        """Write a message in libchirp's format, a large one in one frame."""
        if out.size > self.max_size:
            peer.fail(out, too_large_error(out, self.max_size, peer.address))
            return
        if out.kind & WANTED:
            if not self.settings.acknowledge:
                # As libchirp's asynchronous nodes do: the answer confirms the request.
                out.kind &= ~REQ_ACK
            peer.requests.forget(out)
            peer.requests.add(out.identity, out)
        kind = out.kind & REQ_ACK
        if now - self.liveness.last_used > 0.75 * self.settings.reuse_time:
            # The other end may be about to close an idle link: a probe finds out instead of the message (chirp.md 1.7).
            self.probe(peer)
        peer.counters.sent += 1
        self.liveness.last_used = now
        # The other end may still announce itself, and then its window counts this message too.
        self.window.take(out.size)
        out.link = self
        out.stage = Stage.SENT
        body = out.body
        if len(body) > self.settings.fragment_size:
            self.transfers.append(Transfer(out, kind, self.settings.fragment_size, whole=True))
            return
        self._put(PREAMBLE.pack(out.identity, self.number(out, peer), len(body), len(out.header), kind) + out.header)
        if len(body):
            self.output.append(body)
            self.output_size += len(body)
            if len(body) > APART:
                self.output_large = True
                self.last_large = out.serial, self.bytes_sent + self.output_size
        if not kind:
            self.written.append(out)

    def probe(self, peer: LinkPeer) -> None:
        """Write libchirp's NOOP, which keeps an idle link open at the other end and requests nothing."""
        self._put(control_frame(Control.ANNOUNCE, peer.next_serial()))

    def number(self, out: Outgoing, peer: LinkPeer) -> int:
        """Assign a new serial, also to a message that is resent: it has no other here."""
        out.serial = peer.next_serial(self.in_flight)
        if out.kind & REQ_ACK:
            self.in_flight[out.serial] = out
        return out.serial

    def send_cancel(self, out: Outgoing, hard: bool) -> bool:  # noqa: ARG002
        """Return False: libchirp has no cancel frame, so until its deadline the message blocks the next one."""
        return False

    # Ends of received messages

    def acknowledge(self, message: Inbound[Any], kind: int = ACK) -> None:
        """Acknowledge a message over any link: over the newest, if its own is lost."""
        peer: Peer = self.peer  # type: ignore[assignment]  # what began has one
        if self.state is LinkState.CLOSED:
            link = next((each for each in reversed(peer.links) if each.sending), None)
            if link is not None:
                link.acknowledge(message, kind)
        else:
            self._put(PREAMBLE.pack(message.identity, peer.next_serial(), 0, 0, ACK))

    def refuse(self, message: Inbound[Any] | Assembly, code: int, text: str) -> None:
        """Do nothing: libchirp cannot be told."""

    def credit(self, messages: int, size: int) -> None:
        """Count places, for an announcement that may still come."""
        self.receive_window.ended(messages, size)

    def control(self, control: Control, serial: int = 0, body: bytes = b"") -> None:
        """Do nothing: only an announced node reads control frames."""

    def reannounce(self, window: int, window_bytes: int) -> bool:  # noqa: ARG002
        """Return False: no window is announced."""
        return False


def confirmed(peer: Peer, identity: bytes) -> None:
    """Apply an acknowledgement of a peer that did not announce itself."""
    for link in peer.links:
        # The one message that was sent before the peer announced itself comes before all others.
        out = next(iter(link.in_flight.values()), None)
        if out is not None and out.identity == identity:
            link.ended(out)
            if link.libchirp and out.kind & WANTED and out.stage != Stage.ENDED:
                peer.mark_done(out)
            else:
                # This includes a message sent over another link, on which the peer announced itself.
                peer.confirmed(out)
            return
    peer.counters.late += 1


def answered(peer: Peer, message: Inbound[Any]) -> bool:
    """Return True if a message of a peer that did not announce itself is an answer; acknowledge it if requested."""
    requests = peer.requests
    out: Outgoing | None = None
    if message.identity in requests:
        out = requests.take(message.identity)
    elif not requests.abandoned or not requests.pop_abandoned(message.identity):
        return False
    message.phase = 1
    if message.kind & REQ_ACK:
        message.link.acknowledge(message)
    if out is None:
        # A late answer is not delivered to the handler.
        peer.counters.late += 1
        return True
    # If the answer overtook the acknowledgement, the link still waits for that, as libchirp's window is one.
    peer.answer(out, message)
    return True

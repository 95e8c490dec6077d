"""What a link through a broker reads, what it may send, and what it tells the other end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redpoll.nq.mqtt.link import CHARGE, Flow, MqttLink, charge
from redpoll.nq.mqtt.payloads import Kind, read


def test_numbers_tell_what_is_next_doubled_and_missed() -> None:
    """One that was read is dropped, one that is missing ends the link."""
    flow = Flow()
    assert [flow.missing(number) for number in (0, 1, 1, 0, 2, 4, 3)] == [0, 0, -1, -2, 0, 1, 0]


def test_small_payloads_count_for_more_than_their_bytes() -> None:
    """A window holds a bounded number of payloads of any size."""
    assert [charge(size) for size in (1, CHARGE, CHARGE + 1)] == [CHARGE, CHARGE, CHARGE + 1]


@given(st.lists(st.integers(1, 100_000)), st.integers(CHARGE, 1_000_000))
def test_who_sends_and_who_reads_count_alike(sizes: list[int], window: int) -> None:
    """No more than a window, and one payload, is ever unread; once all is read, one may be sent."""
    sender, receiver = Flow(), Flow()
    sender.allow(receiver.tell(window))
    unread: list[int] = []
    for size in sizes:
        if not sender.open:
            assert sum(map(charge, unread)) >= window
            receiver.read()
            unread.clear()
            assert receiver.owes(window)
            sender.allow(receiver.tell(window))
        assert sender.open
        assert sum(map(charge, unread)) < window
        assert receiver.missing(sender.number(size)) == 0
        receiver.came(size)
        unread.append(size)


def test_what_was_allowed_stays() -> None:
    """A window that shrinks, or an older word that comes late, takes nothing back."""
    flow = Flow()
    flow.allow(100)
    flow.allow(50)
    assert flow.allowed == 100
    assert flow.tell(1000) == 1000
    assert flow.tell(10) == 1000


def test_payloads_without_bytes_are_numbered_and_cost_nothing() -> None:
    """One that is lost is missed like any other."""
    link = MqttLink(b"12345678", "client", "topic")
    numbers = [read(link.say(kind)) for kind in (Kind.OPEN, Kind.CREDIT, Kind.CLOSE)]
    assert [each.number for each in numbers if each is not None] == [0, 0, 1]
    assert link.flow.spent == 0

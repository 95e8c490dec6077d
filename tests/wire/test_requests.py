from __future__ import annotations

from redpoll.wire.requests import MAX_ABANDONED, Requests
from tests.wire.support import REQ_ACK, WANTED, Sent, linked, plain_link


def request(serial: int = 1) -> Sent:
    out = Sent(b"?", REQ_ACK | WANTED)
    out.serial = serial
    return out


def test_oldest_first() -> None:
    """Requests with one identity are answered in the order of sending; then the key is free."""
    requests = Requests()
    first, second = request(1), request(2)
    requests.add(b"same", first)
    requests.add(b"same", second)
    assert requests.count == 2
    assert [requests.take(b"same") for _ in range(3)] == [first, second, None]
    assert (requests, requests.count) == ({}, 0)


def test_drop() -> None:
    """A request is dropped by serial or identity, whatever it waits under, and no other with it."""
    requests = Requests()
    one, other, more = request(1), request(2), request(3)
    requests.add(1, one)
    requests.add(other.identity, other)
    requests.add(other.identity, more)
    requests.drop(one)
    requests.drop(other)
    requests.drop(request(9))
    assert (requests, requests.count) == ({other.identity: [more]}, 1)
    assert requests.abandoned is None


def test_given_up() -> None:
    """A late answer of libchirp to an abandoned request is recognized once; the latest requests are remembered."""
    requests = Requests()
    link = plain_link()
    outs = [request() for _ in range(MAX_ABANDONED + 1)]
    for out in outs:
        out.link = link
        requests.drop(out)
    assert not requests.pop_abandoned(outs[0].identity)
    assert [requests.pop_abandoned(outs[1].identity), requests.pop_abandoned(outs[1].identity)] == [True, False]
    announced = request()
    announced.link = linked()
    requests.drop(announced)
    assert not requests.pop_abandoned(announced.identity)


def test_over() -> None:
    """Requests of one link are distinguished from those of another."""
    requests = Requests()
    link = linked()
    one, other = request(1), request(2)
    one.link, other.link = link, linked()
    requests.add(1, one)
    requests.add(2, other)
    assert requests.over(link) == [one]

"""Requests whose link is cut at any byte: each ends with its whole answer or with an error, and never with less."""

from __future__ import annotations

import pytest

from redpoll.errors import NoAnswer, NotConfirmed, PeerLost
from tests.wire.model.ends import REQ_ACK, WANTED, End, Tracked, answer_to, exchange, join, two_ends

#: Bytes of a request; of an answer in one frame, and of one in fragments; and where fragments are cut.
REQUEST = 40
SMALL, LARGE = 30, 200
FRAGMENT = 64

_LOST = PeerLost(None, "cut")


def ends_with(requests: int, answer: int, *, window: int, resume: bool) -> tuple[End, End, list[Tracked]]:
    """Two linked nodes, and requests of the first one, not resent by itself without `resume`."""
    near, far = two_ends(
        slots=window,
        window=window,
        window_bytes=128 * 1024,
        fragment_size=FRAGMENT,
        keepalive=5.0,
        resume=3600.0 if resume else None,
    )
    far.answer_size = answer
    asked = [Tracked(tag, REQUEST, REQ_ACK | WANTED, None, 0.0, 0 if resume else 3) for tag in range(1, requests + 1)]
    join(near, far)
    exchange(near, far)
    return near, far, asked


def ask(near: End, asked: list[Tracked]) -> None:
    for out in asked:
        near.send(out)
    near.run()


def cut(near: End, far: End, *, arrive: int = 0, back: int = 0) -> None:
    """So many bytes of each direction still arrive, then the link is lost at both ends."""
    for port in list(near.ports):
        port.other.read(arrive)
        far.run()
        port.read(back)
        near.run()
        port.cut()
        for each in (port, port.other):
            each.lose(_LOST)


def answer_all(far: End) -> set[int]:
    """Let all handlers that run return; whose they were."""
    tags = {job.tag for job in far.working}
    for job in list(far.working):
        far.finish(job, "answered")
    return tags


def to_the_end(near: End, far: End, asked: list[Tracked]) -> None:
    for _ in range(4 * len(asked)):
        exchange(near, far)
        if not near.open_sendings:
            return
        answer_all(far)
    raise AssertionError(f"{near.open_sendings} never end")


def check(near: End, far: End, asked: list[Tracked], *, whole: set[int]) -> None:
    """Each request ended with its whole answer, or, but for those of `whole`, with an error; nothing was done twice."""
    assert len(far.begun) == len(set(far.begun))
    for out in asked:
        if out.answer is not None:
            assert bytes(out.answer.data) == answer_to(out.tag, far.answer_size)
        else:
            assert out.tag not in whole
            assert isinstance(out.error, NoAnswer | NotConfirmed)
    assert not near.peer.requests
    assert near.peer.requests.count == len(near.peer.queue) == near.peer.queue.size == 0
    assert not any(port.link.window.used or port.link.window.used_bytes for port in near.ports)


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("requests", [1, 5])
@pytest.mark.parametrize("window", [1, 8])
@pytest.mark.parametrize("answer", [SMALL, LARGE])
def test_cut_in_a_request(answer: int, window: int, requests: int, resume: bool) -> None:
    """A link that is cut at any byte of requests: those whose handlers return after that are answered over the next one."""
    for arrive in range(1, requests * 90, 7):
        near, far, asked = ends_with(requests, answer, window=window, resume=resume)
        ask(near, asked)
        cut(near, far, arrive=arrive)
        join(near, far)
        to_the_end(near, far, asked)
        check(near, far, asked, whole={out.tag for out in asked})


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("requests", [1, 5])
@pytest.mark.parametrize("window", [1, 8])
@pytest.mark.parametrize("answer", [SMALL, LARGE])
def test_cut_in_an_answer(answer: int, window: int, requests: int, resume: bool) -> None:
    """A link that is cut at any byte of answers: a request has its whole answer, or the error that it was lost."""
    for back in range(1, requests * (answer + 150), 13):
        near, far, asked = ends_with(requests, answer, window=window, resume=resume)
        ask(near, asked)
        for port in list(far.ports):
            port.read(1 << 20)
        begun = set(far.begun)
        answer_all(far)
        far.run()
        cut(near, far, back=back)
        join(near, far)
        to_the_end(near, far, asked)
        check(near, far, asked, whole={out.tag for out in asked} - begun)


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("requests", [1, 5])
@pytest.mark.parametrize("window", [1, 8])
@pytest.mark.parametrize("answer", [SMALL, LARGE])
def test_answered_over_a_new_link(answer: int, window: int, requests: int, resume: bool) -> None:
    """The result of a handler is sent over a new link, even before the request is resent over that."""
    for arrive in range(63, 160, 3):
        near, far, asked = ends_with(requests, answer, window=window, resume=resume)
        ask(near, asked)
        for port in list(far.ports):
            port.read(1 << 20)
        cut(near, far)
        join(near, far)
        far.run()
        for port in list(far.ports):
            port.read(arrive)
        computed = answer_all(far)
        far.run()
        assert len(computed) == min(window, requests)
        to_the_end(near, far, asked)
        check(near, far, asked, whole={out.tag for out in asked})


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("window", [1, 8])
def test_cut_in_an_answer_over_a_new_link(window: int, resume: bool) -> None:
    """A new link is cut as well, at any byte of an answer that arrived before its request was resent."""
    for back in range(1, 500, 5):
        near, far, asked = ends_with(5, LARGE, window=window, resume=resume)
        ask(near, asked)
        for port in list(far.ports):
            port.read(1 << 20)
        begun = set(far.begun)
        cut(near, far)
        join(near, far)
        for port in list(far.ports):
            port.read(63)
        answer_all(far)
        far.run()
        cut(near, far, back=back)
        join(near, far)
        to_the_end(near, far, asked)
        check(near, far, asked, whole={out.tag for out in asked} - begun)

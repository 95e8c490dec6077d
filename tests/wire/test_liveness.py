from __future__ import annotations

from redpoll.wire.liveness import Liveness
from tests.wire.support import settings


def alive(*, opened: bool = True, keepalive: float | None = 5.0) -> Liveness:
    clock = Liveness(settings(keepalive=keepalive), 0.0)
    if opened:
        clock.handshake_received()
    return clock


def test_no_handshake() -> None:
    """A link without a handshake is closed when its time is over, in both roles."""
    clock = alive(opened=False)
    assert clock.next_deadline(False) == 10.0
    assert clock.tick(9.9, False) is None
    assert clock.tick(10.0, False) == "no handshake within 10 s"


def test_no_announcement() -> None:
    """Where libchirp is not served, the announcement has to come in the time of the handshake."""
    clock = Liveness(settings(libchirp=False), 0.0)
    clock.handshake_received()
    assert (clock.next_deadline(False), clock.tick(9.9, False)) == (10.0, None)
    assert clock.tick(10.0, False) == "no announcement within 10 s"
    assert (clock.next_deadline(True), clock.tick(10.0, True)) == (5.0, Liveness.PING)


def test_libchirp_is_not_pinged() -> None:
    """A node that did not announce itself would not answer: nothing is asked of it."""
    clock = alive()
    assert clock.next_deadline(False) is None
    assert clock.tick(1e6, False) is None
    assert not clock.suspect


def test_keepalive_none() -> None:
    """Without keepalive no pings are sent."""
    clock = alive(keepalive=None)
    assert clock.next_deadline(True) is None
    assert clock.tick(1e6, True) is None


def test_silence_is_pinged() -> None:
    """A peer that was silent for `keepalive` is pinged once; an answer restarts the clock."""
    clock = alive()
    assert clock.next_deadline(True) == 5.0
    assert clock.tick(4.9, True) is None
    assert clock.tick(5.0, True) is Liveness.PING
    assert clock.tick(6.0, True) is None
    clock.last_received = 6.0
    assert clock.tick(10.0, True) is None
    assert clock.next_deadline(True) == 11.0
    assert clock.tick(11.0, True) is Liveness.PING


def test_an_answer_in_the_same_moment() -> None:
    """On a clock of milliseconds, an answer may have the very time of its ping: it counts."""
    clock = alive()
    assert clock.tick(5.0, True) is Liveness.PING
    clock.last_received = 5.0
    assert clock.tick(10.0, True) is Liveness.PING
    assert not clock.suspect


def test_who_talks_is_not_pinged() -> None:
    """Any byte counts as life: no ping is sent while bytes arrive."""
    clock = alive()
    for now in range(1, 60):
        assert clock.tick(float(now), True) is None
        clock.last_received = now + 0.5


def test_suspect_then_lost() -> None:
    """Unanswered for `keepalive` it is suspect, for three times that it is lost, with the reason."""
    clock = alive()
    assert clock.tick(5.0, True) is Liveness.PING
    assert clock.next_deadline(True) == 10.0
    assert clock.tick(10.0, True) is Liveness.SUSPECT
    assert clock.suspect
    assert clock.next_deadline(True) == 20.0
    assert clock.tick(20.0, True) == "ping timeout: nothing received for 15.0 s"


def test_suspect_that_answers() -> None:
    """A suspect that is heard again is trusted again."""
    clock = alive()
    clock.tick(5.0, True)
    clock.tick(10.0, True)
    clock.last_received = 12.0
    assert clock.tick(20.0, True) is Liveness.PING
    assert not clock.suspect


def test_own_lag_is_no_fault_of_the_peer() -> None:
    """A late timer means that the process stalled: it reads first, and waits again."""
    clock = alive()
    assert clock.tick(5.0, True) is Liveness.PING
    assert clock.tick(60.0, True) is None
    assert not clock.suspect
    assert clock.next_deadline(True) == 65.0
    clock.last_received = 60.05
    assert clock.tick(65.0, True) is None
    assert not clock.suspect
    assert clock.next_deadline(True) == 65.05


def test_own_lag_is_discounted() -> None:
    """A stall of this process is no silence of the peer, neither before it is suspect nor after."""
    clock = alive()
    clock.tick(5.0, True)
    clock.tick(60.0, True)
    assert clock.tick(65.0, True) is Liveness.SUSPECT
    assert clock.next_deadline(True) == 75.0
    assert clock.tick(100.0, True) is None
    assert clock.next_deadline(True) == 110.0
    assert clock.tick(110.0, True) == "ping timeout: nothing received for 15.0 s"


def test_own_lag_is_no_missing_handshake() -> None:
    """A handshake may lie unread when the time for it is over and this process was busy: it is read first."""
    late = alive(opened=False)
    assert late.tick(30.0, False) is None
    again = late.next_deadline(False)
    assert again is not None
    assert 30.0 < again < 31.0
    assert late.tick(again, False) == "no handshake within 10 s"
    clock = alive(opened=False)
    clock.tick(30.0, False)
    clock.last_received = 30.05
    clock.handshake_received()
    assert clock.next_deadline(True) == 35.05


def test_lag_with_nothing_to_read() -> None:
    """A process that always lags suspects all the same, and times out at last."""
    clock = alive()
    now, verdicts = 5.0, []
    for _ in range(8):
        verdict = clock.tick(now, True)
        verdicts.append(verdict)
        if isinstance(verdict, str):
            break
        now = (clock.next_deadline(True) or now) + 0.2
    assert clock.suspect
    assert isinstance(verdicts[-1], str)

"""What tells whether a target held."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fuzz import watch as module
from tests.fuzz.watch import InvariantError, LeakError, Watch, end_what_does_not


def divide(data: bytes) -> None:
    """A target that the byte 7 breaks."""
    assert 1 / (data[0] - 7)


def test_what_breaks_is_kept(tmp_path: Path) -> None:
    """An input that breaks its target is written under its hash, and the error says how to run it again."""
    watch = Watch("divide", divide, tmp_path / "new")
    watch(b"\x06")
    with pytest.raises(InvariantError) as raised:
        watch(b"\x07")
    path = tmp_path / "new" / hashlib.sha256(b"\x07").hexdigest()[:16]
    assert path.read_bytes() == b"\x07"
    assert str(raised.value) == f"ZeroDivisionError: division by zero\nrun it again: python -m tests.fuzz divide {path}"
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert watch.count == 2


def test_memory_at_its_height_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input breaks its target that takes many times as much memory as it has bytes."""
    monkeypatch.setattr(module, "_TRACED", 2)
    watch = Watch("allocate", lambda data: bytes(16 * 1024 * 1024)[:0], tmp_path)
    watch(b"not looked at")
    with pytest.raises(InvariantError, match=r"it took \d+ bytes of memory, more than 8397824"):
        watch(b"looked at")


@pytest.fixture
def alarms() -> Iterator[None]:
    """Put back what an alarm does."""
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarms")
def test_what_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input breaks its target that keeps it busy for ever."""
    monkeypatch.setattr(module, "_PATIENCE", 0.1)
    end_what_does_not()

    def turn(data: bytes) -> None:
        while data:
            pass

    watch = Watch("turn", turn, tmp_path)
    watch(b"")
    with pytest.raises(InvariantError, match="TimeoutError"):
        watch(b"x")


@pytest.mark.parametrize(("target", "leaks"), [(lambda kept: kept.append, True), (lambda kept: kept.count, False)])
def test_a_leak(
    target: Callable[[list[bytes]], Callable[[bytes], object]],
    leaks: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What keeps something of each input is told from what keeps nothing."""
    monkeypatch.setattr(module, "_READ", 500)
    kept: list[bytes] = []
    run = target(kept)
    watch = Watch("keep", lambda data: run(bytes(bytearray(data))), tmp_path)
    for number in range(12 * 500):
        watch(number.to_bytes(100, "big"))
    if leaks:
        with pytest.raises(LeakError, match=r"keep: \d+ objects"):
            watch.close()
    else:
        watch.close()
        assert str(watch).startswith("keep: 6,000 inputs in ")

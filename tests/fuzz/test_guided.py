"""What is told to atheris, which is not installed where tests run: something with its names stands for it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from tests.fuzz import guided
from tests.fuzz.catalogue import CORPUS, Target


class Ended(BaseException):
    """The process would have ended."""


class Stand:
    """What is called of atheris: it makes inputs that count up."""

    def __init__(self) -> None:
        self.options: list[str] = []
        self.run: Callable[[bytes], None]

    def Setup(self, options: list[str], run: Callable[[bytes], None]) -> None:  # noqa: N802
        self.options = options
        self.run = run

    def Fuzz(self) -> None:  # noqa: N802
        for number in range(256):
            self.run(bytes([number]))


def refuse_nine(data: bytes) -> None:
    """A target that the byte 9 breaks."""
    assert data != b"\x09"


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Put a stand in the place of atheris, and an exception in that of the process's end."""
    stand = Stand()
    module = SimpleNamespace(
        Setup=stand.Setup, Fuzz=stand.Fuzz, instrument_imports=lambda include: contextlib.nullcontext()
    )
    monkeypatch.setitem(sys.modules, "atheris", module)

    def end(code: int) -> NoReturn:
        raise Ended(code)

    monkeypatch.setattr(guided, "_end", end)
    monkeypatch.setattr(guided, "load", lambda name: Target(name, refuse_nine, (b"\x01a",)))
    return stand


def run(runs: int, tmp_path: Path, **options: Any) -> int:
    """Fuzz until the process would end, and return its exit code."""
    (tmp_path / "found").mkdir(exist_ok=True)
    with pytest.raises(Ended) as ended:
        guided.run(
            "address", 5, runs, **{"seconds": 60.0, "crashes": tmp_path, "corpus": tmp_path / "found", **options}
        )
    return int(ended.value.args[0])


def test_ends_after_so_many(stand: Stand, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends after the inputs that were asked for, or the time, and is told corpus, seed and words."""
    assert run(4, tmp_path) == 0
    assert capsys.readouterr().out.startswith("address: 4 inputs")
    assert stand.options[-2:] == [str(tmp_path / "found"), str(CORPUS / "address")]
    assert "-seed=5" in stand.options
    assert (tmp_path / "found.words").read_text() == '"\\x01\\x61"\n'
    assert run(1000, tmp_path, seconds=0.0) == 0


@pytest.mark.usefixtures("stand")
def test_a_find(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What breaks the target is kept and told as without atheris."""
    assert run(100, tmp_path) == 1
    assert "run it again: python -m tests.fuzz address" in capsys.readouterr().err
    assert any(path.is_file() and path.read_bytes() == b"\x09" for path in tmp_path.iterdir())

"""The command line of the fuzzer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fuzz import __main__ as program
from tests.fuzz.catalogue import Target, load


def refuse(data: bytes) -> None:
    """A target that nothing made of addresses holds for long."""
    if b"ipc" in data:
        raise ValueError("it has ipc in it")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """Run a command line on the target `refuse`, which goes by the name of another."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(program, "load", lambda name: Target(name, refuse, (b"ipc",)))
    monkeypatch.setattr(program, "end_what_does_not", lambda: None)

    def run_line(line: str) -> int:
        monkeypatch.setattr(sys, "argv", ["fuzz", *line.split()])
        return program.main()

    return run_line


def test_a_find(run: object, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with what broke, and that file alone breaks it again."""
    assert callable(run)
    assert run("address --plain --seed 3 --runs 5000") == 1
    said = capsys.readouterr()
    assert said.out == "address: plain mutation, --seed 3\n"
    (path,) = Path(".fuzz/address").iterdir()
    assert said.err == f"ValueError: it has ipc in it\nrun it again: python -m tests.fuzz address {path}\n"
    with pytest.raises(ValueError, match="it has ipc in it"):
        run(f"address {path}")


def test_no_find(run: object, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It says how many inputs were run: those of the corpus, of further folders, and what is made of them."""
    assert callable(run)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "input").write_bytes(b"more")
    assert run("address --plain --runs 5 --corpus more") == 0
    count = len(load("address").corpus) + 1
    assert f"\naddress: {count} inputs in " in capsys.readouterr().out
    assert run("address more/input") == 0
    assert capsys.readouterr().out == "more/input: it holds\n"
    (tmp_path / "more" / "other").write_bytes(b"ipc")
    assert run("address --plain --runs 5 --corpus more") == 1

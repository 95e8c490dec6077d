"""What the four programs share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import typer

from redpoll.cli.bench.roles import GoneError, OtherSizeError, Role, play
from redpoll.errors import UsageError


def make(directory: str = "127.0.0.1", **options: Any) -> Role:
    """A role with all options at rest."""
    nothing = dict.fromkeys(("token_file", "tls", "ca"))
    off = dict.fromkeys(("json", "quiet", "until_eof", "plain"), False)
    return Role.of(directory, **{"wait": 60.0, **nothing, **off, **options})


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1", "127.0.0.1:5682"), ("[::1]:7", "[::1]:7"), ("directory.example.org", "directory.example.org:5682")],
)
def test_the_directory_has_its_old_port(text: str, address: str) -> None:
    """The host of the directory may have a port; without one it is that of the old server."""
    assert str(make(text).directory) == address


def test_what_is_no_address_is_usage() -> None:
    """A host, an interface or options that cannot be are told at once."""
    with pytest.raises(UsageError):
        make("a b")
    with pytest.raises(UsageError):
        make().wiring("http://127.0.0.1")
    with pytest.raises(UsageError, match="--plain"):
        make(plain=True, tls="node.pem")


def test_a_directory_may_ask_for_a_token(tmp_path: Path) -> None:
    """The token is read from a file, which has to be there."""
    (tmp_path / "token").write_text("secret")
    assert make(token_file=str(tmp_path / "token")).options["token"] in {"secret", b"secret"}
    with pytest.raises(UsageError, match="nowhere"):
        make(token_file=str(tmp_path / "nowhere"))


def test_work_that_ends_is_done() -> None:
    """A program that ends exits with 0."""

    async def work() -> None:
        await asyncio.sleep(0)

    with pytest.raises(typer.Exit) as ended:
        play(make(), work())
    assert ended.value.exit_code == 0


def test_silence_ends_a_program(capfd: pytest.CaptureFixture[str]) -> None:
    """A program whose count of messages does not change for as long as it waits exits with 1 and says so."""
    role = make(wait=0.1)

    async def work() -> None:
        role.count = lambda: 5
        await asyncio.Event().wait()

    with pytest.raises(typer.Exit) as ended:
        play(role, work())
    assert ended.value.exit_code == 1
    assert "nothing came from the other program, or went to it, for 0.1 s" in capfd.readouterr().err


def test_what_moves_goes_on() -> None:
    """A program whose count changes goes on for as long as that takes."""
    asked: list[int] = []
    role = make(wait=0.05)

    async def work() -> None:
        enough = asyncio.Event()

        def count() -> int:
            asked.append(len(asked))
            if len(asked) == 3:
                enough.set()
            return len(asked)

        role.count = count
        await enough.wait()

    with pytest.raises(typer.Exit) as ended:
        play(role, work())
    assert ended.value.exit_code == 0
    assert len(asked) >= 3


def test_its_error_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """An error of the tree ends the program with 1, its text and the remedy."""

    async def work() -> None:
        raise OtherSizeError(1, 16)

    with pytest.raises(typer.Exit) as ended:
        play(make(), work())
    assert ended.value.exit_code == 1
    assert "a message of 16 B came from the other program, not of 1 B" in capfd.readouterr().err
    assert OtherSizeError(1, 16).hint == "give both programs the same size and count"
    assert GoneError(2.0).seconds == 2.0

"""`redpoll echo`, as its users run it."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING

import pytest

from tests.cli.support import run, serving

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_until_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    """It answers each request with its data and ends with 0 on a signal, saying how many there were."""
    with serving(tmp_path, "echo") as echo:
        for word in ("one", "two"):
            assert run("request", echo.address, word).stdout == word.encode() + b"\n"
        assert echo.end(number) == 0
        assert "2 messages (6 bytes) answered" in echo.errors


def test_it_confirms_what_wants_no_answer(tmp_path: Path) -> None:
    """A plain message is confirmed; its sender gets nothing back."""
    with serving(tmp_path, "echo", "--json") as echo:
        assert run("send", echo.address, "one").returncode == 0
        assert echo.end() == 0
        done = echo.event()
        assert (done["event"], done["messages"], done["bytes"]) == ("done", 1, 3)


def test_it_ends_with_its_input_if_asked_to(tmp_path: Path) -> None:
    """With --until-eof it drains and ends with 0 when standard input ends."""
    with serving(tmp_path, "echo", "--until-eof") as echo:
        echo.write(b"what is read is not looked at\n")
        assert run("request", echo.address, "ping").stdout == b"ping\n"
        echo.close_input()
        assert echo.wait() == 0


def test_a_busy_port_is_told() -> None:
    """A port that is in use exits with 4 and names the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = run("echo", str(port))
    assert (done.returncode, done.stdout) == (4, b"")
    assert f"cannot listen on 127.0.0.1:{port}".encode() in done.stderr

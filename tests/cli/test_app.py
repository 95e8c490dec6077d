"""Help and version."""

from __future__ import annotations

import pytest

import redpoll
from redpoll.cli import main
from tests.cli.support import refuse

COMMANDS = ["demo", "listen", "send", "request", "echo", "bench", "bridge", "directory", "hub", "pki", "run", "wiring"]
BUS = [
    *(f"queue {name}" for name in ("list", "show", "peek", "purge", "move", "pause", "resume", "redrive", "delete")),
    *(f"task {name}" for name in ("show", "cancel", "result")),
    *(f"hub {name}" for name in ("check", "backup", "upgrade")),
]
GROUPED = ["pki init", "pki issue", "pki show", "pki renew", "wiring show", *BUS]
BENCH = [f"bench {work}{program}" for work in ("lat", "thr") for program in ("", " local", " remote")]


def shown(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    """Run the command in this process on 80 columns: its exit code and all that it printed."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = capfd.readouterr()
    return int(ended.value.code or 0), told.out + told.err


@pytest.mark.parametrize("command", [*COMMANDS, *GROUPED, *BENCH])
def test_every_command_has_help_with_an_example(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """--help exits with 0 and shows an example, in 80 columns."""
    code, text = shown(capfd, monkeypatch, *command.split(), "--help")
    assert code == 0
    assert "Example" in text
    assert f"redpoll {command}" in text
    assert max(map(len, text.splitlines())) <= 80


def test_help_lists_commands_and_exit_codes(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With --help every command and what the exit codes mean are listed; without arguments it is usage."""
    code, text = shown(capfd, monkeypatch, "--help")
    assert code == 0
    assert all(command in text for command in COMMANDS)
    assert "Exit codes" in text
    for arguments in ([], ["pki"]):
        code, text = shown(capfd, monkeypatch, *arguments)
        assert code == 2
        assert "Usage" in text


def test_an_unknown_command_is_usage(capfd: pytest.CaptureFixture[str]) -> None:
    """A command that does not exist exits with 2."""
    code, out, err = refuse(capfd, "shout")
    assert (code, out) == (2, "")
    assert "shout" in err


def test_the_version_is_told(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """--version prints the version of the package."""
    assert shown(capfd, monkeypatch, "--version") == (0, f"redpoll {redpoll.__version__}\n")

"""`redpoll directory`, as its users run it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from redpoll import TLS
from redpoll.errors import NotAuthorized
from redpoll.testing.certificates import Certificates
from redpoll.wiring.directory import DirectoryClient, Entry
from tests.cli.support import PATIENCE, Running, refuse, run, serving
from tests.node.support import until
from tests.ports import free_port

ResultT = TypeVar("ResultT")

#: Options of a directory on a free port.
ANY = ("--port", "0")


def ask(running: Running, question: Callable[[DirectoryClient], Awaitable[ResultT]], **options: object) -> ResultT:
    """Ask a directory that runs."""

    async def asking() -> ResultT:
        async with DirectoryClient(running.address, timeout=PATIENCE, **options) as client:  # type: ignore[arg-type]
            return await question(client)

    return asyncio.run(asking())


async def names(client: DirectoryClient) -> list[str]:
    """The names that it knows."""
    return [entry.name for entry in await client.list()]


@pytest.fixture
def settings(tmp_path: Path) -> str:
    """A file with a name, a token and a lease."""
    (tmp_path / "token").write_text("sesame\n")
    file = tmp_path / "directory.toml"
    file.write_text(
        f'port = {free_port()}\nlease = 7\ntoken_file = "token"\n'
        '[[exchange]]\nname = "PRICES"\naddress = "127.0.0.1:9"\nstyle = "balance"\n'
    )
    return str(file)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    """It says where it listens, knows what it is told, and ends with 0 on a signal."""

    async def register(client: DirectoryClient) -> Entry | None:
        await client.register("queue", "Q", "127.0.0.1:9")
        return await client.lookup("queue", "Q")

    with serving(tmp_path, "directory", *ANY) as running:
        found = ask(running, register)
        assert found is not None
        assert found.key == ("queue", "Q")
        assert running.end(number) == 0
        assert "0 names known at the end" in running.errors


def test_its_events(tmp_path: Path) -> None:
    """With --json a script reads where it listens, and what it knew at the end."""
    with serving(tmp_path, "directory", *ANY, "--json", "--lease", "3") as running:
        assert running.end() == 0
        assert running.event() == {"event": "done", "names": 0}


def test_a_file_of_settings(tmp_path: Path, settings: str) -> None:
    """Port, lease, token and names come from the file; what an option says goes before."""
    with serving(tmp_path, "directory", "--config", settings, "--json") as running:
        assert ask(running, names, token="sesame") == ["PRICES"]
    port = free_port()
    with serving(tmp_path, "directory", "--config", settings, "--port", str(port)) as running:
        assert running.address == f"127.0.0.1:{port}"
        assert "with 1 static name" in running.errors


def test_a_token(tmp_path: Path) -> None:
    """Who does not show the token is not let in."""
    file = tmp_path / "token"
    file.write_text("sesame\n")

    async def refused(client: DirectoryClient) -> bool:
        await until(lambda: client.state == "refused", "the refusal")
        try:
            await client.list()
        except NotAuthorized:
            return True
        return False

    with serving(tmp_path, "directory", *ANY, "--token-file", str(file)) as running:
        assert ask(running, names, token="sesame") == []
        assert ask(running, refused, token="simsim")
        assert ask(running, refused)


def test_encryption(tmp_path: Path, redpoll_pki: Certificates) -> None:
    """With --tls links are encrypted, and both ends show a certificate of the CA."""
    with serving(tmp_path, "directory", *ANY, "--tls", str(redpoll_pki.issue())) as running:
        assert ask(running, names, tls=TLS(certificate=redpoll_pki.issue()), encryption=True) == []


def test_what_the_command_line_does_not_say_is_the_file_s(tmp_path: Path, redpoll_pki: Certificates) -> None:
    """With --tls the CA of the file counts still, and `plain` of the file does not."""
    file = tmp_path / "directory.toml"
    certificate = str(redpoll_pki.issue())
    file.write_text("plain = true\n")
    with serving(tmp_path, "directory", *ANY, "--config", str(file), "--tls", certificate) as running:
        assert ask(running, names, tls=TLS(certificate=redpoll_pki.issue()), encryption=True) == []
    file.write_text('ca = "no-such-file.pem"\n')
    done = run("directory", *ANY, "--config", str(file), "--tls", certificate)
    assert done.returncode == 2
    assert b"no-such-file.pem" in done.stderr


def test_it_ends_with_its_input_if_asked_to(tmp_path: Path) -> None:
    """With --until-eof it ends with 0 when standard input ends."""
    with serving(tmp_path, "directory", *ANY, "--until-eof") as running:
        running.close_input()
        assert running.wait() == 0


def test_a_busy_port_is_told(tmp_path: Path) -> None:
    """A port that is in use exits with 4 and names the address."""
    with serving(tmp_path, "directory", *ANY) as running:
        port = running.address.rpartition(":")[2]
        done = run("directory", "--port", port)
    assert (done.returncode, done.stdout) == (4, b"")
    assert f"cannot listen on 127.0.0.1:{port}".encode() in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--config", "no-such-file.toml"), "cannot read no-such-file.toml"),
        (("--token-file", "no-such-file"), "token_file='no-such-file': cannot be read"),
        (("--lease", "0"), "--lease 0: it must be above 0"),
        (("--lease", "nan"), "--lease nan: it must be above 0"),
        (
            ("--lease", "1e12"),
            "--lease 1e+12: it must be above 0 and at most 31536000 seconds redpoll: hint: the default is 15",
        ),
        (("--port", "70000"), "65535"),
        (("--host", "a:b"), "'a:b' has a port"),
        (("--plain", "--tls", "x"), "--plain contradicts --tls and --ca"),
    ],
)
def test_what_cannot_be_meant(capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], problem: str) -> None:
    """A bad option is usage, and names what is wrong."""
    code, out, err = refuse(capfd, "directory", *arguments)
    assert (code, out) == (2, "")
    assert problem in err


def test_off_loopback_it_wants_certificates(capfd: pytest.CaptureFixture[str]) -> None:
    """On every interface it does not listen unencrypted unless that is meant."""
    code, _, err = refuse(capfd, "directory", "--host", "0.0.0.0", "--port", str(free_port()))
    assert code == 2
    assert "give --tls FILE, or add --plain" in err


def test_a_mistake_in_the_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It names the file and the key."""
    file = tmp_path / "directory.toml"
    file.write_text('[[queue]]\nname = "Q"\n')
    code, _, err = refuse(capfd, "directory", "--config", str(file))
    assert code == 2
    assert "directory.toml: queue[0].address: it is missing" in err

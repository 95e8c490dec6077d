"""`redpoll wiring show`, as its users run it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from redpoll import GLOBAL, Wiring
from redpoll.address import Address
from redpoll.cli.wiring import _directory
from tests.cli.support import errors, refuse, run, serving
from tests.ports import free_port


@pytest.fixture
def settings(tmp_path: Path) -> str:
    """A directory of one exchange, whose owner is not there."""
    file = tmp_path / "directory.toml"
    file.write_text(
        f'port = {free_port()}\n[[exchange]]\nname = "PRICES"\naddress = "127.0.0.1:{free_port()}"\nstyle = "balance"\n'
    )
    return str(file)


def test_a_directory_is_shown(tmp_path: Path, settings: str) -> None:
    """What it knows is shown in each form, owners that are not reached too, and the exit code is 0."""
    with serving(tmp_path, "directory", "--config", settings) as running:
        done = run("wiring", "show", running.address)
        assert done.returncode == 0
        assert [line.split()[:2] for line in done.stdout.decode().splitlines()[:2]] == [
            ["EXCHANGE", "STYLE"],
            ["PRICES", "balance"],
        ]
        assert "not reached: 127.0.0.1:" in done.stdout.decode()
        assert "1 owner not reached" in errors(done)
        assert run("wiring", "show", running.address, "--format", "dot").stdout.startswith(b"digraph wiring {")
        told = json.loads(run("wiring", "show", running.address, "--json").stdout)
        assert (told["event"], told["processes"][0]["items"][0]["name"]) == ("wiring", "PRICES")


def test_a_token(tmp_path: Path) -> None:
    """It shows the token of a file, and says what to do when it is not let in."""
    file = tmp_path / "token"
    file.write_text("sesame")
    with serving(tmp_path, "directory", "--port", "0", "--token-file", str(file)) as running:
        assert run("wiring", "show", running.address, "--token-file", str(file)).returncode == 0
        done = run("wiring", "show", running.address)
        assert done.returncode == 1
        assert "give --token-file FILE" in errors(done)


@pytest.mark.parametrize("with_token", [True, False])
def test_local_names(tmp_path: Path, with_token: bool) -> None:
    """Names that are LOCAL are shown to who has the token of their owner; without one nobody is shown them."""
    file = tmp_path / "token"
    file.write_text("sesame")
    options = ("--token-file", str(file)) if with_token else ()

    async def shown(address: str) -> str:
        async with Wiring(address, token="sesame" if with_token else None) as wiring:
            await wiring.create_exchange("PRICES", scope=GLOBAL)
            await wiring.create_queue("MINE")
            await wiring.bind("PRICES", "MINE")
            done = await asyncio.to_thread(run, "wiring", "show", address, *options)
            assert done.returncode == 0
            return done.stdout.decode()

    with serving(tmp_path, "directory", "--port", "0", *options) as running:
        text = asyncio.run(shown(running.address))
        assert ("MINE" if with_token else "(local)") in text
        assert ("MINE" in text) == with_token


def test_no_directory() -> None:
    """Where there is none it says so in its time, with how to start one, and exits with 1."""
    done = run("wiring", "show", f"127.0.0.1:{free_port()}", "--timeout", "0.2")
    assert done.returncode == 1
    assert "start one with: redpoll directory" in errors(done)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("127.0.0.1:5682", "--format", "svg"), "unknown format 'svg'"),
        (("inproc:x",), "nodes of one process"),
        (("127.0.0.1:0",), "cannot send to port 0"),
        (("127.0.0.1:5682", "--timeout", "soon"), "--timeout: 'soon'"),
        (("",), "has no port"),
        (("a:b:5",), "ambiguous"),
    ],
)
def test_what_cannot_be_meant(capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], problem: str) -> None:
    """A bad argument is usage, and names what is wrong."""
    code, out, err = refuse(capfd, "wiring", "show", *arguments)
    assert (code, out) == (2, "")
    assert problem in err


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("box", "box:5682"),
        ("127.0.0.1", "127.0.0.1:5682"),
        ("[::1]", "[::1]:5682"),
        ("[::1]:7", "[::1]:7"),
        ("box:7", "box:7"),
        ("unix:/run/x", "unix:/run/x"),
    ],
)
def test_a_host_alone(text: str, address: str) -> None:
    """It means the port that directories have unless told otherwise."""
    assert _directory(text) == Address.parse(address)

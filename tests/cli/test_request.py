"""`redpoll request`, as its users run it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from redpoll.cli.request import _answer as answer_to
from redpoll.cli.runtime import Stop
from tests.cli.support import environment, errors, refuse, run, serving
from tests.node.support import Inbox, make, to, within

if TYPE_CHECKING:
    from pathlib import Path

    from redpoll.testing.certificates import Certificates


def test_the_answer_is_printed(tmp_path: Path) -> None:
    """The answer goes to standard output with a newline, and nothing else is printed."""
    with serving(tmp_path, "echo") as echo:
        done = run("request", echo.address, "are you there?")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"are you there?\n", b"")


def test_bytes_go_there_and_back(tmp_path: Path) -> None:
    """With --raw and --file the answer is byte for byte what was in the file."""
    content = os.urandom(2_000_000)
    (tmp_path / "question").write_bytes(content)
    with serving(tmp_path, "echo") as echo:
        done = run("request", echo.address, "--raw", "--file", str(tmp_path / "question"))
        assert (done.returncode, done.stdout) == (0, content)
        done = run("request", echo.address, "--raw", "--file", "-", stdin=b"from a pipe\n")
        assert (done.returncode, done.stdout) == (0, b"from a pipe\n")


@pytest.mark.asyncio
async def test_a_node_with_another_serializer() -> None:
    """The command's bytes are given to a node of any serializer, and its answer is shown as it is."""
    inbox = Inbox(answer={"seen": True})
    async with make(inbox, serializer="json") as node:
        for command in ("request", "send"):
            done = await asyncio.to_thread(run, command, str(node.address), '{"a": [1]}')
            assert done.returncode == 0, done.stderr
            assert done.stdout == (b'{"seen":true}\n' if command == "request" else b"")
    assert inbox.begun == [{"a": [1]}] * 2


def test_over_tls(tmp_path: Path, redpoll_pki: Certificates) -> None:
    """With --tls both ends prove who they are; who cannot is told at once, however long its timeout."""
    server, client = str(redpoll_pki.issue("server")), str(redpoll_pki.issue("client"))
    with serving(tmp_path, "echo", "--tls", server) as echo:
        done = run("request", echo.address, "--tls", client, "ping")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"ping\n", b"")
        nothing: list[str] = []
        for options, told in (
            (nothing, "the peer uses TLS, and this node sends plaintext"),
            (["--ca", str(redpoll_pki.ca)], "the other end requires a certificate, and this node has none"),
            (["--tls", str(redpoll_pki.another().issue())], "is not signed by a CA in"),
        ):
            done = run("request", echo.address, *options, "--timeout", "none", "ping")
            assert (done.returncode, done.stdout) == (1, b"")
            assert told in errors(done)
            assert "hint: give --tls on both ends or on neither" in errors(done)


@pytest.mark.parametrize(
    "command", [("request", "127.0.0.1:1", "ping"), ("echo", "0"), ("listen", "0"), ("send", "127.0.0.1:1", "x")]
)
def test_certificates_that_cannot_be_used(command: tuple[str, ...], redpoll_pki: Certificates) -> None:
    """A file that is not there, or has expired, is a usage error of whoever is given it."""
    for file, told in (("none.pem", "cannot read none.pem"), (str(redpoll_pki.issue(expired=True)), "expired on")):
        done = run(*command, "--tls", file)
        assert done.returncode == 2
        assert told in errors(done)


def test_the_answer_as_json(tmp_path: Path) -> None:
    """With --json the answer is an object: text, or base64 for what is not UTF-8."""
    with serving(tmp_path, "echo") as echo:
        answer = json.loads(run("request", echo.address, "--json", "ping").stdout)
        assert (answer["event"], answer["text"], answer["address"]) == ("answer", "ping", echo.address)
        assert answer["seconds"] > 0
        answer = json.loads(run("request", echo.address, "--json", "--file", "-", stdin=b"\xff").stdout)
        assert answer["base64"] == "/w=="


def test_work_that_is_done_without_an_answer_is_no_answer(tmp_path: Path) -> None:
    """A listener that takes the request but does not answer makes the exit code 3."""
    with serving(tmp_path, "listen") as listener:
        done = run("request", listener.address, "ping", "--timeout", "2")
        assert (done.returncode, done.stdout) == (3, b"")
        assert "error:" in errors(done)
        assert listener.line() == b"ping\n"


#: A node that prints its address and takes requests, but is never done with them.
THINKING = """
import asyncio, redpoll
async def think(message):
    await asyncio.Event().wait()
async def main():
    async with redpoll.Node(think, port=0) as node:
        print(node.address, flush=True)
        await node.serve_forever()
redpoll.run(main())
"""


def test_a_peer_that_thinks_too_long_is_no_answer() -> None:
    """A peer that has the request and is not done in time makes the exit code 3; --json tells it as an object."""
    process = subprocess.Popen([sys.executable, "-c", THINKING], stdout=subprocess.PIPE, env=environment())
    try:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        done = run("request", address, "ping", "--timeout", "0.5", "--json")
    finally:
        process.kill()
        process.communicate()
    assert done.returncode == 3
    failed = json.loads(done.stdout)
    assert (failed["event"], failed["kind"]) == ("failed", "ConfirmTimeout")


def test_a_frozen_peer_is_not_delivered(tmp_path: Path) -> None:
    """A peer that does not even shake hands makes the exit code 1: the request was not sent."""
    with serving(tmp_path, "echo") as echo:
        echo.process.send_signal(signal.SIGSTOP)
        done = run("request", echo.address, "ping", "--timeout", "0.5", "--json")
        echo.process.send_signal(signal.SIGCONT)
    assert done.returncode == 1
    assert json.loads(done.stdout)["sent"] is False


def test_nobody_there_is_not_delivered() -> None:
    """Where nobody listens the exit code is 1, and the cause is told."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    done = run("request", f"127.0.0.1:{port}", "ping", "--timeout", "0.5")
    assert (done.returncode, done.stdout) == (1, b"")
    assert "refused" in errors(done)


def test_a_refused_request_is_not_delivered(tmp_path: Path) -> None:
    """A peer that refuses makes the exit code 1, and its reason is told."""
    with serving(tmp_path, "listen", "--output", "/dev/full") as listener:
        done = run("request", listener.address, "ping")
    assert (done.returncode, done.stdout) == (1, b"")
    assert "No space left on device" in errors(done)


@pytest.mark.parametrize(
    "arguments",
    [["127.0.0.1:2998"], ["127.0.0.1:2998", "x", "--file", "y"], ["127.0.0.1", "x"], ["127.0.0.1:1", "-f", "no/file"]],
)
def test_what_cannot_be_carried_out_is_usage(capfd: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """No message, two of them, a bad address and a missing file exit with 2."""
    code, out, _ = refuse(capfd, "request", *arguments)
    assert (code, out) == (2, "")


@pytest.mark.asyncio
async def test_an_answer_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop a request that is being worked on is waited for as long as a drain takes, and then withdrawn."""
    monkeypatch.setattr("redpoll.cli.request.DRAIN", 0.05)
    inbox, stop = Inbox(hold=True), Stop()
    async with make(inbox) as server, make(listen=False) as client:
        asked = asyncio.ensure_future(answer_to(client, to(server), stop))
        await inbox.holds(1)
        stop.set()
        assert await asked is None
        await within(inbox.messages[0].cancelled.wait())
        inbox.gate.set()

"""`redpoll listen`, as its users run it."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.support import COMMAND, environment, errors, refuse, run, serving, started, until

if TYPE_CHECKING:
    from pathlib import Path


def test_messages_are_printed_one_a_line(tmp_path: Path) -> None:
    """Each message is a line on standard output, at once; notices go elsewhere."""
    with serving(tmp_path, "listen") as listener:
        for word in ("one", "two"):
            assert run("send", listener.address, word).returncode == 0
            assert listener.line() == word.encode() + b"\n"
        assert listener.end() == 0
        assert listener.rest() == b""
        assert "2 messages (6 bytes) written" in listener.errors


def test_what_is_confirmed_is_written(tmp_path: Path) -> None:
    """When `send` returns, the message is in the file, without waiting for the listener's end."""
    output = tmp_path / "copy"
    with serving(tmp_path, "listen", "--output", str(output)) as listener:
        for number in range(1, 4):
            assert run("send", listener.address, f"{number}").returncode == 0
            assert output.read_text().splitlines()[-1] == f"{number}"


def test_it_ends_after_so_many_messages(tmp_path: Path) -> None:
    """With --count it writes and confirms exactly so many; the sender is told which one was not taken."""
    with serving(tmp_path, "listen", "--count", "3") as listener:
        done = run("send", listener.address, "a", "b", "c", "d", "e", "--timeout", "2")
        assert listener.wait() == 0
        assert listener.rest() == b"a\nb\nc\n"
    assert done.returncode == 1
    assert 'message 4 "d" is not confirmed' in errors(done)
    assert "3 messages before it confirmed" in errors(done)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_before_its_count_it_says_so(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """A signal before --count is reached makes the exit code that of the signal."""
    with serving(tmp_path, "listen", "--count", "3") as listener:
        assert run("send", listener.address, "a").returncode == 0
        assert listener.end(number) == code
        assert listener.rest() == b"a\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_while_lines_stream_it_loses_none(tmp_path: Path, number: signal.Signals) -> None:
    """Stopped in the middle, it has written exactly what the sender calls confirmed, in order."""
    content = b"".join(b"line %d\n" % number for number in range(300_000))
    source, output = tmp_path / "some.log", tmp_path / "copy"
    source.write_bytes(content)
    with (
        serving(tmp_path, "listen", "--output", str(output)) as listener,
        started(tmp_path, "send", listener.address, "--lines", "-f", str(source), "--json", "-t", "1") as sender,
    ):
        until(lambda: output.stat().st_size > 0, "the first lines")
        assert listener.end(number) == 0
        failed = sender.event()
        assert sender.wait() == 1
    written = output.read_bytes()
    assert content.startswith(written)
    assert failed["confirmed"] == failed["index"] == written.count(b"\n") < 300_000


def test_it_ends_with_its_input_if_asked_to(tmp_path: Path) -> None:
    """With --until-eof it drains and ends with 0 when standard input ends."""
    with serving(tmp_path, "listen", "--until-eof") as listener:
        assert run("send", listener.address, "one").returncode == 0
        listener.close_input()
        assert listener.wait() == 0
        assert listener.rest() == b"one\n"


def test_files_are_emptied(tmp_path: Path) -> None:
    """A file is overwritten."""
    output = tmp_path / "copy"
    output.write_text("before\n")
    with serving(tmp_path, "listen", "--count", "1", "--output", str(output)) as listener:
        assert run("send", listener.address, "one").returncode == 0
        assert listener.wait() == 0
    assert output.read_text() == "one\n"


def test_raw_adds_nothing(tmp_path: Path) -> None:
    """With --raw the bytes of messages follow each other with nothing between."""
    with serving(tmp_path, "listen", "--raw", "--count", "2") as listener:
        assert run("send", listener.address, "one", "two").returncode == 0
        assert listener.wait() == 0
        assert listener.rest() == b"onetwo"


def test_everything_as_json(tmp_path: Path) -> None:
    """With --json the address, each message and the sums are objects, one a line."""
    with serving(tmp_path, "listen", "--json", "--count", "2") as listener:
        assert run("send", listener.address, "one").returncode == 0
        assert run("send", listener.address, "--file", "-", stdin=b"\xff\xfe").returncode == 0
        first, second, done = listener.event(), listener.event(), listener.event()
        assert listener.wait() == 0
        assert listener.errors == ""
    assert (first["event"], first["text"]) == ("message", "one")
    assert first["address"].startswith("127.0.0.1:")
    assert second["base64"] == "//4="
    assert done == {"event": "done", "messages": 2, "bytes": 5}


def test_json_beside_a_file(tmp_path: Path) -> None:
    """With --json and --output the file has the lines, and standard output only what happened."""
    output = tmp_path / "copy"
    with serving(tmp_path, "listen", "--json", "--count", "1", "--output", str(output)) as listener:
        assert run("send", listener.address, "one").returncode == 0
        assert json.loads(listener.rest()) == {"event": "done", "messages": 1, "bytes": 3}
    assert output.read_text() == "one\n"


def test_a_terminal_gets_no_escape_codes(tmp_path: Path) -> None:
    """On a terminal, what it would act upon is shown, not sent to it."""
    leader, follower = os.openpty()
    with serving(tmp_path, "listen", "--count", "1", stdout=follower) as listener:
        os.close(follower)
        assert run("send", listener.address, "red \x1b[31m\u202e").returncode == 0
        assert os.read(leader, 1000) == b"red \\x1b[31m\\u202e\r\n"
        assert listener.wait() == 0
    os.close(leader)


def test_a_reader_that_is_gone_refuses(tmp_path: Path) -> None:
    """When nobody reads standard output any more, messages are refused and the exit code is 1."""
    reader, writer = os.pipe()
    with serving(tmp_path, "listen", stdout=writer) as listener:
        os.close(writer)
        os.close(reader)
        done = run("send", listener.address, "one")
        assert done.returncode == 1
        assert "Broken pipe" in errors(done)
        assert listener.wait() == 1
        assert "cannot write standard output: Broken pipe" in listener.errors


def test_a_full_pipe_does_not_hold_up_its_end(tmp_path: Path) -> None:
    """Stopped while nobody reads its output, it refuses what it could not write and ends."""
    with serving(tmp_path, "listen") as listener:
        content = b"x" * 1_000_000
        done = run("send", listener.address, "--file", "-", "--timeout", "1", stdin=content)
        assert done.returncode == 1
        assert "is not confirmed" in errors(done)
        assert listener.end() == 1
        assert "cannot write standard output" in listener.errors


def test_a_full_disk_leaves_no_half_message(tmp_path: Path) -> None:
    """A file that may not grow gets whole messages only; what has no room is refused."""
    output = tmp_path / "copy"
    command = [sys.executable, "-c", LIMITED, "listen", "0", "--output", str(output)]
    stderr = tmp_path / "stderr"
    with stderr.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=file, env=environment())
    try:
        until(lambda: "listening on" in stderr.read_text(), "the address")
        address = stderr.read_text().split()[-1]
        assert run("send", address, "a" * 600).returncode == 0
        done = run("send", address, "b" * 600)
        assert done.returncode == 1
        assert "File too large" in errors(done)
        assert process.wait(30) == 1
    finally:
        process.kill()
        process.wait()
    assert output.read_text() == "a" * 600 + "\n"


#: The command in a process whose files have at most 1,000 bytes.
LIMITED = f"""
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit({resource.RLIMIT_FSIZE}, (1000, 1000))
from redpoll.cli import main
main(sys.argv[1:])
"""


def test_a_busy_port_is_told(tmp_path: Path) -> None:
    """A port that is in use exits with 4 and names the address; a file given with --output is not touched."""
    output = tmp_path / "kept"
    output.write_text("kept")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = run("listen", f"127.0.0.1:{port}", "--output", str(output))
        told = run("listen", str(port), "--json")
    assert (done.returncode, done.stdout) == (4, b"")
    assert f"cannot listen on 127.0.0.1:{port}".encode() in done.stderr
    assert output.read_text() == "kept"
    assert told.returncode == 4
    assert json.loads(told.stdout)["event"] == "failed"


def test_an_address_of_another_machine_is_told() -> None:
    """An address that this machine does not have exits with 4."""
    done = run("listen", "192.0.2.1:0", "--plain")
    assert (done.returncode, done.stdout) == (4, b"")
    assert b"cannot listen on 192.0.2.1:0: Cannot assign requested address" in done.stderr
    assert b"hint: that is no address of this machine" in done.stderr


USAGE = {
    "no address": (["127.0.0.1"], "has no port"),
    "a port too high": (["65536"], "invalid port '65536'"),
    "a port with a slip": (["80x"], "invalid port '80x'"),
    "other digits": (["\u0663000"], "a port is a number from 0 to 65535; to listen on another host, write"),
    "inproc": (["inproc:here"], "nodes of one process"),
    "off loopback": (["0.0.0.0:0"], "--plain"),
    "count zero": (["0", "--count", "0"], "--count"),
    "no slots": (["0", "--slots", "0"], "--slots"),
    "no such folder": (["0", "--output", "no/such/file"], "cannot write no/such/file: No such file"),
    "a folder": (["0", "--output", "/"], "cannot write /"),
}


@pytest.mark.parametrize(("arguments", "text"), USAGE.values(), ids=USAGE)
def test_what_cannot_be_carried_out_is_usage(
    capfd: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    """A command line that cannot be carried out exits with 2 and says what is wrong with it."""
    code, out, err = refuse(capfd, "listen", *arguments)
    assert (code, out) == (2, "")
    assert text in err


def test_a_closed_standard_output_is_usage() -> None:
    """With standard output closed there is nowhere to print: exit code 2, and no socket takes its place."""
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *COMMAND, "listen", "0"], capture_output=True, check=False, env=environment()
    )
    assert done.returncode == 2
    assert b"standard output is closed" in done.stderr

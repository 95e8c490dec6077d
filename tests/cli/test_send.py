"""`redpoll send`, as its users run it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import COMMAND, PATIENCE, environment, errors, refuse, run, serving, started, until

AWKWARD = {
    "empty": b"",
    "one newline": b"\n",
    "no newline at the end": b"one\ntwo",
    "empty lines, carriage returns, zeros, not UTF-8": b"\n\none\r\n\r\n\0\n\xff\xfe\n\xc3\n\xe2\x80\xa8x\n\n",
    "long lines": b"a" * 3_000_000 + b"\n" + b"b" * 70_000 + b"\n" + b"c" * 65_536,
}


def lines(first: int, last: int) -> bytes:
    """Numbered lines of uneven length."""
    return b"".join(b"line %d %s\n" % (number, b"." * (number % 41)) for number in range(first, last + 1))


@pytest.mark.parametrize("content", AWKWARD.values(), ids=AWKWARD)
def test_lines_of_standard_input_are_written_as_they_were(tmp_path: Path, content: bytes) -> None:
    """What `listen --output` writes is byte for byte what `send --lines` read."""
    output = tmp_path / "copy"
    with serving(tmp_path, "listen", "--output", str(output)) as listener:
        done = run("send", listener.address, "--lines", stdin=content)
        assert (done.returncode, done.stdout) == (0, b""), done.stderr
        assert listener.end() == 0
    assert output.read_bytes() == content


def test_many_lines_arrive_once_and_in_order(tmp_path: Path) -> None:
    """50,000 lines from a file are in the listener's file, each once, in order."""
    content = lines(1, 50_000)
    source, output = tmp_path / "some.log", tmp_path / "copy"
    source.write_bytes(content)
    with serving(tmp_path, "listen", "--output", str(output)) as listener:
        done = run("send", listener.address, "--lines", "--file", str(source))
        assert done.returncode == 0, done.stderr
        assert "50,000 lines confirmed" in errors(done)
        assert output.read_bytes() == content
        assert listener.end() == 0


def test_lines_of_several_files_follow_each_other(tmp_path: Path) -> None:
    """With --lines files follow each other; one without a newline at its end does not run into the next."""
    output = tmp_path / "copy"
    names = [str(tmp_path / name) for name in ("a", "b", "c")]
    for name, content in zip(names, (b"1\n2\n", b"3", b"4\n"), strict=True):
        Path(name).write_bytes(content)
    with serving(tmp_path, "listen", "--output", str(output)) as listener:
        done = run("send", listener.address, "--lines", "-f", names[0], "-f", names[1], "-f", names[2])
        assert done.returncode == 0, done.stderr
        assert listener.end() == 0
    assert output.read_bytes() == b"1\n2\n3\n4\n"


def test_words_are_messages_in_order(tmp_path: Path) -> None:
    """Each argument is one message, also an empty one and one that is not UTF-8."""
    with serving(tmp_path, "listen", "--count", "4") as listener:
        command = [*map(os.fsencode, COMMAND), b"send", listener.address.encode(), b"one", b"", b"two words", b"\xff"]
        done = subprocess.run(command, capture_output=True, check=False, env=environment())
        assert done.returncode == 0, done.stderr
        assert listener.rest() == b"one\n\ntwo words\n\xff\n"
        assert listener.wait() == 0


def test_a_file_is_one_message(tmp_path: Path) -> None:
    """Without --lines a file is one message, whatever it holds; - is standard input."""
    source, output = tmp_path / "source", tmp_path / "copy"
    content = os.urandom(3_000_000)
    source.write_bytes(content)
    with serving(tmp_path, "listen", "--raw", "--count", "2", "--output", str(output)) as listener:
        done = run("send", listener.address, "--file", str(source), "--file", "-", stdin=b"tail\n")
        assert done.returncode == 0, done.stderr
        assert listener.wait() == 0
    assert output.read_bytes() == content + b"tail\n"


def test_a_killed_listener_is_told_with_the_first_line_that_is_not_confirmed(tmp_path: Path) -> None:
    """After a SIGKILL of the listener `send` exits with 1 and names the first line that it has no confirmation for."""
    output = tmp_path / "copy"
    with (
        serving(tmp_path, "listen", "--output", str(output)) as listener,
        started(tmp_path, "send", listener.address, "--lines", "--timeout", "2") as sender,
    ):
        sender.write(lines(1, 1000))
        until(lambda: output.read_bytes() == lines(1, 1000), "the first lines")
        listener.end(signal.SIGKILL)
        sender.write(lines(1001, 1010))
        sender.close_input()
        assert sender.wait() == 1
        said = " ".join(sender.errors.split())
    named = re.search(r'line ([\d,]+) "line (\d+) \.*" is not confirmed: .*; ([\d,]+) lines before it confirmed', said)
    assert named, said
    first = int(named[1].replace(",", ""))
    # A line can be written and its confirmation be lost with the listener, never the other way round.
    assert first <= 1001
    assert int(named[2]) == first
    assert int(named[3].replace(",", "")) == first - 1
    assert output.read_bytes() == lines(1, 1000)


def test_no_line_is_confirmed_that_a_killed_listener_did_not_write(tmp_path: Path) -> None:
    """Killed while lines stream, a listener has written at least every line that the sender calls confirmed."""
    source, output = tmp_path / "some.log", tmp_path / "copy"
    content = lines(1, 300_000)
    source.write_bytes(content)
    with (
        serving(tmp_path, "listen", "--output", str(output)) as listener,
        started(tmp_path, "send", listener.address, "--lines", "-f", str(source), "--json", "-t", "2") as sender,
    ):
        until(lambda: output.stat().st_size > 0, "the first lines")
        listener.end(signal.SIGKILL)
        failed = sender.event()
        assert sender.wait() == 1
    written = output.read_bytes()
    assert content.startswith(written)
    assert failed["event"] == "failed"
    assert failed["place"] == f"line {failed['index'] + 1:,} of {source}"
    assert 0 <= failed["index"] <= written.count(b"\n") < 300_000
    assert failed["confirmed"] == failed["index"]


def test_a_frozen_listener_is_told_when_the_time_is_over(tmp_path: Path) -> None:
    """A listener that does not move lets `send` exit with 1 after --timeout, as not confirmed."""
    with serving(tmp_path, "listen") as listener:
        assert run("send", listener.address, "before").returncode == 0
        listener.process.send_signal(signal.SIGSTOP)
        done = run("send", listener.address, "hello", "--timeout", "1")
        listener.process.send_signal(signal.SIGCONT)
        assert done.returncode == 1
        assert 'message 1 "hello" is not confirmed' in errors(done)
        assert "0 messages before it confirmed" in errors(done)


#: A node that dies of the first message, listening where it is told to.
MORTAL = """
import os, sys, redpoll
async def main():
    async with redpoll.Node(lambda message: os._exit(1), host=sys.argv[1]) as node:
        print(node.address, flush=True)
        await node.serve_forever()
redpoll.run(main())
"""


@pytest.mark.parametrize(("retry", "code"), [("0", 1), ("1", 0)])
def test_what_was_not_confirmed_is_sent_again_if_asked_to(tmp_path: Path, retry: str, code: int) -> None:
    """A message in the hands of a listener that dies is lost without --retry, and goes to its successor with it."""
    where = f"unix:{tmp_path}/socket"
    with subprocess.Popen([sys.executable, "-c", MORTAL, where], stdout=subprocess.PIPE, env=environment()) as mortal:
        assert mortal.stdout is not None
        assert mortal.stdout.readline().decode().strip() == where
        with started(tmp_path, "send", where, "hello", "--retry", retry, "--timeout", "20") as sender:
            assert mortal.wait(PATIENCE) == 1
            with serving(tmp_path, "listen", where) as listener:
                assert sender.wait() == code
                assert listener.end() == 0
                assert listener.rest() == (b"hello\n" if code == 0 else b"")
            assert ("--retry N" in sender.errors) == (code == 1)


def test_nobody_there_is_told_with_the_cause(tmp_path: Path) -> None:
    """Where nobody listens `send` exits with 1 after --timeout and says why there is no connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    done = run("send", f"127.0.0.1:{port}", "hello", "--timeout", "0.5")
    assert done.returncode == 1
    assert 'message 1 "hello" is not confirmed' in errors(done)
    assert "refused" in errors(done)


def test_a_refusal_is_told_with_its_reason(tmp_path: Path) -> None:
    """A listener that cannot write refuses, and `send` exits with 1 with its reason."""
    with serving(tmp_path, "listen", "--output", "/dev/full") as listener:
        done = run("send", listener.address, "hello")
        assert done.returncode == 1
        assert "No space left on device" in errors(done)
        assert listener.wait() == 1
        assert "cannot write /dev/full: No space left on device" in listener.errors


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_drains(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Ctrl-C and SIGTERM take no more input; what was read is confirmed and counted, half a line is not sent."""
    output = tmp_path / "copy"
    with (
        serving(tmp_path, "listen", "--output", str(output)) as listener,
        started(tmp_path, "send", listener.address, "--lines") as sender,
    ):
        sender.write(b"one\ntwo\nhal")
        until(lambda: output.read_bytes() == b"one\ntwo\n", "two lines")
        assert sender.end(number) == code
        assert "stopped before line 3; 2 lines confirmed" in sender.errors
        assert listener.end() == 0
    assert output.read_bytes() == b"one\ntwo\n"


def test_what_was_sent_is_told_as_json(tmp_path: Path) -> None:
    """With --json the result is an object on standard output and nothing else is printed."""
    with serving(tmp_path, "listen") as listener:
        done = run("send", listener.address, "--json", "one", "two")
        assert done.returncode == 0
        result = json.loads(done.stdout)
        assert (result["event"], result["confirmed"], result["bytes"]) == ("done", 2, 6)
        assert done.stderr == b""


def test_unacknowledged_messages_arrive(tmp_path: Path) -> None:
    """With --no-acknowledge all lines arrive at a listener that lives, and are told as sent, not as confirmed."""
    with serving(tmp_path, "listen", "--count", "2000", "--output", str(tmp_path / "copy")) as listener:
        done = run("send", listener.address, "--lines", "--no-acknowledge", stdin=lines(1, 2000))
        assert done.returncode == 0, done.stderr
        assert "2,000 lines sent" in errors(done)
        assert listener.wait() == 0
    assert (tmp_path / "copy").read_bytes() == lines(1, 2000)


@pytest.mark.parametrize("host", ["127.0.0.1:0", "[::1]:0", "unix"])
def test_every_kind_of_address_is_reached(tmp_path: Path, host: str) -> None:
    """IPv4, IPv6 and a unix socket are listened on and sent to."""
    where = f"unix:{tmp_path}/socket" if host == "unix" else host
    with serving(tmp_path, "listen", where) as listener:
        done = run("send", listener.address, "hello")
        assert done.returncode == 0, done.stderr
        assert listener.line() == b"hello\n"


def test_a_name_is_looked_up(tmp_path: Path) -> None:
    """A name that stands for this machine is sent to without encryption, as its address would be."""
    with serving(tmp_path, "listen") as listener:
        done = run("send", listener.address.replace("127.0.0.1", "localhost"), "hello")
        assert done.returncode == 0, done.stderr
        assert listener.line() == b"hello\n"


USAGE = {
    "no port": (["127.0.0.1", "x"], "has no port"),
    "port 0": (["127.0.0.1:0", "x"], "cannot send to port 0"),
    "a port that is none": (["127.0.0.1:http", "x"], "has no port in the range 0 to 65535"),
    "a port too high": (["127.0.0.1:65536", "x"], "has no port in the range 0 to 65535"),
    "IPv6 without brackets": (["::1:2998", "x"], "put an IPv6 address in brackets"),
    "inproc": (["inproc:here", "x"], "nodes of one process"),
    "nothing to send": (["127.0.0.1:2998"], "give messages, --file PATH or --lines"),
    "words and lines": (["127.0.0.1:2998", "x", "--lines"], "omit --lines"),
    "no such file": (["127.0.0.1:2998", "-f", "no/such/file"], "cannot read no/such/file: No such file"),
    "a folder": (["127.0.0.1:2998", "-f", "/"], "cannot read /: it is a directory"),
    "time zero": (["127.0.0.1:2998", "x", "-t", "0"], "neither a positive number of seconds"),
    "time in words": (["127.0.0.1:2998", "x", "-t", "soon"], "neither a positive number of seconds"),
    "negative retry": (["127.0.0.1:2998", "x", "--retry", "-1"], "--retry"),
    "off loopback": (["192.0.2.1:2998", "x"], "--plain"),
}


@pytest.mark.parametrize(("arguments", "text"), USAGE.values(), ids=USAGE)
def test_what_cannot_be_carried_out_is_usage(
    capfd: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    """A command line that cannot be carried out exits with 2 and says what is wrong with it."""
    code, out, err = refuse(capfd, "send", *arguments)
    assert (code, out) == (2, "")
    assert text in err


def test_a_closed_standard_input_is_usage(tmp_path: Path) -> None:
    """With standard input closed, not just empty, --lines exits with 2 instead of sending nothing with success."""
    script = '"$@" <&-'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *COMMAND, "send", "127.0.0.1:2998", "--lines"],
        capture_output=True,
        check=False,
        env=environment(),
    )
    assert done.returncode == 2
    assert b"standard input is closed" in done.stderr


def test_the_bar_is_for_terminals_only(tmp_path: Path) -> None:
    """On a terminal a bar says how far it is; anywhere else standard error has only the result."""
    source = tmp_path / "some.log"
    source.write_bytes(lines(1, 20_000))
    leader, follower = os.openpty()
    with serving(tmp_path, "listen", "--output", str(tmp_path / "copy")) as listener:
        command = [*COMMAND, "send", listener.address, "--lines", "--file", str(source)]
        env = {**environment(TERM="xterm-256color")}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=follower, env=env)
        os.close(follower)
        shown = read_terminal(leader)
        assert process.wait() == 0
        assert "sending" in shown
        assert "20,000 lines confirmed" in shown
        done = run("send", listener.address, "--lines", "--file", str(source))
        assert b"sending" not in done.stderr


def read_terminal(descriptor: int) -> str:
    """What a terminal's programs print until the last of them has ended."""
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(descriptor, 65_536)
        except OSError:  # Linux's way to say that the other end is closed
            part = b""
        if not part:
            os.close(descriptor)
            return b"".join(parts).decode()
        parts.append(part)

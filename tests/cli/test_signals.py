"""Ctrl-C and SIGTERM amid the work of each command that works for others: it finishes what it began, and nothing twice."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from redpoll import Message, Node
from tests.cli.support import PATIENCE, Running, environment, serving, started, until
from tests.ports import free_port

#: What each signal makes a command exit with that is stopped before it is done.
SIGNALS = pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])

#: A node that tells of each request and answers it when it gets a line.
GATED = """
import asyncio, sys, redpoll
async def gated(message):
    print("begun", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return message.data.upper()
async def main():
    async with redpoll.Node(gated, port=0) as node:
        print(node.address, flush=True)
        await node.serve_forever()
redpoll.run(main())
"""


def told(running: Running, text: str) -> None:
    """Wait until a command has said something on standard error."""
    until(lambda: text in " ".join(running.errors.split()), text)


@contextmanager
def gated(folder: Path) -> Iterator[Running]:
    """A node in a process of its own; the end of its standard input lets all go on."""
    process = subprocess.Popen(
        [sys.executable, "-c", GATED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    )
    with process:
        node = Running(process, folder / "none")
        try:
            node.address = node.line().decode().strip()
            yield node
        finally:
            process.kill()


@SIGNALS
def test_request_prints_the_answer_that_it_waits_for(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """A request that is being worked on is not thrown away: its answer is printed, and the exit code is 0."""
    with gated(tmp_path) as node, started(tmp_path, "request", node.address, "ping") as request:
        assert node.line() == b"begun\n"
        request.process.send_signal(number)
        node.close_input()
        assert request.wait() == 0
        assert request.rest() == b"PING\n"
        node.process.kill()
        assert node.rest() == b"", "it was begun once"


@SIGNALS
def test_request_that_was_not_sent_ends_at_once(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Toward who says nothing nothing was begun: the exit code is that of the signal."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with started(tmp_path, "request", address, "ping", "--timeout", "none") as request:
            with server.accept()[0]:
                assert request.end(number) == code
            assert request.rest() == b""


@SIGNALS
def test_send_waits_for_what_is_on_its_way(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Lines that a listener works on are confirmed when it is done, each is handled once, and the others were not sent."""
    with gated(tmp_path) as node, started(tmp_path, "send", node.address, "--lines", "--timeout", "none") as sender:
        sender.write(b"a line\n" * 200 + b"hal")
        assert node.line() == b"begun\n"
        sender.process.send_signal(number)
        node.close_input()
        assert sender.wait() == code
        node.process.kill()
        handled = 1 + node.rest().count(b"begun\n")
        assert f"stopped before line {handled + 1}; {handled} line" in sender.errors


@SIGNALS
def test_send_names_what_is_not_confirmed(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """Stopped, it says that it waits for a frozen node; asked again, it names the first line that is open, and ends."""
    with gated(tmp_path) as node, started(tmp_path, "send", node.address, "--lines", "--timeout", "none") as sender:
        sender.write(b"one\n")
        assert node.line() == b"begun\n"
        node.write(b"\n")
        sender.write(b"two\n")
        assert node.line() == b"begun\n"
        node.process.send_signal(signal.SIGSTOP)
        sender.process.send_signal(number)
        told(sender, f"waiting for {node.address}, which has 1 line to confirm; Ctrl-C again waits no longer")
        assert sender.end(number) == code
        told(
            sender,
            'error: line 2 "two" is not confirmed: interrupted when it was on its way; 1 line before it confirmed',
        )
        told(sender, "hint: it may have been handled")


def test_send_names_what_was_not_sent(tmp_path: Path) -> None:
    """Toward who says nothing it says that there is no link; asked again, it names the first message, which was not sent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with started(tmp_path, "send", address, "hi", "--timeout", "none") as sender, server.accept()[0]:
            sender.process.send_signal(signal.SIGINT)
            told(
                sender,
                f"waiting for {address}, to which there is no link, which has 1 message to confirm; Ctrl-C again",
            )
            assert sender.end(signal.SIGINT) == 130
            told(sender, 'error: message 1 "hi" is not confirmed: interrupted before it was sent; 0 messages before it')


@SIGNALS
def test_echo_is_replaced_under_load(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """One that is stopped answers what it began, its successor the rest, each once, and who asks sees no error."""
    asyncio.run(ask_two(tmp_path, number))


async def ask_two(folder: Path, number: signal.Signals) -> None:
    """Ask at one address all the time while the echo there is stopped and another started."""
    port = free_port()
    total = 2_000
    async with Node(listen=False) as client:
        with serving(folder, "echo", str(port), "--json") as first:
            asked: list[asyncio.Future[Any]] = []
            for each in range(total // 2):
                asked.append(client.request(Message(b"%d" % each, first.address), timeout=PATIENCE))
                if each % 50 == 49:
                    await asked[each // 2]
            first.process.send_signal(number)
            asked += [
                client.request(Message(b"%d" % each, first.address), timeout=PATIENCE)
                for each in range(total // 2, total)
            ]
            assert await asyncio.to_thread(first.wait) == 0
            done = first.event()["messages"]
        with serving(folder, "echo", str(port), "--json") as second:
            answers = await asyncio.gather(*asked)
            assert await asyncio.to_thread(second.end, number) == 0
            done_later = second.event()["messages"]
    assert [int(answer.data) for answer in answers] == list(range(total))
    assert done + done_later == total
    assert done >= total // 4

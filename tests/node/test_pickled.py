"""Python's objects between nodes, and what a large array costs there in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from redpoll import HandlerFailed, Undecodable
from redpoll.serializers import PickleSerializer, pickle
from tests.cli.support import environment
from tests.node.support import Inbox, make, to, within
from tests.ports import free_port

MIB = 1024 * 1024


class Job:
    def __init__(self, size: int) -> None:
        self.size = size


@pytest.mark.asyncio
@pytest.mark.parametrize("serializer", ["pickle", pickle])
@pytest.mark.parametrize("acknowledge", [True, False])
@pytest.mark.parametrize("count", [5, 50_000, 1_000_000])
async def test_arrays_go_and_come(serializer: Any, acknowledge: bool, count: int) -> None:
    """An array arrives as it is, small, in one frame and in fragments, and its answer too; it may be written to."""
    inbox: list[Any] = []
    value = {"when": datetime.now(UTC), "array": np.arange(count, dtype="f8"), "bytes": bytes(count)}

    def handler(message: Any) -> Any:
        inbox.append(message.data)
        return message.data["array"]

    async with make(handler, serializer=serializer) as server, make(serializer=serializer) as client:
        await within(client.send(to(server, value), acknowledge=acknowledge))
        answer = await within(client.request(to(server, value)))
        assert (answer.data == value["array"]).all()
        answer.data[0] = 5
        for found in inbox:
            assert (found["array"] == value["array"]).all()
            assert (found["when"], found["bytes"]) == (value["when"], value["bytes"])


@pytest.mark.asyncio
async def test_what_is_not_let_in_is_refused_to_the_sender() -> None:
    """The sender learns which class was refused and what would let it in; the node goes on."""
    inbox = Inbox()
    async with make(inbox, serializer="pickle") as server, make(serializer="pickle") as client:
        with pytest.raises(Undecodable, match=r'test_pickled\.Job is not allowed \(pickle\(allow=\["'):
            await within(client.send(to(server, Job(5))))
        await within(client.send(to(server, "next")))
    async with make(lambda message: message.data.size, serializer=PickleSerializer([Job])) as server:
        async with make(serializer="pickle") as client:
            assert (await within(client.request(to(server, Job(5))))).data == 5


@pytest.mark.asyncio
async def test_an_answer_that_cannot_be_pickled() -> None:
    """A handler that returns what cannot be pickled has failed."""
    async with make(lambda message: (each for each in "a"), serializer="pickle") as server:
        async with make(serializer="pickle") as client:
            with pytest.raises(HandlerFailed, match="EncodeError: pickle cannot encode"):
                await within(client.request(to(server, 1)))


#: One end in a process of its own: it writes by how many bytes its memory grew at most while the array was on its way.
END = """
import asyncio, json, pathlib, sys, numpy
from redpoll import Message, Node

port, size = int(sys.argv[2]), int(sys.argv[3])
options = dict(serializer="pickle", max_message_size=2 * size, timeout=60.0)

def memory(field):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024

def begin():
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    return memory("VmRSS:")

async def receive():
    async with Node(port=port, **options) as node:
        print("ready", flush=True)
        async with node.take(60) as message:
            assert message.data.nbytes == 1000
        before = begin()
        async with node.take(60) as message:
            assert message.data.nbytes == size
            assert message.data[-1] == 7
        print(json.dumps(memory("VmHWM:") - before), flush=True)

async def send():
    array = numpy.full(size, 7, "u1")
    async with Node(**options) as node:
        await node.send(Message(array[:1000], f"127.0.0.1:{port}"))
        before = begin()
        await node.send(Message(array, f"127.0.0.1:{port}"))
        print(json.dumps(memory("VmHWM:") - before), flush=True)

asyncio.run({"receive": receive, "send": send}[sys.argv[1]]())
"""


def test_a_large_array_is_held_once_at_either_end() -> None:
    """Beside an array of 256 MiB its sender takes next to nothing, and its receiver just its size."""
    size = 256 * MIB
    port = free_port()
    program = [sys.executable, "-c", END]
    arguments = [str(port), str(size)]
    with subprocess.Popen([*program, "receive", *arguments], stdout=subprocess.PIPE, env=environment()) as receiver:
        assert receiver.stdout is not None
        try:
            assert receiver.stdout.readline() == b"ready\n"
            sent = subprocess.run([*program, "send", *arguments], capture_output=True, env=environment())
            assert sent.returncode == 0, sent.stderr
            received = json.loads(receiver.stdout.readline())
        finally:
            receiver.kill()
    assert json.loads(sent.stdout) < 2 * MIB
    assert received < 1.05 * size

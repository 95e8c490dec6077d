"""Where `listen` writes."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from redpoll.cli.sink import Sink
from redpoll.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio


async def test_what_is_written_is_there_at_once(tmp_path: Path) -> None:
    """When `write` returns, the file has the bytes."""
    async with Sink(str(tmp_path / "a")) as sink:
        for number in range(3):
            await sink.write(b"%d" % number)
            assert (tmp_path / "a").stat().st_size == number + 1
    assert (tmp_path / "a").read_bytes() == b"012"


async def test_a_file_is_emptied_on_entering_only(tmp_path: Path) -> None:
    """The content of a file is kept until the sink is entered."""
    (tmp_path / "a").write_bytes(b"old")
    sink = Sink(str(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == b"old"
    async with sink:
        assert (tmp_path / "a").read_bytes() == b""
        await sink.write(b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


async def test_a_pipe_is_written_beside_the_loop(tmp_path: Path) -> None:
    """A write to a pipe that is full waits without holding up the loop."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with Sink(str(tmp_path / "pipe")) as sink:
            writing = asyncio.ensure_future(sink.write(b"x" * 1_000_000))
            read = 0
            while read < 1_000_000:
                await asyncio.sleep(0)
                try:
                    read += len(os.read(reader, 65_536))
                except BlockingIOError:
                    continue
            await writing
    finally:
        os.close(reader)


@pytest.mark.parametrize("name", ["no/such/file", "/", "nul\0byte"])
async def test_what_cannot_be_written_is_told_at_once(name: str) -> None:
    """A file that cannot be opened is a usage error before anything is received."""
    with pytest.raises(UsageError, match="cannot write"):
        Sink(name)

"""What `send` reads."""

from __future__ import annotations

import os
from contextlib import aclosing
from pathlib import Path

import pytest

from redpoll.address import Address
from redpoll.cli.runtime import Stop
from redpoll.cli.source import NO_NEWLINE, InputError, Source
from redpoll.errors import MessageTooLarge, UsageError

pytestmark = pytest.mark.asyncio

PEER = Address.parse("127.0.0.1:2998")


def source(words: list[str], files: list[Path], *, lines: bool = False, limit: int = 1 << 20) -> Source:
    """A source that nobody stops."""
    return Source(words, [str(file) for file in files], lines=lines, limit=limit, stop=Stop())


async def everything(what: Source) -> list[tuple[bytes, bytes]]:
    """Data and header of all its messages."""
    async with aclosing(what.read(PEER)) as messages:
        return [(message.data, message.header) async for message in messages]


async def test_words_come_before_files(tmp_path: Path) -> None:
    """Words are messages, then each file is one; sizes and places are known."""
    (tmp_path / "a").write_bytes(b"x\ny\n")
    what = source(["one", "two"], [tmp_path / "a"])
    assert what.total == 10
    assert await everything(what) == [(b"one", b""), (b"two", b""), (b"x\ny\n", b"")]
    assert (what.messages, what.bytes, what.finished, what.error) == (3, 10, True, None)
    assert [what.place(index) for index in range(3)] == ["message 1", "message 2", f"file {tmp_path / 'a'}"]


async def test_lines_know_their_file_and_number(tmp_path: Path) -> None:
    """A line is named by its number in its own file, also behind an empty file; one without a newline is marked."""
    for name, content in (("a", b"1\n2\n"), ("b", b""), ("c", b"3\n4")):
        (tmp_path / name).write_bytes(content)
    what = source([], [tmp_path / "a", tmp_path / "b", tmp_path / "c"], lines=True)
    assert await everything(what) == [(b"1", b""), (b"2", b""), (b"3", b""), (b"4", NO_NEWLINE)]
    assert what.bytes == what.total == 7
    assert what.place(1) == f"line 2 of {tmp_path / 'a'}"
    assert what.place(2) == f"line 1 of {tmp_path / 'c'}"
    assert str(what.place(3)) == f"line 2 of {tmp_path / 'c'}"


async def test_a_line_over_the_limit_ends_it(tmp_path: Path) -> None:
    """A line that would be too large for a message is an error in its place; those before it are handed out."""
    (tmp_path / "a").write_bytes(b"1\n" + b"x" * 200_000 + b"\n")
    what = source([], [tmp_path / "a"], lines=True, limit=100_000)
    assert await everything(what) == [(b"1", b"")]
    assert isinstance(what.error, MessageTooLarge)
    assert not what.finished
    assert what.place(what.messages) == f"line 2 of {tmp_path / 'a'}"


async def test_a_file_over_the_limit_is_not_read_whole(tmp_path: Path) -> None:
    """A file that is too large for a message is an error; an endless one ends at the limit."""
    what = source([], [Path("/dev/zero")], limit=100_000)
    assert what.total is None
    assert await everything(what) == []
    assert isinstance(what.error, MessageTooLarge)


async def test_a_file_that_vanishes_is_an_error(tmp_path: Path) -> None:
    """A file that is gone when its turn comes ends the messages; what came before it is handed out."""
    (tmp_path / "a").write_bytes(b"1")
    what = source(["one"], [tmp_path / "a"])
    (tmp_path / "a").unlink()
    assert await everything(what) == [(b"one", b"")]
    assert isinstance(what.error, InputError)
    assert "No such file" in str(what.error)
    assert not what.finished


@pytest.mark.parametrize("name", ["no/such/file", "/", "nul\0byte"])
async def test_files_are_looked_at_before_anything_is_sent(name: str) -> None:
    """A file that cannot be read is a usage error at once."""
    with pytest.raises(UsageError, match="cannot read"):
        source([], [Path(name)])


async def test_a_stop_ends_it_between_messages(tmp_path: Path) -> None:
    """After a stop no message is handed out, and it is not called finished."""
    (tmp_path / "a").write_bytes(b"1\n2\n3\n")
    stop = Stop()
    what = Source([], [str(tmp_path / "a")], lines=True, limit=100, stop=stop)
    seen = []
    async with aclosing(what.read(PEER)) as messages:
        async for message in messages:
            seen.append(message.data)
            if len(seen) == 2:
                stop.set()
    assert seen == [b"1", b"2"]
    assert (what.messages, what.finished) == (2, False)
    assert what.place(2) == f"line 3 of {tmp_path / 'a'}"


async def test_a_stop_ends_the_wait_for_a_pipe(tmp_path: Path) -> None:
    """A stop while a pipe is waited for ends it, and half a line is not handed out."""
    stop = Stop()
    os.mkfifo(tmp_path / "pipe")
    keeper = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        os.write(keeper, b"1\nhal")
        what = Source([], [str(tmp_path / "pipe")], lines=True, limit=100, stop=stop)
        assert what.total is None
        seen = []
        async with aclosing(what.read(PEER)) as messages:
            async for message in messages:
                seen.append(message.data)
                stop.set()
        assert seen == [b"1"]
        assert not what.finished
        os.write(keeper, b"f")  # the thread that still reads may end
    finally:
        os.close(keeper)

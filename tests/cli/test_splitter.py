"""Lines out of chunks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redpoll.cli.source import LineSplitter


def split(chunks: list[bytes]) -> tuple[list[bytes], bytes | None]:
    """The lines of some chunks, and the rest."""
    splitter = LineSplitter()
    found = [line for chunk in chunks for line in splitter.feed(chunk)]
    return found, splitter.end()


@given(st.lists(st.binary(max_size=5) | st.sampled_from([b"\n", b"\r\n", b"a\nb", b"\n\n"])))
def test_no_byte_is_lost_or_moved_however_the_chunks_fall(chunks: list[bytes]) -> None:
    """Lines with their newlines, and the rest, are the input, and no line has a newline in it."""
    lines, rest = split(chunks)
    assert b"".join(line + b"\n" for line in lines) + (rest or b"") == b"".join(chunks)
    assert not any(b"\n" in line for line in [*lines, rest or b""])
    assert rest != b""


@given(st.lists(st.sampled_from([b"ab", b"\n", b"c\n"])))
def test_the_same_lines_byte_by_byte(chunks: list[bytes]) -> None:
    """Whole, in chunks and byte by byte give the same lines."""
    whole = b"".join(chunks)
    assert split(chunks) == split([whole]) == split([whole[i : i + 1] for i in range(len(whole))])


def test_what_is_held_is_the_unfinished_line() -> None:
    """`held` counts the bytes after the last newline, and nothing after the end."""
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntw") == [b"one"]
    assert splitter.held == 2
    assert splitter.feed(b"o") == []
    assert splitter.held == 3
    assert splitter.end() == b"two"
    assert splitter.held == 0
    assert splitter.end() is None

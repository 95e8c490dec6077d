"""The progress bar; what it looks like on a terminal is in test_send."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from redpoll.address import Address
from redpoll.cli.output import Output
from redpoll.cli.runtime import Stop
from redpoll.cli.send import progress
from redpoll.cli.source import Source

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.asyncio


def sources(tmp_path: Path) -> Source:
    """Three lines."""
    (tmp_path / "a").write_bytes(b"1\n2\n3\n")
    return Source([], [str(tmp_path / "a")], lines=True, limit=100, stop=Stop())


async def test_it_counts_on_a_terminal(tmp_path: Path) -> None:
    """On a terminal it shows how many are handed out, and ends with its block, also by an error."""
    stream = io.StringIO()
    output = Output()
    output.console = Console(file=stream, force_terminal=True, width=80)
    source = sources(tmp_path)

    async def fail() -> None:
        async with progress(source, output, "line"):
            async for _ in source.read(Address.parse("127.0.0.1:1")):
                pass
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    assert "sending" in stream.getvalue()


async def test_it_is_silent_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal nothing is printed."""
    async with progress(sources(tmp_path), Output(), "line"):
        pass
    assert capsys.readouterr() == ("", "")

"""Ports that tests are given."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest

from tests import ports


def test_runs_beside_each_other_have_blocks_of_their_own() -> None:
    """Six runs of eight workers find a block each, whatever their names are."""
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(ports.claim(f"run {number // 8}", number % 8)) for number in range(48)]
        firsts = sorted(each.getsockname()[1] for each in bound)
        assert all(after - before >= ports.BLOCK for before, after in itertools.pairwise(firsts))
        assert set(firsts) <= set(ports.blocks())


@pytest.mark.parametrize(("low", "high"), [(32_768, 60_999), (49_152, 65_535), (16_384, 40_000), (1_024, 30_000)])
def test_none_that_the_system_gives_out(low: int, high: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks lie beside the range that the system gives out by itself, where there is more room."""
    told = tmp_path / "range"
    told.write_text(f"{low}\t{high}\n")
    monkeypatch.setattr(ports, "_GIVEN_OUT", told)
    blocks = ports.blocks()
    assert len(blocks) >= 100
    assert all(first + ports.BLOCK <= low or high < first for first in blocks)
    assert blocks[-1] + ports.BLOCK <= 65_536


def test_a_free_port_is_of_the_block() -> None:
    """Ports are those of the block of this process, each another one."""
    found = [ports.free_port() for _ in range(20)]
    assert len(set(found)) == 20
    assert max(found) - min(found) < ports.BLOCK

"""What the two measurements share when they do all by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from redpoll.cli.bench.figures import Compared, Throughput
from redpoll.cli.bench.runs import Work, sizes_of
from tests.cli.support import refuse


async def nothing(*arguments: object) -> Throughput:
    """Measures nothing."""
    return Throughput(1, 1, 1.0)


WORK = Work("throughput", 1_000_000, {16: (2.0, 1.0)}, nothing, nothing, lambda *_: [], lambda *_: [])


def test_sizes_are_read_in_order() -> None:
    """Sizes are numbers with commas between, spaces or not."""
    assert sizes_of("65536, 1,7") == [65536, 1, 7]


def test_a_chart_that_cannot_be_made_is_told_first(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The folder of the chart is checked before anything is measured."""
    (tmp_path / "file").touch()
    code, out, err = refuse(capfd, "bench", "thr", "--sizes", "1", "--plot", str(tmp_path / "file"))
    assert (code, out) == (2, "")
    assert "--plot" in err


def test_a_size_has_about_a_gibibyte() -> None:
    """Where nobody says how many, it is a million of small messages, and of larger ones as many as make 1 GiB."""
    assert [WORK.count(size) for size in (1, 256, 4096, 65536, 64 << 20)] == [1_000_000, 1_000_000, 262_144, 16_384, 16]


def test_figures_stand_beside_raw_tcp_and_the_seed() -> None:
    """The record of a size has both others, or null."""
    found = Throughput(16, 100, 1.0)
    assert WORK.record(Compared(found, found)) == {
        **found.record(),
        "raw": found.record(),
        "seed": {"cpp": 2.0, "python": 1.0},
    }
    record = WORK.record(Compared(Throughput(7, 100, 1.0)))
    assert (record["raw"], record["seed"]) == (None, None)

"""The charts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from redpoll.cli.bench import figures
from redpoll.cli.bench.figures import Compared, Latency, Throughput
from redpoll.cli.bench.tables import check_plot, save_latency, save_throughput
from redpoll.errors import UsageError

LATENCIES = [
    Compared(Latency(size, 1, 1e-5, 1e-5, 1e-5, 1e-5), Latency(size, 1, 9e-6, 9e-6, 9e-6, 9e-6))
    for size in figures.SEED_SIZES
]
THROUGHPUTS = [Compared(Throughput(size, 10**6, 1.0), Throughput(size, 10**7, 1.0)) for size in figures.SEED_SIZES]


def is_png(path: Path) -> bool:
    """Whether a file begins as PNG files do."""
    return path.read_bytes().startswith(b"\x89PNG\r\n")


def test_latency_has_every_line(tmp_path: Path) -> None:
    """The chart of latencies is a PNG and an SVG that names the seed's two columns, its halved one, raw TCP and redpoll."""
    png, svg = save_latency(tmp_path, LATENCIES)
    assert (png.name, svg.name) == ("latency.png", "latency.svg")
    assert is_png(png)
    text = svg.read_text()
    for label in ("C++, 2008", "as printed (there and back)", "one way (half of it)", "raw TCP", "redpoll", "4,096 B"):
        assert label in text


def test_throughput_has_every_line(tmp_path: Path) -> None:
    """The chart of throughputs is a PNG and an SVG that names the seed's two columns, raw TCP and redpoll."""
    png, svg = save_throughput(tmp_path, THROUGHPUTS)
    assert (png.name, svg.name) == ("throughput.png", "throughput.svg")
    assert is_png(png)
    text = svg.read_text()
    for label in ("C++, 2008", "Python, 2008", "raw TCP", "redpoll", "messages a second"):
        assert label in text


def test_the_same_figures_make_the_same_file(tmp_path: Path) -> None:
    """Nothing in a chart depends on when it was made, so that a change of it is a change of figures."""
    (tmp_path / "again").mkdir()
    for first, again in zip(
        save_latency(tmp_path, LATENCIES), save_latency(tmp_path / "again", LATENCIES), strict=True
    ):
        assert first.read_bytes() == again.read_bytes()


def test_raw_tcp_may_be_missing(tmp_path: Path) -> None:
    """Without raw TCP the chart has no line for it."""
    svg = save_throughput(tmp_path, [Compared(each.wiring) for each in THROUGHPUTS])[1]
    assert "raw TCP" not in svg.read_text()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without matplotlib it is an error that names the extra, before anything is measured."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    with pytest.raises(UsageError, match="extra `plot`") as caught:
        check_plot(tmp_path)
    assert caught.value.hint == "pip install 'redpoll[plot]'"


def test_a_folder_is_made(tmp_path: Path) -> None:
    """A folder that is not there is made; one that cannot be made is an error."""
    check_plot(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot make"):
        check_plot(tmp_path / "file" / "below")

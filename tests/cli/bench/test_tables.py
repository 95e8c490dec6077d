"""The tables, as they are printed."""

from __future__ import annotations

import io

from rich.console import Console

from redpoll.cli.bench.figures import Compared, Latency, Throughput
from redpoll.cli.bench.tables import latency_tables, throughput_tables


def printed(*tables: object) -> str:
    """What a console of 80 columns without colours and letters beyond ASCII shows."""
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console(file=file, width=80, no_color=True, highlight=False)
    for each in tables:
        console.print(each)
    file.seek(0)
    text = file.read()
    assert max(map(len, text.splitlines())) <= 80
    return text


def row(text: str, size: str, which: int = 0) -> list[str]:
    """The cells behind a size, in the first table or a later one."""
    lines = [line.replace("|", " ").strip() for line in text.splitlines()]
    return [line.removeprefix(size).split() for line in lines if line.startswith(f"{size} ")][which]


def latencies(*results: Compared[Latency]) -> str:
    """Both tables of latencies."""
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    return printed(*latency_tables("a heading", results, console))


def test_latency_is_told_one_way_and_there_and_back() -> None:
    """Each size has a row in both tables: percentiles, raw TCP, and both columns of the seed for that table."""
    ours = Latency(1, 100, 66e-6, 80e-6, 100e-6, 2.5e-3)
    text = latencies(Compared(ours, Latency(1, 100, 52e-6, 60e-6, 70e-6, 1e-3)))
    assert text.startswith("a heading")
    assert row(text, "1 B") == ["33.0", "40.0", "50.0", "1,250.0", "26.0", "32.7", "34.9"]
    assert row(text, "1 B", 1) == ["66.0", "80.0", "100.0", "2,500.0", "52.0", "65.4", "69.8"]


def test_it_is_said_that_the_seeds_python_column_was_there_and_back() -> None:
    """Below the tables stands where the seed's columns come from, and which of them are halved or doubled."""
    text = " ".join(latencies(Compared(Latency(1, 1, 1e-6, 1e-6, 1e-6, 1e-6))).split())
    assert "It printed C++ one way and Python there and back" in text
    assert "here Python one way is half of that, and C++ there and back is twice that" in text
    assert "Xeon E5440, 2008" in text


def test_what_is_not_there_is_a_dash() -> None:
    """A size that the seed does not have, and raw TCP that was not measured, leave dashes."""
    text = latencies(Compared(Latency(7, 1, 2e-6, 2e-6, 2e-6, 2e-6)))
    assert row(text, "7 B") == ["1.0", "1.0", "1.0", "1.0", "-", "-", "-"]
    text = printed(*throughput_tables("", [Compared(Throughput(7, 10, 1.0))], Console()))
    assert row(text, "7 B") == ["10", "0.0", "-", "-", "-", "-"]


def test_throughput_is_told_in_messages_and_bits() -> None:
    """Each size has a row: messages and megabits a second, the same of raw TCP, and the seed's two columns."""
    found = Compared(Throughput(65536, 30_000, 1.0), Throughput(65536, 60_000, 1.0))
    text = printed(*throughput_tables("a heading", [found], Console()))
    assert row(text, "65,536 B") == ["30,000", "15,728.6", "60,000", "31,457.3", "1,810", "1,809"]
    assert "Mbit/s: of the messages' own bytes" in " ".join(text.split())

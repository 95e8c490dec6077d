"""Times in the notation of cron."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll.bus.broker.cron import next_time
from redpoll.errors import ConfigError


def at(text: str) -> float:
    """Seconds since 1970 of a time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("cron", "after", "then"),
    [
        ("* * * * *", "2026-11-24 08:00:59", "2026-11-24 08:01"),
        ("0 3 * * *", "2026-11-24 02:59", "2026-11-24 03:00"),
        ("0 3 * * *", "2026-11-24 03:00", "2026-11-25 03:00"),
        ("*/15 8-9 * * *", "2026-11-24 09:45", "2026-11-25 08:00"),
        ("5,50 * * * *", "2026-11-24 08:06", "2026-11-24 08:50"),
        ("30 10 * * *", "2026-11-24 09:45", "2026-11-24 10:30"),
        ("0 0 31 * *", "2026-11-24 00:00", "2026-12-31 00:00"),
        ("0 0 29 2 *", "2026-11-24 00:00", "2028-02-29 00:00"),
        ("0 0 29 2 *", "2096-03-01 00:00", "2104-02-29 00:00"),
        ("0 12 * * 0", "2026-11-24 00:00", "2026-11-29 12:00"),
        ("0 12 * * 7", "2026-11-24 00:00", "2026-11-29 12:00"),
        ("0 12 * * 1-5", "2026-11-27 12:00", "2026-11-30 12:00"),
        ("0 0 1 * 5", "2026-11-24 00:00", "2026-11-27 00:00"),
        ("0 0 1 1 *", "2026-11-24 00:00", "2027-01-01 00:00"),
        ("0 0-20/10 * * *", "2026-11-24 10:00", "2026-11-24 20:00"),
        ("5/20 * * * *", "2026-11-24 10:05", "2026-11-24 10:25"),
        ("5/20 * * * *", "2026-11-24 10:45", "2026-11-24 11:05"),
        ("0 0 * 10/2 *", "2026-11-24 00:00", "2026-12-01 00:00"),
    ],
)
def test_the_next_time(cron: str, after: str, then: str) -> None:
    """It is the first minute after a time that all fields match; of two limited days either is enough."""
    assert next_time(cron, at(after)) == at(then)


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "* * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "a * * * *",
        "5-1 * * * *",
        "60/2 * * * *",
        "5/ * * * *",
        "/5 * * * *",
        "5-/2 * * * *",
        "0 0 0 * * *",
    ],
)
def test_what_cannot_be_read(cron: str) -> None:
    """What is no such notation is refused."""
    with pytest.raises(ConfigError, match="cron"):
        next_time(cron, 0.0)


@pytest.mark.parametrize("cron", ["*/0 * * * *", "0 0 30 2 *", "*-3 * * * *"])
def test_what_never_comes(cron: str) -> None:
    """A time that there is not is refused too."""
    with pytest.raises(ConfigError):
        next_time(cron, 0.0)


@pytest.mark.parametrize(
    ("cron", "after", "times"),
    [
        # In spring 02:00 is 03:00, in autumn 03:00 is 02:00 again.
        ("30 2 * * *", "2026-03-28T12:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        ("0 3 * * *", "2026-03-28T12:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T03:00+02:00"]),
        ("30 2 * * *", "2026-10-24T12:00+02:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        (
            "0 * * * *",
            "2026-10-25T01:30+02:00",
            ["2026-10-25T02:00+02:00", "2026-10-25T02:00+01:00", "2026-10-25T03:00+01:00"],
        ),
        ("0 0 L * SUN", "2026-11-24T00:00+01:00", ["2026-11-29T00:00+01:00", "2026-11-30T00:00+01:00"]),
    ],
)
def test_time_zones(cron: str, after: str, times: list[str]) -> None:
    """Times are those of the zone; one that the clocks skip is the end of the gap, and one that comes twice is used once."""
    found = [datetime.fromisoformat(after).timestamp()]
    for _ in times:
        found.append(next_time(cron, found[-1], "Europe/Berlin"))
    assert found[1:] == [datetime.fromisoformat(each).timestamp() for each in times]


@pytest.mark.parametrize("zone", ["", "Nowhere/Town", "../etc/passwd", "/etc/localtime", 3])
def test_zones_that_are_none(zone: Any) -> None:
    """Unknown names of zones are refused."""
    with pytest.raises(ConfigError, match="zone"):
        next_time("0 3 * * *", 0.0, zone)


@given(st.floats(0, 4e9), st.integers(0, 59), st.integers(0, 23))
def test_daily(after: float, minute: int, hour: int) -> None:
    """A daily time comes within a day, at its minute."""
    found = next_time(f"{minute} {hour} * * *", after)
    assert 0 < found - after <= 86_400
    when = datetime.fromtimestamp(found, UTC)
    assert (when.hour, when.minute, when.second) == (hour, minute, 0)

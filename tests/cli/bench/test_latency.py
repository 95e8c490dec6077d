"""`redpoll bench lat`, as its users run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.bench.support import Started, end_all
from tests.cli.support import refuse, run, serving

HERE = "127.0.0.1"


@pytest.mark.parametrize("first", ["local", "remote"])
def test_the_programs_may_be_started_in_any_order(tmp_path: Path, first: str) -> None:
    """Whichever is started first waits for the other; both end with 0, and the local one tells the time."""
    with serving(tmp_path, "directory", "--port", "0", "--json") as directory:
        arguments = {
            "remote": ["lat", "remote", directory.address, HERE, HERE, "16", "30"],
            "local": ["lat", "local", directory.address, "16", "30"],
        }
        order = [first, *(role for role in arguments if role != first)]
        ends = dict(zip(order, end_all(*(Started(*arguments[role]) for role in order)), strict=True))
    code, events, told = ends["local"]
    assert code == 0, told
    (event,) = events
    assert (event["event"], event["size"], event["count"]) == ("latency", 16, 30)
    assert event["round_trip"]["p50"] == pytest.approx(2 * event["one_way"]["p50"], abs=2e-9)
    code, events, told = ends["remote"]
    assert code == 0, told
    assert [event["event"] for event in events] == ["ready", "done"]
    assert events[0]["queue"] == events[0]["exchange"]
    assert events[1]["messages"] == 30


def test_queue_and_exchange_may_have_interfaces_of_their_own(tmp_path: Path) -> None:
    """With two interfaces what comes in is reached at the first, what goes out at the second."""
    with serving(tmp_path, "directory", "--port", "0", "--json") as directory:
        remote = Started("lat", "remote", directory.address, HERE, "[::1]", "1", "5")
        (code, events, told), (local_code, _, local_told) = end_all(
            remote, Started("lat", "local", directory.address, "1", "5")
        )
    assert (code, local_code) == (0, 0), told + local_told
    assert events[0]["queue"].startswith(f"{HERE}:")
    assert events[0]["exchange"].startswith("[::1]:")


def test_programs_of_different_sizes_do_not_measure(tmp_path: Path) -> None:
    """A remote program that gets messages of another size ends with 1 and says so; the local one does not wait for ever."""
    with serving(tmp_path, "directory", "--port", "0", "--json") as directory:
        remote = Started("lat", "remote", directory.address, HERE, HERE, "16", "5")
        local = Started("lat", "local", directory.address, "1", "5", "--wait", "5")
        (code, events, told), (local_code, _, local_told) = end_all(remote, local)
    assert code == 1
    assert events[-1]["kind"] == "OtherSizeError"
    assert "a message of 1 B came from the other program, not of 16 B" in told
    assert local_code == 1
    assert "nothing came from the other program" in local_told


def test_a_partner_that_never_comes_is_told(tmp_path: Path) -> None:
    """A local program alone gives up when it has waited, with 1 and the name that nobody has."""
    with serving(tmp_path, "directory", "--port", "0", "--json") as directory:
        ((code, _, told),) = end_all(Started("lat", "local", directory.address, "1", "5", "--wait", "0.5"))
    assert code == 1
    assert "QG" in told


def test_it_does_all_by_itself() -> None:
    """Alone it prints both tables in 80 columns, with raw TCP and the seed's columns beside, and exits with 0."""
    done = run("bench", "lat", "--sizes", "1,7", "--count", "20")
    assert done.returncode == 0, done.stderr
    text = done.stdout.decode()
    for word in ("one way", "there and back", "p50", "p90", "p99", "max", "raw TCP", "C++", "Python", "69.8", "7 B"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80
    assert done.stderr == b""


def test_it_is_told_as_json(tmp_path: Path) -> None:
    """With --json there is an object for each size, with raw TCP and what the seed has of it, and one for each chart."""
    done = run("bench", "lat", "--sizes", "7,16", "--count", "20", "--json", "--plot", str(tmp_path / "charts"))
    assert done.returncode == 0, done.stderr
    seven, sixteen, *charts = map(json.loads, done.stdout.splitlines())
    assert [(each["event"], each["size"], each["count"]) for each in (seven, sixteen)] == [
        ("latency", 7, 20),
        ("latency", 16, 20),
    ]
    assert seven["seed"] is None
    assert sixteen["seed"] == {"cpp": 34.54e-6, "python": 71.8e-6}
    assert sixteen["raw"]["round_trip"]["p50"] > 0
    assert [Path(each["file"]).name for each in charts] == ["latency.png", "latency.svg"]
    assert all(Path(each["file"]).stat().st_size for each in charts)


@pytest.mark.parametrize("sizes", ["", "1,", "0", "-1", "one", "1;2", str(1 << 40)])
def test_what_is_no_size_is_usage(capfd: pytest.CaptureFixture[str], sizes: str) -> None:
    """A size that is none exits with 2, and is quoted."""
    code, out, err = refuse(capfd, "bench", "lat", "--sizes", sizes)
    assert (code, out) == (2, "")
    assert "--sizes" in err


def test_options_of_the_whole_do_not_get_lost(capfd: pytest.CaptureFixture[str]) -> None:
    """An option before the name of a program is an error, for it would mean nothing."""
    code, out, err = refuse(capfd, "bench", "lat", "--json", "local", HERE, "1", "5")
    assert (code, out) == (2, "")
    assert "--json has no meaning before local" in err

"""The benchmarks run, and what they make of their figures is right; no test here looks at a time."""

from __future__ import annotations

import json
import ssl
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.encryption import certificates, context
from benchmarks.latency import percentile
from benchmarks.model import REDPOLL, SOCKETS, Comparison, Contender, Figure, Job, Peer, Row, message_rate
from benchmarks.processes import BenchmarkError, End
from benchmarks.quote import RESULTS, quote
from benchmarks.report import bar_text, value_text
from benchmarks.rounds import Result, Settings, chosen, compare, interpreter, run_row
from benchmarks.rows import ROWS

NONE_IS_GOOD = {"broker", "bytes", "receiver", "sender", "grown", "lost", "bodies", "used"}

JOB = Job("job", 10, {}, warm_up=1)

#: They run net-queue's scripts, which are fetched, or the same program with net-queue: where the session is that has it.
#: The shaped network is made where the sessions run that need root.
ELSEWHERE = {*(name for name in ROWS if name.startswith("nq_")), "wiring_shaped"}

#: They run other libraries on redpoll: tests/compat has them.
ON_REDPOLL = {"celery_loss", "celery_transport", "oslo_simulator"}
ON_AIIDA = {"aiida_calculations"}

#: They run the programs of another row, with other sizes, or as many open at a time: at night.
ALIKE = {
    "acked_1": "acked_64",
    "unacked_64": "acked_64",
    "acked_many": "acked_64",
    "request_64": "request_1",
    "stream_64k": "stream",
    "stream_asyncio": "stream",
    "tls_acked_64": "tls_large",
    "tls_idle_memory": "idle_memory",
    "wiring_throughput": "wiring_asyncio",
    "bus_broadcast": "bus_engine",
    "bus_backlog": "bus_engine",
}

#: Rows of which a few take a second or more of a processor: at night too.
FEW = {
    "aiida_calculations",
    "amqp_failover",
    "app_first_task",
    "celery_loss",
    "comeback",
    "crowd",
    "hub_loss",
    "request_beside_bodies",
    "wiring_fan_out",
}
LONG = {
    *FEW,
    "app_groups",
    "app_idle",
    "app_tasks",
    "strangers",
    "hub_backlog",
    "hub_casts",
    "hub_crowd",
    "hub_rounds",
    "hub_rpc",
    "hub_tasks",
}


def session_of(name: str) -> list[pytest.MarkDecorator]:
    """Return the mark of a row's test, if it runs elsewhere."""
    if name in ELSEWHERE:
        return [pytest.mark.interop]
    if name.startswith("amqp_"):
        return [pytest.mark.broker, pytest.mark.nightly, pytest.mark.timeout(400)]
    return [pytest.mark.nightly] if name in ALIKE or name in LONG else []


EACH_ROW = [pytest.param(name, marks=session_of(name)) for name in ROWS if name not in ON_REDPOLL | ON_AIIDA]


def make_row(contenders: list[Contender], comparisons: list[Comparison]) -> Row:
    return Row("row", "a row", (), contenders, [JOB], {"rate": Figure("rate", 2.0)}, comparisons, message_rate)


def make_result(group: str, rates: list[float], setting: str = "") -> Result:
    peer = REDPOLL if group == "ours" else SOCKETS
    return Result(Contender(peer, setting, group, "sockets"), JOB, [{"rate": rate} for rate in rates])


@pytest.mark.parametrize("name", EACH_ROW)
def test_benchmark_runs_and_reports_every_contender(name: str, tmp_path: Path) -> None:
    """Each benchmark completes with redpoll alone and writes a positive figure for each contender and job."""
    check_row(name, tmp_path)


def check_row(name: str, tmp_path: Path) -> None:
    """Run a benchmark with redpoll alone, and look at what it writes."""
    file = tmp_path / "results.json"

    count = "2" if name in FEW else "20"
    options = ["--only", "redpoll", "--loop", "asyncio", "--rounds", "1", "--count", count, "--json", str(file)]
    assert main([name, *options]) == 0

    (row,) = json.loads(file.read_text())["rows"]
    expected = {
        (contender.name, job.name)
        for contender in ROWS[name].contenders
        if contender.peer is REDPOLL and contender.loop in {"asyncio", None}
        for job in ROWS[name].jobs
    }
    assert expected
    assert {(result["contender"], result["job"]) for result in row["results"]} == expected
    for result in row["results"]:
        assert len(result["rounds"]) == 1
        for figure in ROWS[name].figures:
            # Memory grows by whole pages: for a few connections or messages it may not grow at all.
            assert result["rounds"][0][figure] > 0 or figure in NONE_IS_GOOD


def test_sockets_run_against_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    """A row whose both sides run prints each contender, each round's ratio and the machine."""
    assert main(["large", "--only", "sockets", "--rounds", "2", "--count", "5"]) == 0

    printed = capsys.readouterr().out
    assert "load average" in printed
    assert "sockets blocking" in printed
    assert "medians of 2 rounds" in printed


def test_peers_of_encrypted_rows_run(capsys: pytest.CaptureFixture[str]) -> None:
    """The peers that redpoll's TLS is measured beside have TLS too, and the files of a row reach both their ends."""
    assert main(["tls_large", "--only", "sockets", "--rounds", "1", "--count", "5"]) == 0
    only = ["--only", "asyncio", "--only", "uvloop"]
    assert main(["tls_idle_memory", *only, "--rounds", "1", "--count", "5"]) == 0

    printed = capsys.readouterr().out
    for name in ("sockets blocking", "asyncio bare protocol", "uvloop bare protocol"):
        assert name in printed


def test_raw_tcp_runs_beside_wiring(capsys: pytest.CaptureFixture[str]) -> None:
    """Blocking sockets carry messages in batches, also where the last is not full, and send them back one by one."""
    for name in ("wiring_throughput", "wiring_latency"):
        assert main([name, "--only", "sockets", "--rounds", "1", "--count", "70"]) == 0
    assert capsys.readouterr().out.count("sockets raw TCP") == 10


@pytest.mark.parametrize("server_side", [False, True])
def test_encrypted_ends_want_certificates_of_one_ca(tmp_path: Path, server_side: bool) -> None:
    """An end that is to encrypt checks the other end's certificate; one that is not has no context."""
    made = context({**certificates(tmp_path), "encrypted": True}, server_side=server_side)
    assert made is not None
    assert made.verify_mode is ssl.CERT_REQUIRED
    assert len(made.get_ca_certs()) == 1
    assert context({}, server_side=server_side) is None


def test_rows_of_the_night_are_like_one_of_the_push() -> None:
    """Each row that runs at night has one in the push that starts the same programs."""

    def programs(name: str) -> set[tuple[str, str | None]]:
        return {
            (each.module, each.client_module)
            for each in ROWS[name].contenders
            if each.peer is REDPOLL and each.loop in {"asyncio", None}
        }

    for name, other in ALIKE.items():
        assert not session_of(other)
        assert programs(name) == programs(other), name


def test_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name the command lists all benchmarks and runs none."""
    assert main([]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(ROWS)


def test_unknown_name_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that no benchmark has is an error that lists those there are."""
    assert main(["nothing"]) == 1
    assert "no benchmark is called nothing" in capsys.readouterr().err


def test_every_comparison_names_contenders_jobs_and_figures_of_its_row() -> None:
    """No comparison can be silently left out because it names something that its row does not have."""
    for row in ROWS.values():
        groups = {contender.group for contender in row.contenders}
        for comparison in row.comparisons:
            assert comparison.ours in groups
            assert comparison.theirs is None or comparison.theirs in groups
            assert comparison.job in {job.name for job in row.jobs}
            assert comparison.figure in row.figures


def test_every_contender_has_a_name_of_its_own() -> None:
    """Results are kept by the contender's name, so no two of a row share one."""
    for row in ROWS.values():
        names = [contender.name for contender in row.contenders]
        assert len(names) == len(set(names))


def test_missing_library_names_the_install_command() -> None:
    """A library that is not installed is an error that says how to install it."""
    peer = Peer("absent", "redpoll_no_such_package", "pip install absent")
    row = make_row([Contender(peer, "", "absent", "sockets")], [])
    with pytest.raises(BenchmarkError, match=r"absent is not installed for .*; pip install absent"):
        run_row(row, Settings(), lambda text: None)


def test_a_row_that_cannot_be_run_does_not_keep_the_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its error names it, the rows behind it are run, and the command fails in the end."""
    peer = Peer("absent", "redpoll_no_such_package", "pip install absent")
    monkeypatch.setitem(ROWS, "lacking", make_row([Contender(peer, "", "absent", "sockets")], []))
    assert main(["lacking", "large", "--only", "sockets", "--only", "absent", "--rounds", "1", "--count", "5"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("error: lacking: absent is not installed for ")
    assert "sockets" in printed.out


def test_interpreter_that_cannot_run_is_an_error(tmp_path: Path) -> None:
    """An interpreter that does not exist is an error that names it."""
    row = make_row([Contender(Peer("lib", "lib", "", "libchirp_python"), "", "lib", "sockets")], [])
    with pytest.raises(BenchmarkError, match="cannot run"):
        run_row(row, Settings(libchirp_python=str(tmp_path / "python")), lambda text: None)


def test_libchirp_runs_on_the_interpreter_given_for_it() -> None:
    """Only a library that has an interpreter of its own is run by the one given."""
    settings = Settings(libchirp_python="/a/python")
    assert interpreter(Peer("lib", "lib", "", "libchirp_python"), settings) == "/a/python"
    assert interpreter(REDPOLL, settings) == sys.executable


def test_only_and_loop_choose_contenders() -> None:
    """The settings leave the contenders of the libraries and loops asked for."""
    row = ROWS["request_1"]
    left = chosen(row, Settings(loops=["asyncio"], only=["redpoll"]))
    assert {(each.peer.name, each.loop) for each in left} == {("redpoll", "asyncio")}


def test_dead_end_is_an_error_that_names_it() -> None:
    """An end that dies is reported with its name and exit code, and does not hang the run."""
    with (
        pytest.raises(BenchmarkError, match=r"broken \(server\) ended with exit code [1-9]"),
        End("broken", "no_such_module", "server", {}, sys.executable) as end,
    ):
        end.read()


def test_silent_end_is_an_error() -> None:
    """An end that gives no answer in time is reported, and ended."""

    def read_twice() -> None:
        with End("silent", "sockets", "server", {}, sys.executable) as end:
            end.read()
            end.read(timeout=0.1)

    with pytest.raises(BenchmarkError, match=r"silent \(server\) gave no answer within 0.1 s"):
        read_twice()


def test_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """Each round's figures are divided, and the median of the ratios counts."""
    row = make_row([], [Comparison("ours", "theirs", "job", bar=2.0)])
    (ratio,) = compare(row, [make_result("ours", [10, 30, 20]), make_result("theirs", [10, 10, 5])])
    assert ratio.rounds == [1, 3, 4]
    assert ratio.value == 3
    assert ratio.met is True


def test_best_contender_of_a_group_counts() -> None:
    """Of several settings the better median counts, for redpoll and for the peer alike."""
    row = make_row([], [Comparison("ours", "theirs", "job", bar=2.0)])
    results = [
        make_result("ours", [10, 10, 10], "slow"),
        make_result("ours", [30, 30, 30], "fast"),
        make_result("theirs", [20, 20, 20], "fast"),
        make_result("theirs", [5, 5, 50], "slow"),
    ]
    (ratio,) = compare(row, results)
    assert ratio.theirs is not None
    assert (ratio.ours.contender.setting, ratio.theirs.contender.setting) == ("fast", "fast")
    assert ratio.value == 1.5
    assert ratio.met is False


def test_the_default_loop_counts() -> None:
    """Of redpoll the loop counts that `redpoll.run` picks, also where it is slower; of a peer the better one."""
    row = make_row([], [Comparison("ours", "theirs", "job")])
    results = []
    for group, rates in {"ours": {"asyncio": 40, "uvloop": 20}, "theirs": {"asyncio": 20, "uvloop": 5}}.items():
        for loop, rate in rates.items():
            result = make_result(group, [rate])
            result.contender = replace(result.contender, loop=loop)
            results.append(result)
    (ratio,) = compare(row, results)
    assert ratio.theirs is not None
    assert (ratio.ours.contender.loop, ratio.theirs.contender.loop) == ("uvloop", "asyncio")
    assert ratio.value == 1
    assert compare(row, [results[0], results[2]])[0].value == 2


def test_less_is_better_where_the_comparison_says_so() -> None:
    """Where less is better the smaller median counts, and the bar is an upper one."""
    row = make_row([], [Comparison("ours", "theirs", "job", higher=False, bar=0.5)])
    results = [make_result("ours", [1.0], "low"), make_result("ours", [3.0], "high"), make_result("theirs", [4.0])]
    (ratio,) = compare(row, results)
    assert ratio.value == 0.25
    assert ratio.met is True


def test_figure_without_a_peer_is_compared_as_shown() -> None:
    """A comparison without a peer holds the scaled figure against the bar."""
    row = make_row([], [Comparison("ours", None, "job", higher=False, bar=5)])
    (ratio,) = compare(row, [make_result("ours", [3.0])])
    assert ratio.value == 6.0
    assert ratio.met is False


def test_difference_is_shown_as_the_figure_is() -> None:
    """Where the difference counts it is the median of the rounds' differences, in the units of the figure."""
    row = make_row([], [Comparison("ours", "theirs", "job", higher=False, bar=5, difference=True)])
    (ratio,) = compare(row, [make_result("ours", [5, 9, 2]), make_result("theirs", [4, 4, 4])])
    assert ratio.rounds == [2, 10, -4]
    assert ratio.value == 2
    assert ratio.met is True


def test_difference_has_its_sign_and_bars_have_no_exponent() -> None:
    """A difference is told from a ratio by its sign; a bar in the millions is written out."""
    assert [value_text(2.5, difference=each) for each in (True, False)] == ["+2.50", "2.50"]
    assert value_text(-1500, difference=True) == "-1,500.00"
    assert [bar_text(bar) for bar in (1_332_219, 0.8, 2.0)] == ["1,332,219", "0.8", "2"]


def test_percentile_is_the_nearest_rank() -> None:
    """A percentile is a value that was measured: the smallest that enough of them do not exceed."""
    ordered = list(range(1, 1001))
    assert percentile(ordered, 50) == 500
    assert percentile(ordered, 99) == 990
    assert percentile(ordered, 99.9) == 999
    assert percentile(ordered, 100) == 1000
    assert percentile([7], 99.9) == 7


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.name)
def test_the_documentation_quotes_what_was_measured(file: Path) -> None:
    """Each run in the repository stands in the documentation as it is, and no ratio stands there otherwise."""
    page = (RESULTS.parent.parent / "docs/explanation/measured.md").read_text()
    run = json.loads(file.read_text())
    assert run["rows"]
    assert quote(run) in page

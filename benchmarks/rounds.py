"""Running a row: every contender in turn, round by round, and the ratios of what they did."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.model import DEFAULT_LOOP, REDPOLL, UVLOOP, Comparison, Contender, Figures, Job, Peer, Row
from benchmarks.network import HERE, Network
from benchmarks.processes import BenchmarkError, End
from benchmarks.scripts import ScriptError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.control import Fields


@dataclass(frozen=True)
class Settings:
    """The choice of the command line.

    Attributes:
        rounds: How often every contender runs.
        count: Replaces the count of every job, or None.
        loops: The event loops to run on.
        only: Names of the libraries to run, or none for all.
        libchirp_python: The interpreter that has libchirp, or None for this one.
        netqueue_python: The interpreter that has net-queue, or None for this one.
    """

    rounds: int = 5
    count: int | None = None
    loops: Sequence[str] = ("asyncio", "uvloop")
    only: Sequence[str] = ()
    libchirp_python: str | None = None
    netqueue_python: str | None = None


@dataclass
class Result:
    """The results of one contender in one job, one value a round."""

    contender: Contender
    job: Job
    rounds: list[Figures] = field(default_factory=list)
    pooled: Figures = field(default_factory=dict)

    def values(self, figure: str) -> list[float]:
        """Return `figure` of each round."""
        return [figures[figure] for figures in self.rounds]

    def median(self, figure: str) -> float:
        """Return the median of `figure`, or its value over all rounds together where there is one."""
        return self.pooled[figure] if figure in self.pooled else median(self.values(figure))


@dataclass(frozen=True)
class Ratio:
    """The outcome of one comparison.

    Attributes:
        comparison: What was compared.
        ours: The contender of redpoll that counts.
        theirs: The contender of the peer that counts, if there is one.
        value: The median of the rounds' ratios, or the ratio of the figures over all rounds together; of a comparison by
            difference those, as the figure is shown.
        rounds: Each round's ratio or difference; empty for figures over all rounds together.
    """

    comparison: Comparison
    ours: Result
    theirs: Result | None
    value: float
    rounds: Sequence[float]

    @property
    def met(self) -> bool | None:
        """Whether the bar is reached; None without a bar."""
        bar = self.comparison.bar
        if bar is None:
            return None
        return self.value >= bar if self.comparison.higher else self.value <= bar


def chosen(row: Row, settings: Settings) -> list[Contender]:
    """Return the row's contenders that the settings leave, each of whose libraries is there.

    Raises:
        BenchmarkError: A library is missing; says how to install it.
    """
    left = [
        contender
        for contender in row.contenders
        if (not settings.only or contender.peer.name in settings.only)
        and (contender.loop is None or contender.loop in settings.loops)
    ]
    peers = {contender.peer.name: contender.peer for contender in left}
    if any(contender.loop == "uvloop" for contender in left):
        peers[UVLOOP.name] = UVLOOP
    for peer in peers.values():
        _require(peer, settings)
    return left


def interpreter(peer: Peer, settings: Settings) -> str:
    """Return the interpreter that runs the ends of `peer`."""
    given: str | None = getattr(settings, peer.interpreter) if peer.interpreter else None
    return given or sys.executable


def _require(peer: Peer, settings: Settings) -> None:
    python = interpreter(peer, settings)
    if python == sys.executable:
        there = importlib.util.find_spec(peer.package) is not None
    else:
        try:
            probe = subprocess.run([python, "-c", f"import {peer.package}"], capture_output=True, check=False)
        except OSError as error:
            raise BenchmarkError(f"{peer.name}: cannot run {python}: {error.strerror}") from error
        there = probe.returncode == 0
    if not there:
        raise BenchmarkError(f"{peer.name} is not installed for {python}; {peer.install}")


def run_row(row: Row, settings: Settings, say: Callable[[str], None]) -> list[Result]:
    """Run every contender of `row` in every round and return what each did in each job.

    Every round starts fresh processes, and every second round goes through the contenders backwards, so that
    none is always the one that runs on a machine just warmed up, or just throttled.
    """
    contenders = chosen(row, settings)
    jobs = [job if settings.count is None else scaled(job, settings.count) for job in row.jobs]
    results = {(each.name, job.name): Result(each, job) for each in contenders for job in jobs}
    answers: dict[tuple[str, str], list[Fields]] = {key: [] for key in results}
    place = row.network() if row.network is not None else nullcontext(HERE)
    with TemporaryDirectory(prefix="benchmark-") as folder, place as network:
        try:
            options = row.prepare(Path(folder)) if row.prepare is not None else {}
        except ScriptError as error:
            raise BenchmarkError(str(error)) from error
        for number in range(settings.rounds):
            for contender in contenders if number % 2 == 0 else contenders[::-1]:
                say(f"{row.name}: round {number + 1} of {settings.rounds}, {contender.name}")
                python = interpreter(contender.peer, settings)
                for job, client, server in run_once(contender, jobs, options, python, network):
                    key = contender.name, job.name
                    results[key].rounds.append(row.measure(job, client, server))
                    answers[key].append(client)
    if row.pool is not None:
        for key, result in results.items():
            result.pooled = row.pool(answers[key])
    return list(results.values())


def scaled(job: Job, count: int) -> Job:
    """Return `job` with another count and a warm-up that is no longer than it."""
    return replace(job, count=count, warm_up=min(job.warm_up, count))


def run_once(
    contender: Contender, jobs: Sequence[Job], prepared: Fields, python: str, network: Network
) -> list[tuple[Job, Fields, Fields]]:
    """Start both ends of `contender`, give them every job and return the answers of client and server."""
    done = []
    common = {**prepared, **network.options, **contender.options}
    with ExitStack() as stack:
        given = {**common, **contender.server}
        server = stack.enter_context(End(contender.name, contender.module, "server", given, python, network.server))
        address = server.read()["address"]
        options = {**common, **contender.client, "address": address}
        module = contender.client_module or contender.module
        client = stack.enter_context(End(contender.name, module, "client", options, python, network.client))
        client.read()
        for job in jobs:
            if job.warm_up:
                _one_job(server, client, {**job.fields, "count": job.warm_up, "warm_up": True})
            done.append((job, *_one_job(server, client, {**job.fields, "count": job.count})))
    return done


def _one_job(server: End, client: End, fields: Fields) -> tuple[Fields, Fields]:
    server.write(fields)
    server.read()
    client.write(fields)
    return client.read(), server.read()


def compare(row: Row, results: Sequence[Result]) -> list[Ratio]:
    """Return the ratios of the row's comparisons whose both sides ran."""
    ratios = []
    for comparison in row.comparisons:
        figure = comparison.figure
        ours = _best(results, comparison.ours, comparison)
        if ours is None:
            continue
        if comparison.theirs is None:
            scale = row.figures[figure].scale
            shown = [value * scale for value in ours.values(figure)]
            ratios.append(Ratio(comparison, ours, None, median(shown), shown))
            continue
        theirs = _best(results, comparison.theirs, comparison)
        if theirs is None:
            continue
        if comparison.difference:
            ratios.append(_difference(comparison, ours, theirs, row.figures[figure].scale))
        elif figure in ours.pooled:
            ratios.append(Ratio(comparison, ours, theirs, ours.median(figure) / theirs.median(figure), ()))
        else:
            rounds = [our / their for our, their in zip(ours.values(figure), theirs.values(figure), strict=True)]
            ratios.append(Ratio(comparison, ours, theirs, median(rounds), rounds))
    return ratios


def _difference(comparison: Comparison, ours: Result, theirs: Result, scale: float) -> Ratio:
    figure = comparison.figure
    rounds = [(our - their) * scale for our, their in zip(ours.values(figure), theirs.values(figure), strict=True)]
    return Ratio(comparison, ours, theirs, median(rounds), rounds)


def _best(results: Sequence[Result], group: str, comparison: Comparison) -> Result | None:
    candidates = [each for each in results if each.contender.group == group and each.job.name == comparison.job]
    if not candidates:
        return None
    # Of redpoll the loop that `redpoll.run` picks counts; of a peer the better one.
    candidates = [each for each in candidates if _is_default(each.contender)] or candidates
    pick = max if comparison.higher else min
    return pick(candidates, key=lambda result: result.median(comparison.by or comparison.figure))


def _is_default(contender: Contender) -> bool:
    return contender.peer is REDPOLL and contender.loop == DEFAULT_LOOP

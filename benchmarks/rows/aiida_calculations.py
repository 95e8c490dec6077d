"""Calculations through AiiDA's daemon: its broker for redpoll on a hub, beside its own two."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import AIIDA, REDPOLL, Comparison, Contender, Figure, Figures, Job, Peer, Row


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"seconds": client["finished"] - client["started"], "lost": job.count - client["count"]}


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


def _contender(peer: Peer, backend: str, setting: str, **options: object) -> Contender:
    return Contender(peer, setting, backend, "aiida_calculations", {"backend": backend, **options})


ROW = Row(
    name="aiida_calculations",
    title="AiiDA: arithmetic calculations from the first submission until all have ended; a daemon with two workers",
    notes=(
        "The same program, profile (core.sqlite_dos) and computer (this one, core.direct) with each broker: process control",
        "by a hub, which syncs a task before its submission returns; by core.zeromq, which writes it and syncs nothing; by",
        "core.rabbitmq. Most of the time is AiiDA's: its database, the scheduler's command, each state of a process.",
        "Lost: those that did not end, or ended with another sum.",
    ),
    contenders=[
        _contender(REDPOLL, "redpoll", "hub", runs="hub"),
        _contender(AIIDA, "core.zeromq", "core.zeromq"),
        _contender(AIIDA, "core.rabbitmq", "core.rabbitmq", runs="rabbitmq"),
    ],
    jobs=[Job("add", 50, {}, warm_up=2)],
    figures={"seconds": Figure("s", 1, 1), "lost": Figure("lost")},
    comparisons=[
        Comparison("redpoll", "core.zeromq", "add", "seconds", higher=False, bar=1),
        Comparison("redpoll", "core.rabbitmq", "add", "seconds", higher=False, bar=1),
        Comparison("redpoll", None, "add", "lost", higher=False, bar=0),
    ],
    measure=_measure,
    prepare=_folder,
)

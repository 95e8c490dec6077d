"""Broadcasts to many subscriptions in one process, of which a tenth wants each."""

from benchmarks.control import Fields
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"rate": client["deliveries"] / (client["finished"] - client["started"])}


def _through(name: str, pattern: bool) -> list[Contender]:
    options = {"work": "broadcast", "pattern": pattern, "subscribers": 1_000}
    return on_loops(Contender(REDPOLL, name, name, "bus_engine", options))


ROW = Row(
    name="bus_broadcast",
    title="bus in process: events of 1,000 subjects to 1,000 subscriptions, each wanted by 100 of them",
    notes=(
        "Subscriptions are of state.*.N with plain functions as sinks; each event is published by an await of its own.",
        "engine: by the protocol of engines. broadcast: by bus.broadcast, with a body of 100 bytes as msgpack.",
    ),
    contenders=[*_through("engine", False), *_through("broadcast", True)],
    jobs=[Job("1 in 10", 10_000, {}, warm_up=1_000)],
    figures={"rate": Figure("deliveries/s")},
    comparisons=[
        Comparison("engine", None, "1 in 10", bar=300_000),
        Comparison("broadcast", None, "1 in 10", bar=300_000),
    ],
    measure=_measure,
)

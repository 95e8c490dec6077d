"""The time of small requests while bodies of 1 GiB flow the same way on the same link, beside an idle link."""

from collections.abc import Sequence

from benchmarks.control import Fields
from benchmarks.latency import percentile
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops

_PERCENTS = {"median": 50.0, "p99": 99.0}


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    ordered = sorted(client["taken"])
    figures = {name: percentile(ordered, percent) * 1e-9 for name, percent in _PERCENTS.items()}
    return {**figures, "bodies": client["bodies"] * 8e-9 / (client["finished"] - client["started"])}


def _pool(answers: Sequence[Fields]) -> Figures:
    ordered = sorted(taken for answer in answers for taken in answer["taken"])
    return {"p99": percentile(ordered, 99.0) * 1e-9}


ROW = Row(
    name="request_beside_bodies",
    title="round trip of a request of 1 byte while bodies of 1 GiB flow the same way on the same link",
    notes=(
        "One request open, and one body after another; serializer buffer, slots=2. Bodies so long go in fragments of",
        "128 KiB: a small frame waits for one fragment at most, and for what the system holds of those before it.",
    ),
    contenders=[
        contender
        for setting in ("idle link", "beside bodies")
        for contender in on_loops(Contender(REDPOLL, setting, setting, "bodies", {"setting": setting}))
    ],
    jobs=[Job("1 B", 2_000, {"size": 1, "body": 1 << 30}, warm_up=200)],
    figures={
        "median": Figure("median us", 1e6, 1),
        "p99": Figure("p99 us", 1e6, 1),
        "bodies": Figure("bodies Gbit/s", 1, 1),
    },
    comparisons=[Comparison("beside bodies", "idle link", "1 B", "p99", higher=False, bar=20)],
    measure=_measure,
    pool=_pool,
)

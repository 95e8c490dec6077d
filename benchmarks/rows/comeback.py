"""The time until a receiver that was killed gets its messages again."""

from benchmarks.control import Fields
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    waits = sorted(server["waits"])
    return {"median": waits[len(waits) // 2], "longest": waits[-1]}


ROW = Row(
    name="comeback",
    title="from the moment a killed receiver listens again to its first handled message, while 64 sends are open",
    notes=("Killed by SIGKILL and started anew at the same port, again and again; the sender has retry=3.",),
    contenders=on_loops(Contender(REDPOLL, "default Config", "redpoll", "comeback")),
    jobs=[Job("kills", 10, {"size": 5}, warm_up=1)],
    figures={"median": Figure("median s", 1, 3), "longest": Figure("longest s", 1, 3)},
    comparisons=[Comparison("redpoll", None, "kills", "longest", higher=False, bar=0.3)],
    measure=_measure,
)

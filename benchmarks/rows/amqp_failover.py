"""A server of a cluster of RabbitMQ that is gone: the time until it is reported, and until a call succeeds."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops

#: Seconds of net_ticktime, in which the other servers notice that one is frozen.
TICK = 4


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"noticed": max(client["noticed"]), "taken": max(client["taken"])}


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


ROW = Row(
    name="amqp_failover",
    title="from the loss of the connected server of three until it is reported, and until a call succeeds; default options",
    notes=(
        "Caller and callee in a process each. The server is killed, or frozen by SIGSTOP with net_ticktime = 4, after which",
        "RabbitMQ's others go on without it. Killed three times; the longest times.",
    ),
    contenders=on_loops(Contender(REDPOLL, "", "redpoll", "amqp_failover", {"tick": TICK})),
    jobs=[
        Job("killed", 3, {"kind": "killed"}, warm_up=0),
        Job("frozen", 1, {"kind": "frozen"}, warm_up=0),
    ],
    figures={"noticed": Figure("reported s", 1, 2), "taken": Figure("next success s", 1, 2)},
    comparisons=[
        Comparison("redpoll", None, "killed", "taken", higher=False, bar=1.5),
        Comparison("redpoll", None, "frozen", "noticed", higher=False, bar=5),
        Comparison("redpoll", None, "frozen", "taken", higher=False, bar=10),
    ],
    measure=_measure,
    prepare=_folder,
)

"""kiwiPy's rounds of 100 tasks from a thread: through a hub, and by kiwiPy, pika and aiida-core."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import AIIDA, KIWIPY, PIKA, REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops

SIZES = 32, 128, 512, 1024, 2048


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"rate": client["count"] / (client["finished"] - client["started"])}


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


def _job(name: str, work: str, size: int = 1_024) -> Job:
    return Job(name, 1_000, {"work": work, "size": size}, warm_up=200)


BOTH = [f"send and get, {size} B" for size in SIZES]
WORK = ["send", "get", *BOTH]

ROW = Row(
    name="hub_rounds",
    title="kiwiPy's rounds of 100 tasks: sent by a thread one by one, got by a subscriber, and both; and sent at once",
    notes=(
        "redpoll.blocking, with the hub in a process of its own, which syncs before it confirms; at once is submit_many.",
        "kiwiPy: RmqThreadCommunicator, whose sends are confirmed. pika: BlockingConnection, persistent, with confirms and",
        "without, prefetch 100. Both on a RabbitMQ with a classic durable queue, which confirms without a sync while it is",
        "quick enough. aiida-core: ZeromqCommunicator and its broker, which writes a file for each task and syncs none.",
        "What is sent and not got in the time that counts is got after it.",
    ),
    contenders=[
        *on_loops(Contender(REDPOLL, "one by one", "redpoll", "hub_rounds", {"at_once": False})),
        *on_loops(Contender(REDPOLL, "at once", "at once", "hub_rounds", {"at_once": True})),
        Contender(KIWIPY, "", "kiwipy", "hub_kiwipy"),
        Contender(PIKA, "confirms", "pika", "hub_kiwipy", {"confirmed": True}, client_module="hub_pika"),
        Contender(PIKA, "no confirms", "unconfirmed", "hub_kiwipy", {"confirmed": False}, client_module="hub_pika"),
        Contender(AIIDA, "", "aiida", "hub_aiida"),
    ],
    jobs=[
        _job("send", "send"),
        _job("get", "get"),
        *(_job(name, "send_get", size) for name, size in zip(BOTH, SIZES, strict=True)),
    ],
    figures={"rate": Figure("tasks/s")},
    comparisons=[
        *(Comparison("redpoll", "kiwipy", job, bar=2.2) for job in WORK),
        *(Comparison("redpoll", "pika", job, bar=1.2) for job in WORK),
        *(Comparison("redpoll", "aiida", job) for job in WORK),
        Comparison("at once", "kiwipy", "send", bar=6),
        Comparison("at once", "unconfirmed", "send", bar=0.8),
    ],
    measure=_measure,
    prepare=_folder,
)

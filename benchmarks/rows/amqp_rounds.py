"""kiwiPy's rounds of 100 tasks on RabbitMQ: by redpoll from a thread, by kiwiPy and by pika."""

from benchmarks.control import Fields
from benchmarks.model import KIWIPY, PIKA, REDPOLL, Comparison, Contender, Figure, Figures, Job, Row
from benchmarks.network import with_rabbitmq

SIZES = 32, 128, 512, 1024, 2048


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"rate": client["count"] / (client["finished"] - client["started"])}


def _job(name: str, work: str, size: int = 1_024) -> Job:
    return Job(name, 1_000, {"work": work, "size": size}, warm_up=200)


BOTH = [f"send and get, {size} B" for size in SIZES]

ROW = Row(
    name="amqp_rounds",
    title="kiwiPy's rounds of 100 tasks on RabbitMQ: sent by a thread one by one, got by a subscriber, and both; and at once",
    notes=(
        "All on one RabbitMQ. redpoll.blocking: a quorum queue, which syncs before it confirms; with speak=kiwipy the one",
        "that kiwiPy uses, a classic one, which confirms without a sync while it is quick enough. At once is submit_many.",
        "kiwiPy: RmqThreadCommunicator, whose sends are confirmed. pika: BlockingConnection, persistent, with confirms and",
        "prefetch 1, and without and prefetch 100, a classic durable queue. What is sent and not got in the time that counts",
        "is got after it.",
    ),
    contenders=[
        Contender(REDPOLL, "one by one", "redpoll", "hub_rounds", {"at_once": False, "loop": "asyncio"}),
        Contender(REDPOLL, "at once", "at once", "hub_rounds", {"at_once": True, "slots": 100, "loop": "asyncio"}),
        Contender(
            REDPOLL,
            "one by one, speak=kiwipy",
            "classic",
            "hub_rounds",
            {"at_once": False, "loop": "asyncio", "connect": {"speak": "kiwipy"}},
        ),
        Contender(
            REDPOLL,
            "at once, speak=kiwipy",
            "classic at once",
            "hub_rounds",
            {"at_once": True, "slots": 100, "loop": "asyncio", "connect": {"speak": "kiwipy"}},
        ),
        Contender(KIWIPY, "", "kiwipy", "hub_kiwipy"),
        Contender(
            PIKA,
            "confirms, prefetch 1",
            "pika",
            "hub_kiwipy",
            {"confirmed": True, "prefetch": 1},
            client_module="hub_pika",
        ),
        Contender(PIKA, "no confirms", "unconfirmed", "hub_kiwipy", {"confirmed": False}, client_module="hub_pika"),
    ],
    jobs=[
        _job("send", "send"),
        _job("get", "get"),
        *(_job(name, "send_get", size) for name, size in zip(BOTH, SIZES, strict=True)),
    ],
    figures={"rate": Figure("tasks/s")},
    comparisons=[
        Comparison("redpoll", "kiwipy", "send", bar=1.1),
        Comparison("classic", "kiwipy", "send", bar=1.1),
        Comparison("redpoll", "pika", "send", bar=1),
        Comparison("classic", "pika", "send", bar=1),
        Comparison("at once", "kiwipy", "send", bar=4),
        Comparison("classic at once", "kiwipy", "send", bar=4),
        Comparison("at once", "unconfirmed", "send", bar=0.8),
        Comparison("redpoll", "kiwipy", "get"),
        Comparison("at once", "kiwipy", "get", bar=1.2),
        Comparison("redpoll", "pika", "get"),
        Comparison("at once", "pika", "get", bar=1.5),
        *(Comparison(group, "kiwipy", job, bar=1.1) for job in BOTH for group in ("redpoll", "classic")),
        *(Comparison(group, "kiwipy", job, bar=3) for job in BOTH for group in ("at once", "classic at once")),
    ],
    measure=_measure,
    network=with_rabbitmq,
)

"""Confirmed publishes to a queue of RabbitMQ, by redpoll and aio-pika."""

from benchmarks.control import Fields
from benchmarks.model import AIOPIKA, REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops
from benchmarks.network import with_rabbitmq

KINDS = "classic", "quorum"


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"rate": client["count"] / (client["finished"] - client["started"])}


ROW = Row(
    name="amqp_publishes",
    title="confirmed publishes of 1 KiB, persistent and mandatory, to a durable queue of RabbitMQ; 64 open and one",
    notes=("All on one RabbitMQ, by `bus.foreign` and by aio-pika's default exchange.",),
    contenders=[
        contender
        for kind in KINDS
        for contender in (
            *on_loops(Contender(REDPOLL, kind, f"redpoll {kind}", "amqp_publishes", {"queue": kind})),
            Contender(AIOPIKA, kind, f"aio-pika {kind}", "hub_rabbitmq", {"queue": kind}),
        )
    ],
    jobs=[Job(f"{open_} open", count, {"open": open_}, count // 10) for open_, count in ((64, 6_400), (1, 500))],
    figures={"rate": Figure("per second")},
    comparisons=[
        *(Comparison(f"redpoll {kind}", f"aio-pika {kind}", "64 open", bar=1.5) for kind in KINDS),
        *(Comparison(f"redpoll {kind}", f"aio-pika {kind}", "1 open") for kind in KINDS),
    ],
    measure=_measure,
    network=with_rabbitmq,
)

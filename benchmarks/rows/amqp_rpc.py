"""Calls and casts on RabbitMQ, by redpoll and oslo.messaging."""

from benchmarks.control import Fields
from benchmarks.model import OSLO, REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops
from benchmarks.network import with_rabbitmq


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {
        "rate": client["count"] / (client["finished"] - client["started"]),
        "broker": client["used"] / client["count"],
    }


def _job(work: str, open_: int, count: int) -> Job:
    return Job(f"{work}, {open_} open", count, {"work": work, "open": open_}, warm_up=count // 10)


ROW = Row(
    name="amqp_rpc",
    title="calls and casts of 100 bytes on RabbitMQ, 1 and 64 open; and the time of RabbitMQ's processor for each",
    notes=(
        "All on one RabbitMQ; caller and callee in processes of their own. A cast is done when it is confirmed.",
        "oslo.messaging: executor threading; one caller thread for 1 open, five for 64, which were not more with more.",
    ),
    contenders=[
        *on_loops(Contender(REDPOLL, "", "redpoll", "hub_calls")),
        Contender(OSLO, "", "oslo", "hub_oslo"),
    ],
    jobs=[_job("call", 1, 1_000), _job("call", 64, 6_400), _job("cast", 1, 500), _job("cast", 64, 6_400)],
    figures={"rate": Figure("per second"), "broker": Figure("broker us each", 1e6)},
    comparisons=[
        Comparison("redpoll", "oslo", "call, 1 open", bar=2.5),
        Comparison("redpoll", "oslo", "call, 64 open", bar=5),
        Comparison("redpoll", "oslo", "cast, 64 open", bar=4),
        Comparison("redpoll", "oslo", "cast, 1 open"),
        Comparison("redpoll", "oslo", "call, 64 open", "broker", higher=False, bar=1),
        Comparison("redpoll", "oslo", "cast, 64 open", "broker", higher=False, bar=1),
    ],
    measure=_measure,
    network=with_rabbitmq,
)

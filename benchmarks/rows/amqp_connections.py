"""Calls and casts on RabbitMQ over one connection, over two, and over a pool of them."""

from benchmarks.control import Fields
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops
from benchmarks.network import with_rabbitmq


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {
        "rate": client["count"] / (client["finished"] - client["started"]),
        "broker": client["used"] / client["count"],
    }


def _job(work: str, open_: int, count: int) -> Job:
    return Job(f"{work}, {open_} open", count, {"work": work, "open": open_}, warm_up=count // 10)


def _contender(setting: str, group: str, client: dict[str, int], connections: str) -> list[Contender]:
    options = {"connections": connections}
    return on_loops(Contender(REDPOLL, setting, group, "hub_calls", options, client=client))


ROW = Row(
    name="amqp_connections",
    title="calls and casts of 100 bytes on RabbitMQ over one connection, two, and a pool of six",
    notes=(
        "split is the default: one connection for what is published, one for what is consumed. The pool is three split ones.",
        "Caller and callee in processes of their own. A cast is done when it is confirmed.",
    ),
    contenders=[
        *_contender("split", "split", {}, "split"),
        *_contender("single", "single", {}, "single"),
        *_contender("pool", "pool", {"buses": 3}, "split"),
    ],
    jobs=[_job("call", 1, 500), _job("call", 64, 6_400), _job("cast", 64, 6_400)],
    figures={"rate": Figure("per second"), "broker": Figure("broker us each", 1e6)},
    comparisons=[
        Comparison("split", other, f"{work}, {open_} open")
        for other in ("single", "pool")
        for work, open_ in (("call", 1), ("call", 64), ("cast", 64))
    ],
    measure=_measure,
    network=with_rabbitmq,
)

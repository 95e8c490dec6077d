"""One exchange that distributes to a hundred queues in four processes, beside pyzmq's PUB and SUB."""

from benchmarks.control import Fields
from benchmarks.model import PYZMQ, REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops
from benchmarks.rows.wired import WAYS

PROCESSES = 4
QUEUES = 100


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    # Of pyzmq the server is what sends: its sockets that receive have to find it.
    sender = client if "started" in client else server
    finished = max(client["finished"], server["finished"])
    return {"deliveries": QUEUES * job.count / (finished - sender["started"])}


def _redpoll(way: str) -> list[Contender]:
    send, receive = WAYS[way]
    options = {"work": "fan out", "worker": "wiring", "workers": PROCESSES, "queues": QUEUES // PROCESSES}
    made = Contender(
        REDPOLL,
        way,
        way,
        "crew",
        options,
        server={"receive": receive},
        client={"send": send},
        client_module="wiring",
    )
    return on_loops(made)


def _pyzmq() -> list[Contender]:
    common = {"worker": "pyzmq_fan_out", "workers": PROCESSES, "queues": QUEUES // PROCESSES}
    settings: dict[str, dict[str, object]] = {
        "default HWM": {"wait": True},
        "HWM 0": {"wait": False, "high_water_mark": 0},
    }
    return [
        Contender(
            PYZMQ,
            f"PUB/SUB {name}",
            "pyzmq",
            "pyzmq_fan_out",
            {**common, **options},
            client_module="crew",
        )
        for name, options in settings.items()
    ]


ROW = Row(
    name="wiring_fan_out",
    title=f"one exchange distributes messages of 256 B to {QUEUES} queues in {PROCESSES} processes",
    notes=(
        "Deliveries: messages times queues, from the first send until every queue was emptied. pyzmq: a SUB for each queue;",
        "with the default high-water mark its PUB waits (XPUB_NODROP) instead of dropping messages. Each message is taken by",
        "a call of its own, but with receive_many.",
    ),
    contenders=[*_redpoll("async for"), *_redpoll("send_many, receive_many"), *_pyzmq()],
    jobs=[Job("256 B", 20_000, {"size": 256}, warm_up=1_000)],
    figures={"deliveries": Figure("deliveries/s")},
    comparisons=[
        Comparison("async for", "pyzmq", "256 B", "deliveries", bar=1.0),
        Comparison("send_many, receive_many", "pyzmq", "256 B", "deliveries"),
    ],
    measure=_measure,
)

"""Messages of one exchange over a cable of 1 Gbit/s, beside raw TCP."""

from functools import partial

from benchmarks.control import Fields
from benchmarks.model import PYZMQ, Comparison, Contender, Figure, Figures, Job, Row, message_rate
from benchmarks.network import shaped
from benchmarks.rows.wired import SIZES, sockets, wiring

#: Bytes around the body of a node's message: raw TCP carries as much beside each message.
FRAME = 27

#: Messages of one job, by size: about a second of each.
COUNTS = {"256 B": 400_000, "4 KiB": 30_000, "64 KiB": 2_000}


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"megabits": message_rate(job, client, server)["rate"] * job.fields["size"] * 8e-6}


ROW = Row(
    name="wiring_shaped",
    title="an exchange and a queue on two machines with 1 Gbit/s between them: messages of 256 B to 64 KiB one way",
    notes=(
        "Two network namespaces and a veth pair that tc shapes: root and iproute2. The rate is that of the messages' own",
        "bytes.",
        f"Raw TCP carries {FRAME} bytes beside each message, in writes of 64 KiB.",
    ),
    contenders=[
        *wiring("async for", "redpoll"),
        sockets("batches", overhead=FRAME),
        Contender(PYZMQ, "PUSH/PULL", "pyzmq", "pyzmq", {"pattern": "stream", "api": "blocking"}),
    ],
    jobs=[Job(name, count, {"size": SIZES[name]}, warm_up=count // 10) for name, count in COUNTS.items()],
    figures={"megabits": Figure("Mbit/s", digits=1)},
    comparisons=[
        *(Comparison("redpoll", "sockets", name, "megabits", bar=0.97) for name in COUNTS),
        *(Comparison("redpoll", "pyzmq", name, "megabits") for name in COUNTS),
    ],
    measure=_measure,
    network=partial(shaped, "1gbit"),
)

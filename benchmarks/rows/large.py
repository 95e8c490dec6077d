"""Large acknowledged messages, beside blocking sockets that send the same bytes."""

from benchmarks.control import Fields
from benchmarks.model import REDPOLL, SOCKETS, Comparison, Contender, Figure, Figures, Job, Row, message_rate, on_loops

SIZES = {"64 KiB": (65_536, 8_000, 64), "2 MiB": (2 << 20, 500, 16)}
RECEIVER = {"serializer": "buffer", "slots": 64, "window_bytes": 64 << 20}


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    figures = message_rate(job, client, server)
    return {"gigabits": figures["rate"] * job.fields["size"] * 8e-9, **figures}


ROW = Row(
    name="large",
    title="acknowledged messages of 64 KiB and 2 MiB, serializer buffer",
    notes=(
        "64 of 64 KiB or 16 of 2 MiB open at a time. The sockets send the same bytes in one direction, without",
        "frames or acknowledgements, into one buffer of the message's size: the limit, not another library.",
    ),
    contenders=[
        *on_loops(
            Contender(
                REDPOLL,
                "slots=64",
                "redpoll",
                "redpoll",
                server={"work": "handler", "config": RECEIVER},
                client={"work": "futures", "config": {"serializer": "buffer"}},
            )
        ),
        Contender(SOCKETS, "blocking", "sockets", "sockets"),
    ],
    jobs=[
        Job(name, count, {"size": size, "open": open_at_a_time}, warm_up=count // 10)
        for name, (size, count, open_at_a_time) in SIZES.items()
    ],
    figures={"gigabits": Figure("Gbit/s", digits=1), "rate": Figure("messages/s")},
    comparisons=[Comparison("redpoll", "sockets", name, "gigabits", bar=0.9) for name in SIZES],
    measure=_measure,
)

"""Unacknowledged sends, 64 open, beside libchirp's Python binding."""

from benchmarks.control import Fields
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, message_rate, on_loops
from benchmarks.rows import chirp_peer


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"sent": job.count / (client["finished"] - client["started"]), **message_rate(job, client, server)}


ROW = Row(
    name="unacked_64",
    title="unacknowledged sends of 5 bytes, 64 open, one sender, one receiver",
    notes=(
        "sends/s: until the sender's last send was done, that is written to the transport;",
        "messages/s: until the receiver had taken the last.",
        *chirp_peer.NOTES,
    ),
    contenders=[
        *on_loops(
            Contender(
                REDPOLL,
                "slots=64",
                "redpoll",
                "redpoll",
                server={"work": "handler", "config": {"acknowledge": False, "slots": 64, "window": 4096}},
                client={"work": "futures", "config": {"acknowledge": False}},
            )
        ),
        chirp_peer.UNACKNOWLEDGED,
    ],
    jobs=[Job("5 B", 50_000, {"size": 5, "open": 64}, warm_up=5_000)],
    figures={"sent": Figure("sends/s"), "rate": Figure("messages/s")},
    comparisons=[
        Comparison("redpoll", "libchirp", "5 B", "sent", bar=2.5),
        Comparison("redpoll", "libchirp", "5 B", "rate", bar=2.5),
    ],
    measure=_measure,
)

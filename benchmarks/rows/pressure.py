"""Memory of both ends while the sender is much faster than the handler."""

from benchmarks.control import Fields
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops

MEBIBYTE = 1 / (1 << 20)

#: `window_bytes` and `send_queue_bytes` of the default Config, MiB.
WINDOW, QUEUE = 4, 64


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {"receiver": server["grown"], "sender": client["grown"]}


ROW = Row(
    name="pressure",
    title="growth of resident memory, at most, while messages of 100 KiB are sent without awaiting an async handler of 1 ms",
    notes=(
        "The sender has far more open than the window, and than its queue takes: what is above fails as QueueFull.",
    ),
    contenders=on_loops(Contender(REDPOLL, "default Config", "redpoll", "pressure")),
    jobs=[Job("100 KiB", 2_000, {"size": 102_400}, warm_up=1)],
    figures={"receiver": Figure("receiver MiB", MEBIBYTE, 1), "sender": Figure("sender MiB", MEBIBYTE, 1)},
    comparisons=[
        Comparison("redpoll", None, "100 KiB", "receiver", higher=False, bar=WINDOW + 2),
        Comparison("redpoll", None, "100 KiB", "sender", higher=False, bar=1.25 * QUEUE),
    ],
    measure=_measure,
)

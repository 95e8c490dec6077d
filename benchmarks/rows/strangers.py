"""The rate to a node that a good peer gets while thousands of strangers are at it, beside the rate without them."""

from benchmarks.control import Fields
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, message_rate, on_loops

#: So many never finish their handshakes and as many send garbage; a tenth as many are slow.
STRANGERS = 1_000

#: `memory_limit` of the default Config, MiB.
LIMIT = 1024


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {**message_rate(job, client, server), "grown": server["grown"]}


ROW = Row(
    name="strangers",
    title=f"acknowledged sends of 5 bytes, 64 open, to a node that {STRANGERS:,} strangers of each kind are at",
    notes=(
        f"{STRANGERS:,} never finish their handshakes, {STRANGERS:,} send garbage and come again a second after they were",
        f"closed, {STRANGERS // 10} send a large message, and read, a byte a second. They are one process, which shares the",
        "processors with the two ends: the undisturbed rate is without it. Memory: what the node's grew by since it began.",
    ),
    contenders=[
        contender
        for setting, strangers in (("undisturbed", 0), ("disturbed", STRANGERS))
        for contender in on_loops(Contender(REDPOLL, setting, setting, "strangers", {"strangers": strangers}))
    ],
    jobs=[Job("5 B", 400_000, {"size": 5, "open": 64}, warm_up=2_000)],
    figures={"rate": Figure("messages/s"), "grown": Figure("growth MiB", 1 / (1 << 20), 1)},
    comparisons=[
        Comparison("disturbed", "undisturbed", "5 B", bar=0.5),
        Comparison("disturbed", None, "5 B", "grown", higher=False, bar=LIMIT),
    ],
    measure=_measure,
)

"""Many peers that each send little, on one node."""

from collections.abc import Sequence

from benchmarks.control import Fields
from benchmarks.latency import percentile
from benchmarks.model import REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops

PEERS = 1_000


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    ordered = sorted(client["taken"])
    return {
        "p99": percentile(ordered, 99.0) * 1e-9,
        "lost": PEERS * job.count - len(ordered),
        "grown": server["grown"],
        "rate": len(ordered) / (client["finished"] - client["started"]),
    }


def _pool(answers: Sequence[Fields]) -> Figures:
    ordered = sorted(taken for answer in answers for taken in answer["taken"])
    return {"p99": percentile(ordered, 99.0) * 1e-9}


ROW = Row(
    name="crowd",
    title=f"acknowledged sends of 100 bytes, ten a second from each of {PEERS:,} peers to one node",
    notes=(
        "The count is that of each peer: --count 3000 is five minutes. Memory: growth of the node's from a tenth of the",
        "messages to their end; by then as many outcomes are remembered as ever will be. The peers are nodes of one other",
        "process.",
    ),
    contenders=on_loops(Contender(REDPOLL, "default Config", "redpoll", "crowd")),
    jobs=[Job("100 B", 100, {"size": 100, "peers": PEERS, "each_second": 10}, warm_up=300)],
    figures={
        "p99": Figure("p99 ms", 1e3, 1),
        "lost": Figure("lost"),
        "grown": Figure("growth MiB", 1 / (1 << 20), 1),
        "rate": Figure("messages/s"),
    },
    comparisons=[
        Comparison("redpoll", None, "100 B", "p99", higher=False, bar=50),
        Comparison("redpoll", None, "100 B", "lost", higher=False, bar=0),
        Comparison("redpoll", None, "100 B", "grown", higher=False, bar=2),
    ],
    measure=_measure,
    pool=_pool,
)

"""net-queue's own iops.py over gRPC, beside a bare stream of grpc.aio: net-queue's gRPC cannot be started."""

from benchmarks.control import Fields
from benchmarks.model import GRPC, Comparison, Contender, Figures, Job, Row
from benchmarks.rows import iops

JOBS = [iops.messages("sync 2 MiB", "sync", 21, 500), iops.messages("async 2 MiB", "async", 21, 500)]


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    if "bits" in client:
        return {"gigabits": client["bits"], "operations": client["operations"]}
    operations = 2 * job.count / (client["finished"] - client["started"])
    return {"gigabits": operations * job.fields["size"] * 8, "operations": operations}


ROW = Row(
    name="nq_iops_grpc",
    title="net-queue's iops.py over gRPC: 2 MiB one way after the other and both at once",
    notes=(
        *iops.NOTES,
        "net-queue's own gRPC cannot be started by its `new()`: a package of it is misspelt. Beside it a bare bidirectional",
        "stream of grpc.aio that carries the same bytes the same ways, as messages of bytes, in one thread, without names,",
        "order, or acknowledgements. It is measured as it is, and with the C library's memory kept, as redpoll has it.",
    ),
    contenders=[
        iops.contenders("grpc")[0],
        Contender(GRPC, "aio stream", "grpcio", "bare_grpc"),
        Contender(GRPC, "aio stream, memory kept", "grpcio tuned", "bare_grpc", {"kept": True}),
    ],
    jobs=JOBS,
    figures={name: iops.FIGURES[name] for name in ("gigabits", "operations")},
    comparisons=[
        *(Comparison("redpoll", "grpcio", job.name, "gigabits", bar=0.8) for job in JOBS),
        *(Comparison("redpoll", "grpcio tuned", job.name, "gigabits") for job in JOBS),
    ],
    measure=_measure,
    prepare=iops.prepare,
)

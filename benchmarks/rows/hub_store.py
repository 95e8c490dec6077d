"""Tasks on disk by a hub's store, beside a loop that writes to a file and syncs it."""

from pathlib import Path

from benchmarks.control import Fields
from benchmarks.model import FILES, REDPOLL, Comparison, Contender, Figure, Figures, Job, Row, on_loops


def _measure(job: Job, client: Fields, server: Fields) -> Figures:
    return {
        "rate": client["count"] / (client["finished"] - client["started"]),
        "processor": client["used"] / client["count"],
    }


def _folder(path: Path) -> Fields:
    return {"folder": str(path)}


ROW = Row(
    name="hub_store",
    title="tasks of 1 KiB put on disk by a hub's store, and put and ended; 1, 64 and 1,000 open",
    notes=(
        "redpoll: the store alone, in one process: a put and its hand-out are on disk, the next one begins; with its end",
        "the outcome is on disk too. files: os.write of 1 KiB to the end of a file, and os.fdatasync, one after the other.",
        "In the folder for temporary files, which has to be on a disk. Processor: of all threads, for each task.",
    ),
    contenders=[
        *on_loops(Contender(REDPOLL, "store", "store", "hub_store", {"work": "store"})),
        Contender(FILES, "write and fdatasync", "file", "hub_store", {"work": "file"}),
    ],
    jobs=[
        Job("put, 1 open", 1_000, {"open": 1, "ends": False}, warm_up=20),
        Job("put, 64 open", 30_000, {"open": 64, "ends": False}, warm_up=640),
        Job("put, 1,000 open", 100_000, {"open": 1_000, "ends": False}, warm_up=2_000),
        Job("put and end, 64 open", 30_000, {"open": 64, "ends": True}, warm_up=640),
    ],
    figures={"rate": Figure("tasks/s"), "processor": Figure("processor, us", 1e6, 1)},
    comparisons=[
        Comparison("store", "file", "put, 1 open", bar=0.3),
        Comparison("store", "file", "put, 64 open", bar=3, aim=6),
        Comparison("store", "file", "put, 1,000 open"),
        Comparison("store", "file", "put and end, 64 open", bar=1.2, aim=3),
    ],
    measure=_measure,
    prepare=_folder,
)

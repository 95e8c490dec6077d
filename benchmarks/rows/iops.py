"""Shared by the benchmarks with net-queue's own iops.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.control import Fields
from benchmarks.encryption import self_signed
from benchmarks.model import NETQUEUE, REDPOLL, Contender, Figure, Figures, Job
from benchmarks.scripts import fetch

NOTES = (
    "net-queue's own test/iops.py, as it is and with `from redpoll import nq` for its import; all else is its default.",
    "One client; both directions count, from the barrier at the start until the client has closed.",
)
MEMORY = (
    "Memory: of the end that had more, at its peak; growth is over that of the script with one message of 256 bytes.",
)

FIGURES: Mapping[str, Figure] = {
    "gigabits": Figure("Gbit/s", 1e-9, 2),
    "operations": Figure("op/s"),
    "server": Figure("server's Gbit/s", 1e-9, 2),
    "grown": Figure("growth MB", 1e-6, 1),
    "peak": Figure("peak MB", 1e-6, 1),
}


def messages(name: str, mode: str, exponent: int, count: int) -> Job:
    """Return a job of `count` messages of 2 to the power of `exponent` bytes in each direction."""
    return Job(name, count, {"mode": mode, "exponent": exponent, "size": 1 << exponent}, warm_up=1)


def contenders(protocol: str, *, encrypted: bool = False) -> Sequence[Contender]:
    """Return redpoll and net-queue over one of the protocols."""
    options = {"protocol": protocol, "encrypted": encrypted}
    return [
        Contender(REDPOLL, f"nq {protocol}", "redpoll", "iops", {**options, "copy": "ours"}),
        Contender(NETQUEUE, protocol, "net-queue", "iops", {**options, "copy": "theirs"}),
    ]


def measure(job: Job, client: Fields, server: Fields) -> Figures:
    """Return what the client's end says, and the memory of the end that had more."""
    return {
        "gigabits": client["bits"],
        "operations": client["operations"],
        "server": server["bits"],
        "grown": max(client["grown"], server["grown"]),
        "peak": max(client["peak"], server["peak"]),
    }


def prepare(folder: Path) -> Fields:
    """Fetch the scripts, make the certificate that they look for where they run."""
    self_signed(folder)
    return {"scripts": str(fetch()), "folder": str(folder)}

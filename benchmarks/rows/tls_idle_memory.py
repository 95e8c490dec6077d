"""Resident memory of an idle connection with TLS, beside bare asyncio and uvloop protocols with theirs."""

from dataclasses import replace

from benchmarks.encryption import certificates
from benchmarks.model import Comparison, Job
from benchmarks.rows import idle_memory

#: redpoll on each loop by itself, since asyncio's own TLS and uvloop's differ so much.
_LOOPS = ("asyncio", "uvloop")

ROW = replace(
    idle_memory.ROW,
    name="tls_idle_memory",
    title="resident memory of the listening process for each of 1,000 idle connections with TLS",
    notes=(
        "libchirp-like peers: raw sockets that shook hands, each with an identity of its own; redpoll peers: nodes",
        "that announced themselves. The bare protocols have the TLS of their loop and do nothing else.",
        "What the kernel holds for a socket is not in it.",
    ),
    contenders=[
        replace(
            each,
            group=each.group if each.group.startswith("bare") else f"{each.group} {each.loop}",
            options={**each.options, "encrypted": True},
        )
        for each in idle_memory.ROW.contenders
    ],
    jobs=[Job("idle", 1_000, {}, warm_up=100)],
    comparisons=[
        Comparison(f"{group} {loop}", against and f"{against} {loop}", "idle", "bytes", higher=False)
        for group in ("libchirp-like peers", "redpoll peers")
        for loop in _LOOPS
        for against in (None, "bare")
    ],
    prepare=certificates,
)

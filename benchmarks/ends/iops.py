"""The two ends of net-queue's own iops.py, with net-queue or with redpoll: a process of its own for each job."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.broker import Broker, is_listening
from benchmarks.control import Control, Fields, arguments, free_port
from benchmarks.scripts import Script, wait_all

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds that one run may take.
RUN_TIMEOUT = 300.0

#: The least that the script can do: one message of 256 bytes each way. What a process has then is its memory when idle.
LEAST = ["async", "--step-size", "0", "--max-size", "8"]


def script(role: str, options: Fields, port: int, job: Fields) -> Script:
    """Start the script for a job; for the one that is to warm up let it do the least."""
    command = [options["protocol"], role, *(LEAST if job.get("warm_up") else _work(job)), "--port", str(port)]
    if options.get("encrypted"):
        command.append("--secure")
    return Script(Path(options["scripts"], options["copy"], "iops.py"), command, Path(options["folder"]))


def _work(job: Fields) -> list[str]:
    if job.get("mix"):
        # The count is that of MiB of the largest message, which is a power of two.
        return [job["mode"], "--max-size", str(20 + job["count"].bit_length() - 1)]
    return [job["mode"], "--step-size", "0", "--max-size", str(job["exponent"]), "--reps", str(job["count"])]


class Watch:
    """Makes a job's answer, and knows what an idle process has."""

    def __init__(self) -> None:
        self._idle = 0

    def answer(self, running: Script, job: Fields) -> Fields:
        """Wait for the end of a script."""
        (outcome,) = wait_all([running], RUN_TIMEOUT)
        if job.get("warm_up"):
            self._idle = outcome.peak
        figures = {"bits": outcome.bits, "operations": outcome.operations}
        return {**figures, "peak": outcome.peak, "grown": max(0, outcome.peak - self._idle)}


def serve(control: Control, options: Fields) -> None:
    """Run the script's server for each job, and the broker that it needs all the time."""
    port = free_port()
    watch = Watch()
    with ExitStack() as stack:
        broker = None
        if options["protocol"] == "mqtt":
            folder = Path(options["folder"])
            broker = stack.enter_context(Broker(folder, port, encrypted=bool(options.get("encrypted"))))
        control.write(address=f"127.0.0.1:{port}")
        for job in control.jobs():
            is_ready = _readiness(broker, port)
            with script("server", options, port, job) as running:
                # net-queue's clients fail before there is a server, or wait for it for ever.
                running.wait_until(is_ready)
                control.write(begun=True)
                control.write(**watch.answer(running, job))


def _readiness(broker: Broker | None, port: int) -> Callable[[], bool]:
    if broker is None:
        return lambda: is_listening(port)
    before = broker.subscriptions
    return lambda: broker.subscriptions > before


def connect(control: Control, options: Fields) -> None:
    """Run the script's client for each job."""
    port = int(options["address"].rpartition(":")[2])
    watch = Watch()
    control.write(address=None)
    for job in control.jobs():
        with script("client", options, port, job) as running:
            control.write(**watch.answer(running, job))


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    (serve if role == "server" else connect)(Control(), options)


if __name__ == "__main__":
    main()

"""Where the two ends of a benchmark run: on this machine, with a broker or without, or on two that a shaped cable connects.

The two machines are network namespaces without a name. Each is there as long as a process in it, which waits for the end
of its input; so whatever becomes of the driver, they go with it, and the cable with them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.processes import STOP_TIMEOUT, BenchmarkError
from benchmarks.rabbitmq import RabbitMQ

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

NEEDED = (
    "a shaped network takes root (CAP_SYS_ADMIN and CAP_NET_ADMIN) and Debian's iproute2 and util-linux: "
    "run it as root, in a container with --privileged or these capabilities"
)

#: In a namespace there is nothing else that could have them.
ADDRESSES = ("10.29.97.1", "10.29.97.2")

#: What tc is told: a burst that takes the largest segments, and a queue as long as that of a network card.
SHAPE = ("root", "tbf", "burst", "256kb", "latency", "50ms")


@dataclass(frozen=True)
class Network:
    """Where the ends run.

    Attributes:
        server: What stands before the command of the server end.
        client: The same of the client end.
        options: What both ends are told of it.
    """

    server: Sequence[str] = ()
    client: Sequence[str] = ()
    options: Mapping[str, object] = field(default_factory=dict)


#: This machine, as it is.
HERE = Network()


@contextmanager
def with_rabbitmq() -> Iterator[Network]:
    """Have a RabbitMQ that all contenders use, one after the other.

    The options ``broker`` and ``process`` are its URL and the number of its process.

    Raises:
        BenchmarkError: It is not installed; says how to install it.
    """
    with TemporaryDirectory(prefix="benchmark-") as folder:
        try:
            rabbitmq = RabbitMQ(Path(folder))
        except FileNotFoundError as error:
            raise BenchmarkError(str(error)) from error
        with rabbitmq:
            (server,) = rabbitmq.servers
            yield Network(options={"broker": rabbitmq.url, "process": server.process})


@contextmanager
def shaped(rate: str) -> Iterator[Network]:
    """Make two machines with a cable between them that carries no more than `rate`, as tc has it, in either direction.

    The options ``host`` and ``client_host`` are the addresses of the two machines.

    Raises:
        BenchmarkError: It could not be made; says what is needed.
    """
    missing = [name for name in ("ip", "tc", "nsenter", "unshare") if shutil.which(name, path=_path()) is None]
    if missing:
        raise BenchmarkError(f"there is no {' and no '.join(missing)}; {NEEDED}")
    with ExitStack() as stack:
        machines = [stack.enter_context(_machine()) for _ in ADDRESSES]
        left, right = (str(machine.pid) for machine in machines)
        # Both ends are made where they belong: this machine's own network never sees them.
        _run(
            "ip", "link", "add", "name", "cable", "netns", left, "type", "veth", "peer", "name", "cable", "netns", right
        )
        places = [["nsenter", f"--net=/proc/{machine.pid}/ns/net", "--"] for machine in machines]
        for place, address in zip(places, ADDRESSES, strict=True):
            _run(*place, "ip", "address", "add", f"{address}/30", "dev", "cable")
            for device in ("lo", "cable"):
                _run(*place, "ip", "link", "set", "dev", device, "up")
            _run(*place, "tc", "qdisc", "add", "dev", "cable", *SHAPE, "rate", rate)
        yield Network(
            server=places[0], client=places[1], options=dict(zip(("host", "client_host"), ADDRESSES, strict=True))
        )


@contextmanager
def _machine() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a network namespace of its own, which is there until the process ends."""
    own = Path("/proc/self/ns/net").readlink()
    process = subprocess.Popen(["unshare", "--net", "--", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + STOP_TIMEOUT
        while _namespace(process) in {None, own}:
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError(f"no network namespace could be made; {NEEDED}")
            time.sleep(0.005)
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _namespace(process: subprocess.Popen[bytes]) -> Path | None:
    try:
        return Path(f"/proc/{process.pid}/ns/net").readlink()
    except OSError:  # it has ended
        return None


def _run(*command: str) -> None:
    env = {**os.environ, "PATH": _path()}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=STOP_TIMEOUT, env=env)
    if done.returncode:
        raise BenchmarkError(f"`{' '.join(command)}` says: {done.stderr.strip()}; {NEEDED}")


def _path() -> str:
    """Where programs are, with the folder of those for root."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])

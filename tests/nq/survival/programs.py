"""Communicators in processes of their own, which are killed and frozen while they work: what they do they write down."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import UUID, uuid4

from redpoll import nq
from tests.node.processes import LIFETIME
from tests.nq.support import options
from tests.promise.programs import Log

#: Seconds that a process has for all that it does; the slowest takes a tenth of it.
PATIENCE = 15.0

#: Seconds that a client waits for an answer before it asks again, where its server may have died with it.
ASK_AGAIN = 1.0

#: The number that ends what receives numbers.
LAST = -1

#: What each message of a volley has for a body: small ones, and some that fill buffers.
SIZES = (0, 1, 16, 1000, 70_000)


@dataclass(frozen=True)
class Plan:
    """What a process is told.

    Attributes:
        script: Its name in `SCRIPTS`.
        log: The file that it writes to.
        protocol: What carries its links.
        netloc: Where the ends meet.
        id: Who it is.
        secret: What proves that.
        connection: Options of that.
        count: Messages of a volley.
        persists: Whether a client asks again when no answer comes.
    """

    script: str
    log: str
    netloc: nq.NetworkLocation
    protocol: str = "tcp"
    id: UUID = field(default_factory=uuid4)
    secret: bytes | None = None
    connection: dict[str, Any] = field(default_factory=dict)
    count: int = 50
    persists: bool = False

    def make(self, purpose: str) -> nq.Communicator:
        """Make the communicator."""
        chosen = options(self.netloc, id=self.id, secret=self.secret, **self.connection)
        return nq.new(self.protocol, purpose, chosen)


class Book:
    """What a process writes: a line for each thing done, and how each put ended."""

    def __init__(self, path: str) -> None:
        self._log = Log(path)
        self._puts = 0
        self._lock = threading.Lock()

    def write(self, *words: object) -> None:
        """Add a line."""
        self._log.write(*words)

    def put(self, queue: nq.Communicator, data: Any, *peers: UUID) -> Future[None]:
        """Put, and write down how that ends."""
        with self._lock:
            self._puts += 1
            number = self._puts
        self.write("put", number)
        future = queue.put(data, *peers)
        future.add_done_callback(lambda ended: self._ended(number, ended))
        return future

    def _ended(self, number: int, ended: Future[None]) -> None:
        error = "cancelled" if ended.cancelled() else ended.exception()
        self.write("ended", number, "ok" if error is None else type(error).__name__)


# The scripts. They have the shape of those that people write: a hello that is answered to all and to one, and volleys.


def serve(plan: Plan, book: Book) -> None:
    """Answer each hello to all and to whoever said it; give each volley back, to all; until somebody says finish."""
    volleys: dict[UUID, list[Any]] = {}
    with plan.make("server") as queue:
        book.write("ready")
        while True:
            message = queue.get()
            word, *rest = message.data
            book.write("got", message.peer, word, *rest[:1])
            if word == "finish":
                break
            if word == "hello":
                told = book.put(queue, ("all", message.peer))
                told.exception()
                book.put(queue, ("one", message.peer), message.peer)
            elif word == "both":
                book.put(queue, ("back", message.peer, *rest))
            else:  # all puts, then all gets
                number, count, _ = rest
                volley = volleys.setdefault(message.peer, [])
                volley.append(rest)
                if number == count - 1:
                    for each in volleys.pop(message.peer):
                        book.put(queue, ("back", message.peer, *each))


def greet(plan: Plan, book: Book) -> None:
    """Say hello, and get what is said to all and what is said to one."""
    with plan.make("client") as queue:
        book.write("ready")
        _greet(plan, book, queue)


def _greet(plan: Plan, book: Book, queue: nq.Communicator) -> None:
    own: list[str] = []
    book.put(queue, ("hello",)).result()
    while own != ["all", "one"]:
        try:
            message = queue.get(timeout=ASK_AGAIN if plan.persists else None)
        except TimeoutError:
            own.clear()
            book.put(queue, ("hello",)).result()
            continue
        word, peer, *_ = message.data
        book.write("got", word, peer)
        if peer == plan.id and word in {"all", "one"} and word not in own:
            own.append(word)


def finish(plan: Plan, book: Book) -> None:
    """Say hello as any client, and then that the server is to finish."""
    with plan.make("client") as queue:
        _greet(plan, book, queue)
        book.put(queue, ("finish",)).result()


def volley(plan: Plan, book: Book) -> None:
    """Put all, then get all back."""
    with plan.make("client") as queue:
        book.write("ready")
        _put_volley(plan, book, queue, "sync")
        _get_volley(plan, book, queue, "sync")


def both(plan: Plan, book: Book) -> None:
    """Put all and get all back at the same time."""
    with plan.make("client") as queue:
        book.write("ready")
        putting = threading.Thread(target=_put_volley, args=(plan, book, queue, "both"))
        putting.start()
        try:
            _get_volley(plan, book, queue, "both")
        finally:
            putting.join()


def body(number: int) -> bytes:
    """The body of a message of a volley."""
    return number.to_bytes(4) * (SIZES[number % len(SIZES)] // 4)


def _put_volley(plan: Plan, book: Book, queue: nq.Communicator, word: str) -> None:
    for number in range(plan.count):
        book.put(queue, (word, number, plan.count, body(number)))


def _get_volley(plan: Plan, book: Book, queue: nq.Communicator, word: str) -> None:
    had: list[int] = []
    while len(set(had)) < plan.count:
        try:
            message = queue.get(timeout=ASK_AGAIN if plan.persists else None)
        except TimeoutError:
            _put_volley(plan, book, queue, word)
            continue
        if message.data[:2] != ("back", plan.id):
            continue
        _, _, number, _, data = message.data
        book.write("got", number)
        assert data == body(number)
        assert plan.persists or number == len(had), f"{number} came after {had[-5:]}"
        had.append(number)


def receive(plan: Plan, book: Book) -> None:
    """As a client get numbers, and write them down, until the last one comes."""
    with plan.make("client") as queue:
        _receive(book, queue)


def collect(plan: Plan, book: Book) -> None:
    """The same as a server."""
    with plan.make("server") as queue:
        _receive(book, queue)


def _receive(book: Book, queue: nq.Communicator) -> None:
    book.write("ready")
    while True:
        message = queue.get()
        book.write("got", message.data, message.redelivered)
        if message.data == LAST:
            break


SCRIPTS: dict[str, Callable[[Plan, Book], None]] = {
    "serve": serve,
    "greet": greet,
    "finish": finish,
    "volley": volley,
    "both": both,
    "receive": receive,
    "collect": collect,
}


class _Faults(logging.Handler):
    """Writes down what a library should not have to say."""

    def __init__(self, book: Book) -> None:
        super().__init__(logging.ERROR)
        self._book = book

    def emit(self, record: logging.LogRecord) -> None:
        self._book.write("fault", record.name, repr(self.format(record)))


def run(plan: Plan) -> None:
    """Do what the plan says."""
    signal.alarm(LIFETIME)
    book = Book(plan.log)
    logging.getLogger().addHandler(_Faults(book))
    threading.excepthook = lambda info: book.write("fault thread", repr(info.exc_value))
    sys.unraisablehook = lambda info: book.write("fault unraisable", repr(info.exc_value))
    # Who is started in the background inherits that Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGUSR1, lambda *_: book.write("spent", time.process_time(), resident(), files()))
    try:
        SCRIPTS[plan.script](plan, book)
    except (ConnectionError, KeyboardInterrupt) as error:
        book.write("failed", type(error).__name__)
    except BaseException:  # noqa: BLE001  # the test is told
        book.write("fault script", repr(traceback.format_exc()))
    book.write("closed")


def resident() -> int:
    """Bytes of memory that this process uses."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def files() -> int:
    """How many files and sockets it has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


# The forking of a process that has imported all this takes a hundredth of starting one.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.nq.survival.programs"])


class Spent(NamedTuple):
    """What a process has used.

    Attributes:
        seconds: Of a processor.
        memory: Bytes that it uses now.
        files: Files and sockets that it has open now.
    """

    seconds: float
    memory: int
    files: int


class Running:
    """A process that carries out a plan; killed on leaving."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._process: BaseProcess = _CONTEXT.Process(target=run, args=(plan,), daemon=True)
        self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.close()

    # What it did

    @property
    def log(self) -> list[str]:
        """The lines that it wrote so far."""
        path = Path(self.plan.log)
        return path.read_text().splitlines() if path.exists() else []

    def logged(self, word: str) -> list[str]:
        """What follows a word in the lines that begin with it."""
        return [line.removeprefix(word).strip() for line in self.log if line.split()[0] == word]

    @property
    def numbers(self) -> list[tuple[int, bool]]:
        """The numbers that it got, in order, and whether it was said of each that it may have been there before."""
        words = [line.split() for line in self.logged("got")]
        return [(int(number), redelivered == "True") for number, redelivered in words]

    def until(self, condition: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
        """Wait for something that it does, or for its end.

        Raises:
            TimeoutError: It does not.
        """
        end = time.monotonic() + patience
        while not condition() and self._process.is_alive():
            if time.monotonic() > end:
                raise TimeoutError(f"waited in vain for {what} of {self.plan.script}: {self.log[-10:]}")
            time.sleep(0.002)
        assert condition() or "closed" in self.log or self._process.exitcode == -signal.SIGKILL, (
            f"{self.plan.script} ended before {what}: {self.log[-10:]}"
        )

    def wait_ready(self) -> Self:
        """Wait until it has its communicator."""
        self.until(lambda: self.logged("ready"), "its communicator")
        return self

    def wait_lines(self, count: int) -> None:
        """Wait until it has written so many lines, or has ended."""
        path = Path(self.plan.log)
        self.until(lambda: path.exists() and path.read_bytes().count(b"\n") >= count, f"{count} lines")

    def ended(self) -> list[str]:
        """Wait for its end, which is to be one without faults and with no put open; why it ended sooner than meant."""
        self._process.join(PATIENCE)
        assert not self._process.is_alive(), f"{self.plan.script} hangs: {self.log[-10:]}"
        assert not self.logged("fault"), self.logged("fault")
        assert self.logged("closed"), self.log[-10:]
        self.check_puts()
        return self.logged("failed")

    def check_puts(self) -> None:
        """Every put has ended, once; but for one that Ctrl-C came into, so that nobody has its future."""
        ended = [line.split()[0] for line in self.logged("ended")]
        put = self.logged("put")
        assert len(set(ended)) == len(ended)
        open_ones = set(put).difference(ended)
        assert not open_ones or (open_ones == {put[-1]} and "KeyboardInterrupt" in self.logged("failed")), open_ones

    # What is done to it

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        """End it, frozen or not, without a word."""
        self._process.kill()
        self._process.join()

    def freeze(self) -> None:
        """Stop it in the midst of whatever it does."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def computed(self, seconds: float) -> float:
        """Which part of some seconds it spends computing; none if it has ended."""
        before, begun = self.spent().seconds, time.monotonic()
        while time.monotonic() < begun + seconds:
            time.sleep(seconds / 10)
        return (self.spent().seconds - before) / (time.monotonic() - begun)

    def spent(self) -> Spent:
        """What it has used so far; what it said last, if it has ended."""
        count = len(self.logged("spent"))
        for _ in range(5):
            # As for Ctrl-C.
            self._signal(signal.SIGUSR1)
            with contextlib.suppress(TimeoutError):
                self.until(lambda: len(self.logged("spent")) > count or "closed" in self.log, "what it used", 2.0)
                break
        seconds, memory, files = (self.logged("spent") or ["0 0 0"])[-1].split()
        return Spent(float(seconds), int(memory), int(files))

    def interrupt(self) -> None:
        """Press Ctrl-C until it ends: once is too little where a thread that just begins to wait gives its turn away.

        The interpreter looks for signals before that, and the system then interrupts nothing yet.
        """
        for _ in range(5):
            self._signal(signal.SIGINT)
            self._process.join(2.0)

    def _signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        # Its number may be another's by then.
        if self._process.is_alive():
            os.kill(self.pid, number)

"""net-queue's own two test scripts, run with net-queue and with redpoll.

They are GPL, so they are fetched from their source distribution when they are needed, kept in a folder that git ignores,
and no line of them is part of redpoll. The copies for redpoll differ in the one line that imports net-queue.

This imports nothing but Python's own library: it also runs on the interpreter that has net-queue.
"""

from __future__ import annotations

import hashlib
import os
import re
import selectors
import subprocess
import sys
import tarfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

VERSION = "2.6.4"
SHA256 = "1b565037146e5132d3c14be6bc4cb31b495d2d18263da566651bc27e8be9e015"
CACHE = Path(__file__).resolve().parent.parent / ".cache" / f"net-queue-{VERSION}"
NAMES = ("api.py", "iops.py")

THEIR_IMPORT = "import net_queue as nq\n"
OUR_IMPORT = "from redpoll import nq\n"

#: Seconds that a script may take to be ready for others.
READY_TIMEOUT = 60.0

#: Seconds between two looks.
PAUSE = 0.005

#: Bytes of its standard error that are shown of a script that failed.
_COMPLAINTS = 2_000

_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class ScriptError(Exception):
    """A script could not be fetched, failed, or did not end."""


def fetch(folder: Path = CACHE) -> Path:
    """Return the folder that holds the scripts, in ``theirs`` as they are and in ``ours`` for redpoll; get them if need be.

    Raises:
        ScriptError: pip did not get the source distribution, or it is not the one that is expected.
    """
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as temporary:
        made = Path(temporary, "made")
        unpack(_download(Path(temporary)), made)
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            if not folder.exists():
                raise
    return folder


def _download(folder: Path) -> Path:
    # Its metadata are made by setuptools alone; it needs Python 3.13 to run, not to be fetched.
    options = ["--no-deps", "--no-binary", "net-queue", "--ignore-requires-python", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, f"net-queue=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    file = folder / f"net_queue-{VERSION}.tar.gz"
    if done.returncode or not file.exists():
        raise ScriptError(f"{' '.join(command)} failed:\n{done.stderr}")
    if (found := hashlib.sha256(file.read_bytes()).hexdigest()) != SHA256:
        raise ScriptError(f"{file.name} has the SHA-256 sum {found}, not {SHA256}")
    return file


def unpack(file: Path, folder: Path) -> None:
    """Write the scripts of a source distribution, as they are and for redpoll.

    Raises:
        ScriptError: It does not hold them, or they do not import net-queue by the one line that is replaced.
    """
    theirs, ours = folder / "theirs", folder / "ours"
    theirs.mkdir(parents=True)
    ours.mkdir()
    with tarfile.open(file) as archive:
        for name in NAMES:
            try:
                held = archive.extractfile(f"net_queue-{VERSION}/net_queue/test/{name}")
            except KeyError:
                held = None
            if held is None:
                raise ScriptError(f"{file.name} has no {name}")
            text = held.read().decode()
            if text.count(THEIR_IMPORT) != 1:
                raise ScriptError(f"{name} does not say once {THEIR_IMPORT.strip()!r}")
            (theirs / name).write_text(text)
            (ours / name).write_text(text.replace(THEIR_IMPORT, OUR_IMPORT))


@dataclass(frozen=True)
class Outcome:
    """The outcome of a script.

    Attributes:
        printed: Its standard output.
        peak: The most memory that it had, in bytes, resident.
    """

    printed: str
    peak: int

    @property
    def bits(self) -> float:
        """Bits a second, both directions together, as iops.py says."""
        return _figure(r"^Transfer: .* @ +([0-9.]+)([KMGT]?)bps$", self.printed)

    @property
    def operations(self) -> float:
        """Puts and gets a second, as iops.py says: a message each."""
        return _figure(r"^Operations: .* @ +([0-9.]+)([KMGT]?)IOPS$", self.printed)


def _figure(pattern: str, printed: str) -> float:
    found = re.search(pattern, printed, re.MULTILINE)
    if found is None:
        raise ScriptError(f"the script printed no figures: {printed[-1000:]}")
    return float(found[1]) * _SUFFIXES[found[2]]


class Script:
    """A script that runs in a process of its own, from the time that this is made; it is killed at the end of the block.

    Args:
        file: The script.
        arguments: Of its command line.
        folder: Where it runs, and looks for ``key.pem`` and ``cert.pem`` when it encrypts.

    Attributes:
        name: Shown in errors.
    """

    def __init__(self, file: Path, arguments: Sequence[str], folder: Path) -> None:
        self.name = " ".join([file.name, *arguments])
        # Files take as much as a script writes that prints a number for each message, or an error again and again.
        self._output: IO[bytes] = TemporaryFile()  # noqa: SIM115  # closed with this
        self._errors: IO[bytes] = TemporaryFile()  # noqa: SIM115  # as above
        self._process = subprocess.Popen(
            [sys.executable, str(file), *arguments], cwd=folder, stdout=self._output, stderr=self._errors
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        self._output.close()
        self._errors.close()

    def kill(self) -> None:
        """End it, unless it has ended."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()

    def wait_until(self, is_ready: Callable[[], bool], timeout: float = READY_TIMEOUT) -> None:
        """Wait for the script to be ready.

        Raises:
            ScriptError: It ended instead, or is not ready in time.
        """
        deadline = time.monotonic() + timeout
        while not is_ready():
            if (code := self._process.poll()) is not None:
                raise ScriptError(f"{self.name} ended with exit code {code} before it was ready{self.complaints()}")
            if time.monotonic() > deadline:
                raise ScriptError(f"{self.name} was not ready within {timeout:g} s")
            time.sleep(PAUSE)

    def complaints(self) -> str:
        """Return the end of what it wrote to its standard error, on lines of its own."""
        # Not by seeking: a script that still runs writes where this descriptor, which is its own as well, stands.
        size = os.fstat(self._errors.fileno()).st_size
        said = os.pread(self._errors.fileno(), _COMPLAINTS, max(0, size - _COMPLAINTS)).decode(errors="replace")
        return f":\n{said.rstrip()}" if said else ""

    def descriptor(self) -> int:
        """Open a descriptor of the process, which is readable when it has ended."""
        return os.pidfd_open(self._process.pid)

    def outcome(self) -> Outcome:
        """Return what it did, once it has ended.

        Raises:
            ScriptError: It failed.
        """
        # Not `Popen.wait`: what the process had is known once, to whom waits for it.
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = code = os.waitstatus_to_exitcode(status)
        if code:
            raise ScriptError(f"{self.name} ended with exit code {code}{self.complaints()}")
        self._output.seek(0)
        # It overwrites its line with a number for each message.
        printed = self._output.read().decode().replace("\r", "\n")
        return Outcome(printed, usage.ru_maxrss * 1024)


def wait_all(scripts: Sequence[Script], timeout: float) -> list[Outcome]:
    """Wait for the end of scripts that need one another, and return what each did.

    Raises:
        ScriptError: One failed, which is told at once, or did not end within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    outcomes: dict[Script, Outcome] = {}
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for script in scripts:
            descriptor = script.descriptor()
            stack.callback(os.close, descriptor)
            selector.register(descriptor, selectors.EVENT_READ, script)
        while selector.get_map():
            ended = selector.select(max(0.0, deadline - time.monotonic()))
            if not ended:
                late = [key.data for key in selector.get_map().values()]
                names = ", ".join(script.name for script in late)
                said = "".join(script.complaints() for script in late)
                raise ScriptError(f"{names} did not end within {timeout:g} s{said}")
            for key, _ in ended:
                selector.unregister(key.fd)
                outcomes[key.data] = key.data.outcome()
    return [outcomes[script] for script in scripts]

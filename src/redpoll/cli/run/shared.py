"""Shared by the processes of `redpoll run`: its options, the app by its name, and the status of a worker."""

from __future__ import annotations

import importlib
import json
import mmap
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from redpoll.bus.app import App
from redpoll.errors import UsageError

__all__ = ["ENDED", "READY", "STARTING", "Options", "Status", "Told", "load"]

STARTING: Final = 0
READY: Final = 1
#: It leaves by itself, after so many tasks or for its memory, and is to be replaced.
ENDED: Final = 2

#: State, running tasks, size of the text; and the bytes of all.
_HEAD: Final = Struct("!BIH")
_SIZE: Final = 1_024


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a worker process. Times are seconds."""

    app: str
    number: int
    status: str
    url: str | None
    queues: list[str] | None
    concurrency: int | None
    grace: float
    max_tasks: int | None
    max_memory: int | None
    """Bytes."""
    json: bool
    quiet: bool

    def dump(self) -> str:
        """Return it as text, for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Options:
        """Make one of text."""
        return cls(**json.loads(text))


def load(name: str) -> App:
    """Import an app: "module:attribute", or "module" for its ``app``.

    Raises:
        UsageError: There is no such module or app, or importing it fails.
    """
    # As `python -m` does: the folder where the command is run.
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module, _, attribute = name.partition(":")
    try:
        found: object = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a module may raise anything, or be a script that ends
        absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        if absent or module.startswith("."):  # which would be relative to a package
            hint = (
                f"give its name: {Path(module).stem}"
                if module.endswith(".py")
                else "run it in the folder of the module"
            )
            raise UsageError(f"there is no module {module} in {folder}, or installed", hint) from None
        raise UsageError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    for each in (attribute or "app").split("."):
        if not hasattr(found, each):
            apps = [f"{module}:{key}" for key, value in vars(sys.modules[module]).items() if isinstance(value, App)]
            raise UsageError(
                f"{module} has no {attribute or 'app'}",
                f"it has {' and '.join(apps)}" if apps else "app = redpoll.App(…) makes one",
            )
        found = getattr(found, each)
    if not isinstance(found, App):
        raise UsageError(f"{name} is {type(found).__name__}, not a redpoll.App", "name it as module:attribute")
    return found


class Told(NamedTuple):
    """The last status that a worker wrote.

    Attributes:
        state: Its state.
        running: The number of tasks that were running.
        last: The task that was begun last.
    """

    state: int
    running: int
    last: str


class Status:
    """A file in which a worker says what it does: what it wrote is there after its death.

    Args:
        path: Its path; it has `create` called for it.
    """

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._last = b""

    @staticmethod
    def create(path: Path) -> None:
        """Make the file of a worker that starts, and its folder if that was removed."""
        path.parent.mkdir(0o700, exist_ok=True)
        path.write_bytes(bytes(_SIZE))

    @staticmethod
    def read(path: Path) -> Told:
        """Read the file of a worker."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return Told(READY, 0, "")  # the system removes temporary files that are old: it had begun long ago
        state, running, size = _HEAD.unpack_from(data)
        return Told(state, running, data[_HEAD.size :][:size].decode(errors="replace"))

    def write(self, state: int, running: int = 0, last: str | None = None) -> None:
        """Write a state."""
        if last is not None:
            self._last = last.encode()[: _SIZE - _HEAD.size]
        self._map[: _HEAD.size + len(self._last)] = _HEAD.pack(state, running, len(self._last)) + self._last

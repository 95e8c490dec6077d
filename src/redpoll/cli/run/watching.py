"""Changes of source files, and messages to systemd, for `redpoll run`."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["Notifier", "Sources"]

#: Source files that are watched at most.
_FILES: Final = 20_000
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


class Sources:
    """The Python files of a folder and of those below it; hidden folders and installed packages are left out.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._look()

    def changed(self) -> bool:
        """Return True if a file is new, gone or different since the last look."""
        before, self._seen = self._seen, self._look()
        return before != self._seen

    def _look(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for path in self._files():
            with contextlib.suppress(OSError):  # it was there a moment ago
                found[path] = os.stat(path).st_mtime_ns  # noqa: PTH116  # of thousands, twice a second
            if len(found) >= _FILES:
                break
        return found

    def _files(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [each for each in folders if not each.startswith(".") and each not in _SKIPPED]
            yield from (os.path.join(folder, each) for each in files if each.endswith(".py"))  # noqa: PTH118


class Notifier:
    """Tells systemd how it is, where it asks: NOTIFY_SOCKET and WATCHDOG_USEC of the environment.

    Attributes:
        every: Seconds between two signs of life that it wants; None is none.
    """

    def __init__(self) -> None:
        self._path = os.environ.get("NOTIFY_SOCKET", "")
        wanted = os.environ.get("WATCHDOG_USEC", "") if self._path else ""
        mine = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.every = int(wanted) / 2_000_000 if wanted.isdigit() and mine else None

    def tell(self, text: str) -> None:
        """Send a message: "READY=1". One for which there is no room is dropped: this process is not to wait for it."""
        if not self._path:
            return
        # A name that begins with @ is an abstract one.
        path = f"\0{self._path[1:]}" if self._path.startswith("@") else self._path
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
            sock.setblocking(False)
            sock.sendto(text.encode(), path)

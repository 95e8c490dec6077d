"""A mosquitto of a benchmark's own, and who listens where."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from benchmarks.scripts import PAUSE, READY_TIMEOUT, ScriptError

if TYPE_CHECKING:
    from types import TracebackType

#: A subscription in the log of mosquitto: client, quality of service, topic.
_SUBSCRIPTION = re.compile(r"^\S+ [012] \S+$", re.MULTILINE)


def is_listening(port: int) -> bool:
    """Whether somebody listens at a TCP port of this machine: looked up, as net-queue takes a connection for a client."""
    wanted = f":{port:04X}"
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state = line.split()[:4]
            if state == "0A" and local.endswith(wanted):
                return True
    return False


def broker_program() -> str:
    """Return the mosquitto of this machine.

    Raises:
        ScriptError: There is none; says how to install it.
    """
    # Debian has it where only root looks.
    found = shutil.which("mosquitto", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
    if found is None:
        raise ScriptError("MQTT goes through a mosquitto on this machine: apt-get install mosquitto")
    return found


class Broker:
    """A mosquitto of its own on 127.0.0.1; it is killed at the end of the block.

    Args:
        folder: Where its files go; with ``key.pem`` and ``cert.pem`` there it can encrypt.
        port: Where it listens.
        encrypted: Whether it does.
    """

    def __init__(self, folder: Path, port: int, *, encrypted: bool = False) -> None:
        self._log = folder / f"mosquitto-{port}.log"
        lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", "persistence false", "max_queued_messages 0"]
        lines += ["log_dest stderr", "log_timestamp false", "log_type error", "log_type subscribe"]
        if os.geteuid() == 0:
            lines.append("user root")
        if encrypted:
            lines += [f"certfile {folder / 'cert.pem'}", f"keyfile {folder / 'key.pem'}"]
        settings = folder / f"mosquitto-{port}.conf"
        settings.write_text("\n".join(lines) + "\n")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen([broker_program(), "-c", str(settings)], stderr=log)
        try:
            self._wait_listening(port)
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _wait_listening(self, port: int) -> None:
        deadline = time.monotonic() + READY_TIMEOUT
        while not is_listening(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ScriptError(f"mosquitto does not listen: {self._log.read_text()}")
            time.sleep(PAUSE)

    @property
    def subscriptions(self) -> int:
        """Return the number of subscriptions so far."""
        return len(_SUBSCRIPTION.findall(self._log.read_text()))

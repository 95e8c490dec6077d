"""A RabbitMQ of a benchmark's own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

READY_TIMEOUT = 60.0
PAUSE = 0.1
#: Debian's own script; the one in /usr/sbin runs the server as another user, in the folders of the system.
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class RabbitMQ:
    """A server of its own on 127.0.0.1, with its files below `folder`; it is ended at the end of the block.

    Args:
        folder: Where its files go.

    Attributes:
        url: What clients connect to.
    """

    def __init__(self, folder: Path) -> None:
        daemon = shutil.which("epmd")
        if daemon is None or not PROGRAM.exists():
            raise FileNotFoundError("RabbitMQ is not installed: apt-get install rabbitmq-server")
        port, between, names = _free_ports(3)
        self.url = f"amqp://guest:guest@127.0.0.1:{port}/"
        settings = folder / "rabbitmq.conf"
        settings.write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\nlog.file = false\nlog.console = true\n")
        env = {
            **os.environ,
            "HOME": str(folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(names),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_CONFIG_FILE": str(settings),
            "RABBITMQ_DIST_PORT": str(between),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_NODENAME": f"redpoll{port}@localhost",
        }
        self._log = folder / "rabbitmq.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            with self._log.open("wb") as log:
                # The server would start this daemon by itself, and leave it running.
                for command in ([daemon], [str(PROGRAM)]):
                    # In the group of this end, so that they end with it when it has to be killed.
                    self._processes.append(
                        subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
                    )
            self._wait_ready(port)
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
        while self._processes:
            process = self._processes.pop()
            process.terminate()  # the script ends the server that it started
            process.wait()

    def _wait_ready(self, port: int) -> None:
        """Wait until it answers: to the header of a protocol that it does not speak, with the one that it does."""
        deadline = time.monotonic() + READY_TIMEOUT
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1) as client:
                    client.sendall(b"AMQP\x00\x00\x00\x00")
                    if client.recv(8):
                        return
            except OSError:
                pass
            if self._processes[-1].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"RabbitMQ does not listen: {self._log.read_text()}")
            time.sleep(PAUSE)


def _free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody uses now."""
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in found]
    for each in found:
        each.close()
    return ports

"""What differs between systems: nothing that POSIX alone has is needed."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from redpoll import platforms
from tests.cli.support import environment
from tests.source_tree import ROOT


def elsewhere(*arguments: str) -> subprocess.Popen[str]:
    """Start a process without what POSIX alone has."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.elsewhere", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    )


def test_everything_can_be_imported() -> None:
    """Each module is imported where there are no forks, unix sockets, signals, flags of memory, fcntl, and no uvloop."""
    with elsewhere("import") as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert int(out) > 250


def test_nodes_talk() -> None:
    """There they send, request, send 40 MB, encrypt; wirings, threads and queues work; unix sockets are refused in words."""
    with elsewhere("talk") as process:
        out, err = process.communicate()
    assert (process.returncode, out) == (0, "done\n"), err


def test_a_command_drains_on_an_interruption() -> None:
    """Ctrl-C ends a command as elsewhere, though the event loop has no handlers of signals."""
    with elsewhere("command", "listen", "0", "--json") as process:
        assert process.stdout is not None
        assert '"listening"' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert '"done"' in out


def test_a_second_signal_ends_the_process() -> None:
    """A process dies of a signal that nobody handles any more."""
    code = "import signal; from redpoll.platforms import die_by; die_by(signal.SIGTERM); input()"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), stdin=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGTERM


@pytest.mark.parametrize("has", [True, False])
def test_signals_are_told_on_the_loop(monkeypatch: pytest.MonkeyPatch, has: bool) -> None:
    """What is to be called for a signal is called on the loop, and what was there for it before is there afterwards."""

    def refuse(*_: object) -> None:
        raise NotImplementedError

    async def wait() -> signal.Signals:
        loop = asyncio.get_running_loop()
        if not has:
            monkeypatch.setattr(loop, "add_signal_handler", refuse)
        got: asyncio.Future[signal.Signals] = loop.create_future()
        with platforms.signals(loop, [signal.SIGTERM], got.set_result):
            os.kill(os.getpid(), signal.SIGTERM)
            return await got

    # Loops of other tests may have left theirs.
    left = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with asyncio.Runner() as runner:
            assert runner.run(wait()) is signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, left)


def test_a_port_that_is_taken_is_taken() -> None:
    """A socket is not bound where another listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as second:
        platforms.bind_alone(second)
        with pytest.raises(OSError, match="in use") as caught:
            second.bind(taken.getsockname())
    assert caught.value.errno == errno.EADDRINUSE


def test_which_socket_is_a_unix_socket() -> None:
    """One in the file system is told from one of a network."""
    with socket.socket(socket.AF_UNIX) as unix, socket.socket() as tcp:
        assert platforms.is_unix(unix)
        assert not platforms.is_unix(tcp)


def test_children_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to happen in a child happens there; where there are none nothing is asked for."""
    reader, writer = os.pipe()
    told = [writer]
    platforms.after_fork(lambda: [os.write(each, b"child") for each in told])
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 5) == b"child"
    # It stays there for the children of other tests.
    told.clear()
    os.close(reader)
    os.close(writer)
    monkeypatch.delattr(os, "register_at_fork")
    platforms.after_fork(lambda: told.append(0))
    assert not told


def test_a_file_has_one_lock(tmp_path: Path) -> None:
    """A locked file cannot be locked again, in this process either, until it is unlocked."""
    path = tmp_path / "lock"
    first, second = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert platforms.lock_file(first)
    assert not platforms.lock_file(second)
    platforms.unlock_file(first)
    assert platforms.lock_file(second)
    platforms.unlock_file(second)


def test_network_file_systems_are_told(tmp_path: Path) -> None:
    """The last mount at the longest path above one says what it is on; without a table none is known."""
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda / ext4 rw 0 0\nhost:/srv /srv nfs4 rw 0 0\n/dev/sdb /srv/local xfs rw 0 0\n"
        "x /ssh\\040d fuse.sshfs rw 0 0\nhost:/over /over nfs rw 0 0\n/dev/sdc /over ext4 rw 0 0\n"
    )
    expected = {
        "/srv": "nfs4",
        "/srv/x": "nfs4",
        "/srvx": None,
        "/srv/local/a": None,
        "/ssh d/a": "fuse.sshfs",
        "/over": None,
    }
    assert {path: platforms.mounted_over_network(path, str(mounts)) for path in expected} == expected
    assert platforms.mounted_over_network("/srv", str(tmp_path / "none")) is None

"""Where the command begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from redpoll.pki import CA
from tests.cli.support import environment


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_which(missing: str) -> None:
    """Without typer or rich it exits with 2 and names the extra to install, without a traceback."""
    script = f"import sys; sys.modules[{missing!r}] = None; from redpoll.cli import main; main(['demo'])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environment()
    )
    assert done.returncode == 2
    assert done.stderr == "redpoll: error: the command needs the extra `cli`: pip install 'redpoll[cli]'\n"


def test_closed_descriptors_are_not_taken_by_sockets() -> None:
    """Started with 0, 1 and 2 closed it fills them, so that nothing it prints ends up in a connection."""
    script = (
        "import os, sys\n"
        "from redpoll.cli import entry\n"
        "for number in range(3): os.close(number)\n"
        "entry._fill_closed_descriptors()\n"
        "os._exit(sum(os.fstat(number).st_rdev == os.stat(os.devnull).st_rdev for number in range(3)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, env=environment())
    assert done.returncode == 3


@pytest.mark.parametrize(
    "command", ["--version", "--help", "wiring show 127.0.0.1:1 --json --timeout 1", "pki show --json"]
)
def test_a_full_disk_is_one_error(command: str, tmp_path: Path) -> None:
    """Where standard output cannot be written a command exits with 1 and says so, without a traceback."""
    CA.make().save(tmp_path / "pki")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "redpoll", *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment(),
            cwd=tmp_path,
        )
    assert done.stderr.splitlines()[-1] == "redpoll: error: cannot write standard output: No space left on device"
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)

"""Where the command begins, before redpoll is imported."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib

import pytest

import redpoll
from tests.cli.support import PATIENCE, environment
from tests.source_tree import ROOT

#: A process that Ctrl-C meets as a module is about to be imported, or a function of the command's to be called.
_AT_IMPORT = """
import os, signal, sys
class Importing:
    def find_spec(self, name, path=None, target=None):
        if name == {at!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Importing())
from _redpoll_command import main
sys.argv = ["redpoll", "listen", "0"]
main()
"""
_AT_CALL = """
import asyncio, importlib, os, signal, sys
module = importlib.import_module({module!r})
def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGINT)
    return called(*arguments)
called, module.{function} = module.{function}, interrupted
from _redpoll_command import main
sys.argv = ["redpoll", "listen", "0"]
main()
"""


def _ended(script: str) -> tuple[int, bytes]:
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", script], stdin=subprocess.DEVNULL, capture_output=True, check=False,
        env=environment(), timeout=PATIENCE,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("at", ["redpoll", "redpoll.node.node", "redpoll.cli.entry", "typer", "redpoll.cli.listen"])
def test_ctrl_c_before_the_command_is_there(at: str) -> None:
    """Ctrl-C while the command is imported ends it by the signal, as any tool of the system, and nothing is printed."""
    assert _ended(_AT_IMPORT.format(at=at)) == (-signal.SIGINT, b"")


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("redpoll.cli.listen", "listen_address"),
        ("redpoll.cli.runtime", "run_loop"),
        ("redpoll.runner", "loop_factory"),
    ],
)
def test_ctrl_c_before_the_command_has_begun(module: str, function: str) -> None:
    """Ctrl-C before the event loop takes it is exit code 130, and nothing is printed."""
    assert _ended(_AT_CALL.format(module=module, function=function)) == (130, b"")


def test_ctrl_c_that_is_ignored_stays_so() -> None:
    """Where the shell had Ctrl-C ignored, as for what runs in its background, the command ignores it too."""
    script = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + _AT_IMPORT.format(at="typer")
    script = script.replace('"listen", "0"', '"--version"')
    assert _ended(script) == (0, f"redpoll {redpoll.__version__}\n".encode())


def test_the_command_begins_outside_of_the_package() -> None:
    """What is installed is the module that is there before redpoll is imported, and the wheel holds it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"redpoll": "_redpoll_command:main"}
    assert "src/_redpoll_command.py" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]

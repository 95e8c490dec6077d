"""The fenced blocks of README and the documentation, and a program that runs those of one page as a reader would.

Python blocks of a page share their names, like one session of `python -m asyncio`: `await` may stand at the top. Shell
blocks run one after another in an empty folder. A block titled Output is what the block before it prints; one titled
with the name of a file is that file, and not run by itself.

`python -m tests.doc_pages FILE` runs one page and reports what differs; `5672=41000` behind it puts that port in the place of
one that the page names.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib.metadata
import inspect
import io
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from tests.ports import free_port

ROOT = Path(__file__).parent.parent

#: The plugin for pytest, where this checkout was not installed since it has one.
PLUGINS = [] if importlib.metadata.entry_points(group="pytest11", name="redpoll") else ["_redpoll_pytest"]

# The ports that the pages name. Each run puts free ones in their place, so that pages can be run side by side.
PORTS = ("2998", "2999", "5682")

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, what else its first line says, its text, and the line where that begins."""

    language: str
    info: str
    text: str
    line: int

    @property
    def is_output(self) -> bool:
        """Whether it shows what the block before it prints."""
        return 'title="Output"' in self.info

    @property
    def file(self) -> str | None:
        """The name of the file that it shows, in the page's folder; None if it is none."""
        match = re.search(r'title="([\w-]+\.\w+)"', self.info)
        return match[1] if match else None


def pages() -> list[Path]:
    """Return README and every page of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        indent = len(match["indent"])
        inner = "".join(line[indent:] if line.strip() else line for line in match["text"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start("text")) + 1
        found.append(Block(match["language"], match["info"].strip(), inner, line))
    return found


def installs(block: Block) -> bool:
    """Whether a shell block sets up an environment: .ci/run runs README's, and a test says that it does."""
    return block.language == "sh" and "pip install" in block.text


def run(page: Path, ports: Mapping[str, str]) -> list[str]:
    """Run the blocks of one page; return what went wrong, nothing if all is as it says.

    Args:
        page: The page.
        ports: More ports that are to take the place of others.
    """
    problems = []
    found = blocks(page)
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as commands,
        _prepared(found, Path(commands, "socket")) as command,
        asyncio.Runner() as runner,
    ):
        session = _Session(Path(folder), Path(commands), command, runner, ports)
        for block, following in zip(found, [*found[1:], None], strict=True):
            if (block.language not in {"python", "sh"} and block.file is None) or installs(block):
                continue
            where = f"{page.relative_to(ROOT)}:{block.line}"
            try:
                printed = session.run(block, where)
            except Exception:  # noqa: BLE001 - whatever a page raises is what this reports
                problems.append(f"{where} failed:\n{traceback.format_exc()}")
                continue
            if following is not None and following.is_output and session.put_ports(following.text) != printed:
                problems.append(f"{where} prints\n{printed}but the page shows\n{session.put_ports(following.text)}")
    return problems


@contextlib.contextmanager
def _prepared(found: list[Block], where: Path) -> Iterator[list[str]]:
    """Yield what `redpoll` is in a page: forked from a process that has imported it.

    What is sent to the background is there soon then, however loaded the machine is.
    """
    text = "".join(block.text for block in found if block.language == "sh")
    if sys.platform != "linux" or not re.search("^redpoll ", text, re.MULTILINE):
        yield [sys.executable, "-m", "redpoll"]
        return
    folder = ROOT / "tests" / "cli"
    with subprocess.Popen([sys.executable, str(folder / "prepared.py"), str(where)]) as server:
        try:
            while not where.exists() and server.poll() is None:
                time.sleep(0.01)
            yield [sys.executable, "-I", "-S", str(folder / "forked.py"), str(where)]
        finally:
            server.kill()


class _Session:
    def __init__(
        self, folder: Path, commands: Path, redpoll: list[str], runner: asyncio.Runner, ports: Mapping[str, str]
    ) -> None:
        self._folder = folder
        # Its files can be imported, as where a reader has them.
        sys.path.insert(0, str(folder))
        self._commands = commands
        self._runner = runner
        # The command of this interpreter, whether or not its folder is on the path.
        command = commands / "redpoll"
        command.write_text(f'#!/bin/sh\nexec {shlex.join(redpoll)} "$@"\n')
        command.chmod(0o755)
        # The python that has redpoll, as in an environment that was activated.
        python = commands / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        # pytest as it is for a user, who has the plugin installed.
        options = " ".join(f"-p {name}" for name in PLUGINS)
        tests = commands / "pytest"
        tests.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -m pytest -p no:cacheprovider -p no:hypothesispytest {options} "$@"\n'
        )
        tests.chmod(0o755)
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._ports = {port: str(free_port()) for port in PORTS} | dict(ports)

    def put_ports(self, text: str) -> str:
        for port, free in self._ports.items():
            text = re.sub(rf"\b{port}\b", free, text)
        return text

    def run(self, block: Block, where: str) -> str:
        text = self.put_ports(block.text)
        if block.file is not None:
            (self._folder / block.file).write_text(text)
            return ""
        return self._python(text, where) if block.language == "python" else self._shell(text)

    def _python(self, text: str, where: str) -> str:
        code = compile(text, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(self._folder):
            if code.co_flags & inspect.CO_COROUTINE:
                self._runner.run(self._awaiting(code))
            else:
                exec(code, self._names)
        return printed.getvalue()

    async def _awaiting(self, code: CodeType) -> None:
        await eval(code, self._names)

    def _shell(self, text: str) -> str:
        bash = shutil.which("bash") or "/bin/bash"
        with (
            tempfile.TemporaryFile("w+") as printed,
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                [bash, "-euo", "pipefail", "-c", text],
                cwd=self._folder,
                # mosquitto is where users do not look for programs.
                env={
                    **os.environ,
                    "COLUMNS": "100",
                    "PATH": f"{self._commands}{os.pathsep}{os.environ['PATH']}:/usr/sbin",
                },
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=errors,
                start_new_session=True,
            ) as shell,
        ):
            status: int | str
            try:
                status = shell.wait(50)
            except subprocess.TimeoutExpired:
                status = "none: it did not end"
            if status != 0:
                # What it began in the background would go on.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(shell.pid, signal.SIGKILL)
            printed.seek(0)
            errors.seek(0)
            if status != 0:
                # What went to a file may say why.
                files = [path for path in self._folder.iterdir() if path.suffix in {".json", ".txt"}]
                told = "".join(f"{path.name}: {path.read_text()[-1000:]}\n" for path in files)
                raise RuntimeError(f"exit code {status}\n{printed.read()}{errors.read()}{told}")
            return printed.read()


if __name__ == "__main__":
    # Some pages show handlers that raise; their tracebacks are for a log, not for the reader.
    logging.getLogger("redpoll").addHandler(logging.NullHandler())
    failures = run(Path(sys.argv[1]).resolve(), dict(each.split("=") for each in sys.argv[2:]))
    print("\n".join(failures), end="")
    sys.exit(1 if failures else 0)

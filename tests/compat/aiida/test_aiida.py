"""AiiDA with the broker `redpoll`: calculations through its daemon, and a hub on another machine (`nox -s aiida`)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.doc_pages import blocks
from tests.interop.namespaces import Namespace, two_namespaces
from tests.test_benchmarks import ON_AIIDA, check_row

pytestmark = [pytest.mark.interop, pytest.mark.nightly, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "how-to" / "aiida.md"
#: Seconds that what should happen may take on a busy machine.
PATIENCE = 240
TOKENS = {"one": "one-0123456789abcdef", "two": "two-0123456789abcdef", "all": "all-0123456789abcdef"}


class Machine:
    """A machine of AiiDA: a network namespace, and a folder."""

    def __init__(self, namespace: Namespace, folder: Path) -> None:
        self._within = namespace.within
        self._env = {
            **os.environ,
            "AIIDA_PATH": str(folder),
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self.folder = folder

    def run(self, *command: str) -> str:
        """Run a command; return what it prints."""
        done = subprocess.run([*self._within, *command], env=self._env, capture_output=True, text=True, cwd=self.folder)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def step(self, profile: str, name: str, *arguments: object) -> Any:
        """Run a step of the program."""
        shown = self.run(sys.executable, str(HERE / "program.py"), profile, name, *map(str, arguments))
        return json.loads(shown.splitlines()[-1])

    def workers(self, profile: str, count: int) -> list[int]:
        """Wait until the daemon has so many workers; return their processes."""
        end = time.monotonic() + PATIENCE
        while True:
            shown = self.run("verdi", "-p", profile, "daemon", "status")
            found = [int(number) for number in re.findall(r"^ *(\d+) +\S+ +\S+ +20", shown, re.MULTILINE)]
            if len(found) == count:
                return found
            assert time.monotonic() < end, shown + self.logs()

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        return "".join(f"\n{each}:\n{each.read_text()[-4_000:]}" for each in self.folder.rglob("daemon/log/*.log"))


class Hub:
    """A hub in a namespace, which can be killed and started again."""

    def __init__(self, namespace: Namespace, folder: Path) -> None:
        self._command = [
            *(*namespace.within, sys.executable, "-m", "redpoll", "hub", "--data", str(folder / "data")),
            *("--host", namespace.host, "--port", "5683", "--json"),
            *("--tls", str(folder / "pki" / "hub.pem"), "--tokens", str(folder / "tokens.toml")),
        ]
        self.start()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert json.loads(self._process.stdout.readline())["event"] == "listening"

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Machine, Hub, dict[str, str]]]:
    """A machine of AiiDA with two profiles, whose daemons run, and a hub on another one; and the URLs of the profiles."""
    pki = str(tmp_path / "pki")
    with two_namespaces() as (far, near):
        for command in ("init",), ("issue", "hub", "--names", far.host), ("issue", "aiida"):
            subprocess.run([sys.executable, "-m", "redpoll", "pki", *command, "--dir", pki], check=True)
        machine = Machine(near, tmp_path / "aiida")
        machine.folder.mkdir()
        urls = {name: f"redpoll://{token}@{far.host}:5683?tls={pki}/aiida.pem" for name, token in TOKENS.items()}
        configure = next(each.text for each in blocks(PAGE) if 'title="configure.py"' in each.info)
        (tmp_path / "configure.py").write_text(configure)
        tokens = [f'[operator]\ntoken = "{TOKENS["all"]}"\nall = ["#"]\n']
        for name in ("one", "two"):
            machine.run(
                *("verdi", "profile", "setup", "core.sqlite_dos", "-n", "--profile-name", name, "--broker", "none"),
                *("--email", "a@example.org", "--first-name", "A", "--last-name", "B", "--institution", "C"),
            )
            machine.run(sys.executable, str(tmp_path / "configure.py"), name, urls[name])
            uuid = machine.step(name, "uuid")
            tokens.append(f'[{name}]\ntoken = "{TOKENS[name]}"\nall = ["aiida-{uuid}.#", "/aiida-{uuid}.#"]\n')
        tokens_file = tmp_path / "tokens.toml"
        tokens_file.write_text("\n".join(tokens))
        tokens_file.chmod(0o600)
        hub = Hub(far, tmp_path)
        try:
            for name in ("one", "two"):
                machine.step(name, "prepare", tmp_path / f"work-{name}")
                machine.run("verdi", "-p", name, "daemon", "start", "2")
            yield machine, hub, urls
        finally:
            for name in ("one", "two"):
                subprocess.run(
                    [*near.within, "verdi", "-p", name, "daemon", "stop", "--timeout", "60"],
                    env=machine._env,
                    capture_output=True,
                    check=False,
                )
            hub.kill()


def test_calculations_survive_kills(places: tuple[Machine, Hub, dict[str, str]]) -> None:
    """All calculations finish though a daemon's worker and the hub are killed meanwhile; two profiles share the hub."""
    machine, hub, _ = places
    status = machine.step("one", "status")
    assert (status["product"], status["engine"], status["reached"]) == ("redpoll", "redpoll", True)
    assert TOKENS["one"] not in status["text"]
    twos = machine.step("two", "submit", 4, 0)
    workers = machine.workers("one", 2)
    ones = machine.step("one", "submit", 8, 40)
    assert machine.step("one", "taken", PATIENCE, 6) >= 6
    # What it had goes to the other worker, or to the one that the daemon starts in its place.
    os.kill(workers[0], 9)
    assert machine.step("one", "taken", PATIENCE, 6) >= 6
    hub.kill()
    hub.start()
    assert machine.step("one", "sums", PATIENCE, *ones) == [number + 1 for number in range(8)], machine.logs()
    assert machine.step("two", "sums", PATIENCE, *twos) == [1, 2, 3, 4], machine.logs()
    assert machine.step("one", "taken", 0, 1) == 0


def test_benchmark(tmp_path: Path) -> None:
    """The benchmark of calculations completes with redpoll alone, and none is lost."""
    for name in sorted(ON_AIIDA):
        check_row(name, tmp_path)

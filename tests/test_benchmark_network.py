"""The network of benchmarks that tc shapes: two machines, which leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.network import ADDRESSES, NEEDED, shaped
from benchmarks.processes import ROOT, BenchmarkError

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.interop

#: Bytes that are more than the burst that the shape lets through.
MUCH = 4 << 20

#: A program that makes the network, says which processes hold it, and waits.
HOLDER = """
from benchmarks.network import shaped
with shaped("1gbit") as network:
    print(network.server[1], network.client[1], flush=True)
    input()
"""


def said(place: Sequence[str], *command: str) -> str:
    """What a command prints in one of the machines."""
    return subprocess.run([*place, *command], capture_output=True, text=True, check=True).stdout


def test_they_are_two_machines_with_a_shaped_cable() -> None:
    """Each has its address and a cable that tc shapes; this machine has neither."""
    with shaped("1gbit") as network:
        for place, address in zip((network.server, network.client), ADDRESSES, strict=True):
            assert address in said(place, "ip", "-brief", "address")
            assert "tbf" in said(place, "tc", "qdisc", "show", "dev", "cable")
            assert "rate 1Gbit" in said(place, "tc", "qdisc", "show", "dev", "cable")
        shown = said([], "ip", "-brief", "address")
        assert not any(address in shown for address in ADDRESSES)
        assert network.options == {"host": ADDRESSES[0], "client_host": ADDRESSES[1]}


def test_bytes_go_through() -> None:
    """What one machine sends arrives at the other, whole."""
    take = "import socket, sys; s = socket.create_server((sys.argv[1], 5000)); print(flush=True); c, _ = s.accept(); n = 0\n"
    take += "while data := c.recv(1 << 16): n += len(data)\nprint(n)"
    give = "import socket, sys; c = socket.create_connection((sys.argv[1], 5000)); c.sendall(bytes(int(sys.argv[2])))"
    with shaped("1gbit") as network:
        python = [sys.executable, "-c"]
        with subprocess.Popen(
            [*network.server, *python, take, ADDRESSES[0]], stdout=subprocess.PIPE, text=True
        ) as taker:
            assert taker.stdout is not None
            taker.stdout.readline()
            said(network.client, *python, give, ADDRESSES[0], str(MUCH))
            assert int(taker.stdout.read()) == MUCH


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_it_ends(number: signal.Signals) -> None:
    """When what made the network is killed the processes that hold it end, and it with them."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as holder:
        assert holder.stdout is not None
        places = [Path(word.removeprefix("--net=")) for word in holder.stdout.readline().split()]
        assert len(places) == 2
        assert all(place.exists() for place in places)
        holder.send_signal(number)
        holder.wait()
    while any(place.exists() for place in places):
        pass


def test_what_is_needed_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where no namespace can be made, or a program is missing, the benchmark says what it needs."""
    refusing = tmp_path / "unshare"
    refusing.write_text("#!/bin/sh\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(BenchmarkError) as caught, shaped("1gbit"):
        pass
    assert NEEDED in str(caught.value)
    monkeypatch.setattr("benchmarks.network.shutil.which", lambda name, path: None)
    with pytest.raises(BenchmarkError, match="there is no ip and no tc"), shaped("1gbit"):
        pass

"""net-queue's own two scripts run with redpoll, changed in the one line that imports net-queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.broker import Broker
from benchmarks.encryption import self_signed
from benchmarks.scripts import Outcome, Script, fetch, wait_all
from tests.ports import free_port

pytestmark = pytest.mark.interop

PROTOCOLS = ("tcp", "mqtt", "grpc")

each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
each_encryption = pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
each_number = pytest.mark.parametrize("clients", [1, 3])
each_mode = pytest.mark.parametrize("mode", ["sync", "async"])


class Stage:
    """Where the scripts play: a folder with a certificate, a port, and a broker if the protocol needs one."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._scripts = fetch() / "ours"
        self._folder = folder
        self._stack = stack
        self_signed(folder)

    def run(
        self,
        name: str,
        protocol: str,
        *options: str,
        clients: int = 1,
        encrypted: bool = False,
        timeout: float = 50.0,
    ) -> list[Outcome]:
        """Start a script's server and clients at once, in no order, and return what each did, the server first."""
        port = free_port()
        if protocol == "mqtt":
            self._stack.enter_context(Broker(self._folder, port, encrypted=encrypted))
        common = [*options, "--port", str(port), "--clients", str(clients), *(["--secure"] if encrypted else [])]
        running = [
            self._stack.enter_context(Script(self._scripts / name, [protocol, purpose, *common], self._folder))
            for purpose in ["server", *["client"] * clients]
        ]
        return wait_all(running, timeout)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(tmp_path, stack)


class TestApi:
    @each_number
    @each_encryption
    @each_protocol
    def test_everybody_gets_what_is_for_all_and_what_is_for_one(
        self, stage: Stage, protocol: str, encrypted: bool, clients: int
    ) -> None:
        """The server gets a message of each client; each gets the one that goes to all, then the one for itself."""
        server, *others = stage.run("api.py", protocol, clients=clients, encrypted=encrypted)

        assert server.printed.count("-c2s: ") == clients
        for other in others:
            # The script itself asserts what they hold.
            assert other.printed.index("-s2c-global: ") < other.printed.index("-s2c-local: ")


class TestIops:
    @each_encryption
    @each_mode
    @each_protocol
    def test_messages_of_many_sizes(self, stage: Stage, protocol: str, mode: str, encrypted: bool) -> None:
        """All messages of 256 bytes to 16 MiB arrive at both ends, one way after the other and both at once."""
        for outcome in stage.run("iops.py", protocol, mode, "--max-size", "24", encrypted=encrypted):
            assert outcome.operations > 0

    @each_mode
    @each_protocol
    def test_several_clients(self, stage: Stage, protocol: str, mode: str) -> None:
        """The server gets the messages of all clients, each client those that go to all, and then all of them end."""
        options = [mode, "--step-size", "0", "--max-size", "12", "--reps", "200"]
        for outcome in stage.run("iops.py", protocol, *options, clients=3):
            assert "Data:       600.0 @" in outcome.printed

    @each_mode
    @each_protocol
    def test_a_receiver_that_begins_late(self, stage: Stage, protocol: str, mode: str) -> None:
        """Messages that arrive before anybody gets them wait, in order of thousands and of megabytes."""
        options = [mode, "--delay", "0.5", "--step-size", "4", "--max-size", "22", "--reps", "8"]
        for outcome in stage.run("iops.py", protocol, *options):
            assert outcome.operations > 0

    @pytest.mark.parametrize(
        "options",
        [("--get-merge", ""), ("--put-merge", ""), ("--transport-size", "65536"), ("--workers", "4")],
        ids=lambda options: options[0].strip("-"),
    )
    @each_protocol
    def test_each_option(self, stage: Stage, protocol: str, options: tuple[str, ...]) -> None:
        """The script runs with every option of connections that it has set to something else than the default."""
        for outcome in stage.run("iops.py", protocol, "async", *options, "--max-size", "20"):
            assert outcome.operations > 0

    @pytest.mark.timeout(600)
    @each_mode
    @each_protocol
    def test_messages_of_4_gib(self, stage: Stage, protocol: str, mode: str) -> None:
        """With its defaults, whose largest message has 4 GiB, the script runs to its end."""
        for outcome in stage.run("iops.py", protocol, mode, timeout=550.0):
            assert outcome.operations > 0

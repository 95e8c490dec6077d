"""What runs net-queue's scripts beside redpoll; here with scripts of its own."""

from __future__ import annotations

import io
import socket
import ssl
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.broker import is_listening
from benchmarks.encryption import self_signed
from benchmarks.memory import forget_peak, peak_bytes
from benchmarks.scripts import NAMES, VERSION, Outcome, Script, ScriptError, unpack, wait_all

Starter = Callable[[str], Script]

FIGURES = """\
499
Time:       1.3s
Data:       500.0 @ 2.1MB
Transfer:   2.1GB @ 13.43Gbps
Operations: 1.0K @ 801.27IOPS
"""


def distribution(folder: Path, text: str, names: tuple[str, ...] = NAMES) -> Path:
    """A source distribution that holds scripts of a text."""
    file = folder / "made.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        for name in names:
            entry = tarfile.TarInfo(f"net_queue-{VERSION}/net_queue/test/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return file


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Starter]:
    with ExitStack() as stack:

        def start(text: str) -> Script:
            file = tmp_path / f"script-{len(list(tmp_path.iterdir()))}.py"
            file.write_text(text)
            return stack.enter_context(Script(file, [], tmp_path))

        yield start


def test_the_copy_for_redpoll_differs_in_one_line(tmp_path: Path) -> None:
    """The scripts are unpacked as they are, and once more with another import."""
    unpack(distribution(tmp_path, "import os\nimport net_queue as nq\n\nnq.new()\n"), tmp_path / "to")

    for name in NAMES:
        assert (tmp_path / "to/theirs" / name).read_text() == "import os\nimport net_queue as nq\n\nnq.new()\n"
        assert (tmp_path / "to/ours" / name).read_text() == "import os\nfrom redpoll import nq\n\nnq.new()\n"


def test_a_script_without_the_line_is_an_error(tmp_path: Path) -> None:
    """A script that imports net-queue in another way would run with net-queue and be taken for redpoll."""
    with pytest.raises(ScriptError, match="does not say once 'import net_queue as nq'"):
        unpack(distribution(tmp_path, "import net_queue\n"), tmp_path / "to")


def test_a_missing_script_is_an_error(tmp_path: Path) -> None:
    """A distribution without one of the scripts is an error that names it."""
    with pytest.raises(ScriptError, match=r"has no iops\.py"):
        unpack(distribution(tmp_path, "import net_queue as nq\n", ("api.py",)), tmp_path / "to")


def test_figures_are_read_with_their_suffixes() -> None:
    """Rates are in bits and operations a second, whatever unit they are printed in."""
    outcome = Outcome(FIGURES, 0)
    assert outcome.bits == pytest.approx(13.43e9)
    assert outcome.operations == pytest.approx(801.27)
    assert Outcome(FIGURES.replace("801.27IOPS", "30.9KIOPS"), 0).operations == pytest.approx(30_900)


def test_a_script_without_figures_is_an_error() -> None:
    """What was printed instead of the figures is in the error."""
    with pytest.raises(ScriptError, match="no figures: nothing of that kind"):
        _ = Outcome("nothing of that kind", 0).bits


def test_a_script_is_run_to_its_end(started: Starter) -> None:
    """What it printed over the same line again and again is there in lines, and so is the memory that it had."""
    script = started("data = b'x' * (64 << 20)\nfor i in range(3): print(i, end='\\r', flush=True)\nprint(i)")
    (outcome,) = wait_all([script], 50)
    assert outcome.printed.split() == ["0", "1", "2", "2"]
    assert outcome.peak > 64 << 20


def test_a_script_that_fails_is_told_at_once(started: Starter) -> None:
    """One that others would wait for in vain is not waited for with them, and what it said is in the error."""
    waits = started("import time\ntime.sleep(1000)")
    with pytest.raises(ScriptError, match=r"script-1\.py ended with exit code 1:\nno such thing$"):
        wait_all([waits, started("raise SystemExit('no such thing')")], 50)


def test_a_script_that_does_not_end_is_an_error(started: Starter) -> None:
    """The error names it, and how long it had."""
    script = started("import time\ntime.sleep(1000)")
    with pytest.raises(ScriptError, match=r"script-0\.py did not end within 0 s"):
        wait_all([script], 0)


def test_a_script_that_is_never_ready_is_an_error(started: Starter) -> None:
    """One that ended instead is told from one that is not ready yet."""
    with pytest.raises(ScriptError, match="was not ready within 0 s"):
        started("import time\ntime.sleep(1000)").wait_until(lambda: False, 0)
    with pytest.raises(ScriptError, match="ended with exit code 0 before it was ready"):
        started("").wait_until(lambda: False)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_listener_is_found_without_connecting(family: socket.AddressFamily, host: str) -> None:
    """A port has a listener while there is one, and no connection has come to it by that."""
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        assert is_listening(port)
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert not is_listening(port)


def test_a_self_signed_certificate_is_its_own_authority(tmp_path: Path) -> None:
    """The scripts show and trust one file, whose names are those of this machine."""
    self_signed(tmp_path)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    client = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    for name in ("127.0.0.1", "localhost"):
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        dialler = client.wrap_bio(to_client, to_server, server_hostname=name)
        listener = server.wrap_bio(to_server, to_client, server_side=True)
        for end in (dialler, listener, dialler):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
        listener.do_handshake()
        assert dialler.version() == listener.version() == "TLSv1.3"


def test_the_peak_counts_from_where_it_was_forgotten() -> None:
    """Memory that was given back before is not in the peak; memory that was given back since is."""
    large = bytearray(b"x" * (128 << 20))
    del large
    before = forget_peak()
    assert peak_bytes() - before < 64 << 20
    large = bytearray(b"x" * (128 << 20))
    del large
    assert peak_bytes() - before > 120 << 20

"""`redpoll run`, as its users run it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import redpoll
from redpoll import Hub
from redpoll.bus import Bus
from redpoll.cli.run.shared import ENDED, READY, Status, load
from redpoll.cli.run.watching import Notifier, Sources
from redpoll.errors import RemoteError, UsageError
from redpoll.platforms import FORKS, lock_file, resident_bytes
from tests.cli.support import PATIENCE, Running, refuse, run, started, until
from tests.ports import free_port

pytestmark = pytest.mark.skipif(not FORKS, reason="signals that ask a process to end")

APP = """
import asyncio
import os
import signal
import time
from pathlib import Path

from redpoll import App

app = App()


@app.task
async def pid(number: int = 0) -> int:
    return os.getpid()


@app.task
async def fail() -> None:
    raise ValueError("no number")


@app.task(queue="slow")
async def wait(path: str) -> str:
    Path(path).touch()
    while not Path(path + ".go").exists():
        await asyncio.sleep(0.01)
    return "waited"


@app.task(queue="slow")
def block(path: str) -> str:
    Path(path).touch()
    time.sleep(60)
    return "blocked"


@app.task(queue="deadly")
def die(path: str) -> str:
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@app.call
def version() -> int:
    return 1


@app.on("news")
def news(body: str) -> None: ...


@app.schedule(every=3600, queue="night")
async def clean() -> None: ...
"""


class Started(NamedTuple):
    """A hub, and the command that works for it."""

    bus: Bus
    running: Running
    folder: Path

    async def event(self, name: str) -> dict[str, Any]:
        """Read events until one of that name comes."""
        while True:
            found = await asyncio.to_thread(self.running.event)
            if found["event"] == name:
                return found

    def submit(self, name: str, queue: str = "tasks", **arguments: Any) -> Any:
        """Submit a task."""
        return self.bus.tasks.submit([name, arguments], queue)

    async def there(self, *names: str) -> None:
        """Wait for files."""
        for name in names:
            await asyncio.to_thread(until, (self.folder / name).exists, name)


@asynccontextmanager
async def working(folder: Path, *options: str, ready: bool = True, text: str = APP) -> AsyncIterator[Started]:
    """Run the app in a folder, for a hub of its own."""
    (folder / "work.py").write_text(text)
    async with Hub(folder / "hub", 0) as hub, redpoll.connect(hub.url) as bus:
        with started(folder, "run", "work", "--json", "--url", hub.url, *options) as running:
            made = Started(bus, running, folder)
            if ready:
                await made.event("ready")
            yield made


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in the folder of the app."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.asyncio
async def test_it_works_and_drains(tmp_path: Path) -> None:
    """Its processes work and log a line for each task; SIGTERM lets a task finish, and the exit code is 0."""
    async with working(tmp_path, "--workers", "2", "--concurrency", "3") as made:
        handles = [await made.submit("pid", number=each) for each in range(40)]
        pids = {await each.result(PATIENCE) for each in handles}
        assert made.running.process.pid not in pids
        info = await made.bus.queues.inspect("tasks")
        assert (info.done, info.consumers) == (40, 2)
        assert await made.bus.rpc.call("app", "version") == 1
        slow = await made.submit("wait", "slow", path=str(tmp_path / "w"))
        await made.there("w")
        made.running.process.send_signal(signal.SIGTERM)
        assert (await made.event("stopping"))["now"] is False
        (tmp_path / "w.go").touch()
        assert await slow.result(PATIENCE) == "waited"
        rest = [json.loads(each) for each in (await asyncio.to_thread(made.running.rest)).splitlines()]
        assert await asyncio.to_thread(made.running.wait) == 0
    assert rest[-1] == {"event": "done"}
    (line,) = [each for each in rest if each["event"] == "log"]
    assert line["level"] == "INFO"
    assert line["message"].startswith(f"task slow:wait {slow.id} done in ")


@pytest.mark.asyncio
async def test_quiet_workers_log_no_tasks(tmp_path: Path) -> None:
    """With --quiet a task that is done is no line of the log, and one that failed is."""
    async with working(tmp_path, "--workers", "1", "--quiet") as made:
        await (await made.submit("pid")).result(PATIENCE)
        with pytest.raises(RemoteError):
            await (await made.submit("fail")).result(PATIENCE)
        made.running.process.send_signal(signal.SIGTERM)
        rest = [json.loads(each) for each in (await asyncio.to_thread(made.running.rest)).splitlines()]
        assert await asyncio.to_thread(made.running.wait) == 0
    (line,) = [each for each in rest if each["event"] == "log"]
    assert line["level"] == "WARNING"
    assert "ValueError: no number" in line["message"]


@pytest.mark.asyncio
async def test_a_second_signal_gives_tasks_back(tmp_path: Path) -> None:
    """The second signal stops at once, coroutines and threads alike; their tasks go back, and no attempt is counted."""
    async with working(tmp_path, "--workers", "1") as made:
        handles = [await made.submit(name, "slow", path=str(tmp_path / name)) for name in ("wait", "block")]
        await made.there("wait", "block")
        for _ in range(2):
            made.running.process.send_signal(signal.SIGTERM)
            await made.event("stopping")
        assert await asyncio.to_thread(made.running.wait) == 143
        async with asyncio.timeout(PATIENCE):
            claims = [await made.bus.tasks.next("slow") for _ in handles]
        assert {each.id for each in claims} == {each.id for each in handles}
        assert [each.attempt for each in claims] == [1, 1]


@pytest.mark.asyncio
async def test_two_signals_at_once(tmp_path: Path) -> None:
    """Two signals that come in one turn of its loop are a first one and a second one: the workers stop at once."""
    async with working(tmp_path, "--workers", "1") as made:
        handle = await made.submit("wait", "slow", path=str(tmp_path / "w"))
        await made.there("w")
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
            made.running.process.send_signal(number)
        assert [(await made.event("stopping"))["now"] for _ in range(2)] == [False, True]
        assert await asyncio.to_thread(made.running.wait) == 143
        async with asyncio.timeout(PATIENCE):
            claim = await made.bus.tasks.next("slow")
        assert (claim.id, claim.attempt) == (handle.id, 1)


@pytest.mark.asyncio
async def test_what_takes_longer_than_the_grace_goes_back(tmp_path: Path) -> None:
    """A thread that does not return within the grace is left behind with its process; the exit code says so."""
    async with working(tmp_path, "--workers", "1", "--grace", "0.1") as made:
        handle = await made.submit("block", "slow", path=str(tmp_path / "b"))
        await made.there("b")
        assert await asyncio.to_thread(made.running.end) == 1
        async with asyncio.timeout(PATIENCE):
            claim = await made.bus.tasks.next("slow")
        assert (claim.id, claim.attempt) == (handle.id, 1)


@pytest.mark.asyncio
async def test_a_thread_that_nobody_waits_for(tmp_path: Path) -> None:
    """A call whose time is over keeps no process from ending, though its thread does not return."""
    hang = "\n@app.call\ndef hang(path: str) -> None:\n    Path(path).touch()\n    time.sleep(60)\n"
    async with working(tmp_path, "--workers", "1", text=APP + hang) as made:
        calling = asyncio.ensure_future(made.bus.rpc.call("app", "hang", {"path": str(tmp_path / "h")}))
        await made.there("h")
        calling.cancel()
        async with asyncio.timeout(PATIENCE):
            while (await made.bus.queues.inspect("rpc:app")).taken:  # noqa: ASYNC110  # nothing tells it
                await asyncio.sleep(0.01)
        assert await asyncio.to_thread(made.running.end) == 0


@pytest.mark.asyncio
async def test_it_stops_though_nobody_reads_its_output(tmp_path: Path) -> None:
    """SIGTERM ends it, and its workers in order, also where the reader of its standard output is gone."""
    async with working(tmp_path, "--workers", "1") as made:
        handle = await made.submit("wait", "slow", path=str(tmp_path / "w"))
        await made.there("w")
        output = made.running.process.stdout
        assert output is not None
        output.close()
        made.running.process.send_signal(signal.SIGTERM)
        (tmp_path / "w.go").touch()
        assert await handle.result(PATIENCE) == "waited"
        assert await asyncio.to_thread(made.running.process.wait, PATIENCE) == 1


@pytest.mark.asyncio
async def test_an_idle_worker_has_finished(tmp_path: Path) -> None:
    """Without a grace the exit code is that of what was running: 0 for nothing, 1 for a task that goes back."""
    async with working(tmp_path, "--workers", "1", "--grace", "0") as made:
        assert await asyncio.to_thread(made.running.end) == 0
    async with working(tmp_path, "--workers", "1", "--grace", "0") as made:
        await made.submit("wait", "slow", path=str(tmp_path / "w"))
        await made.there("w")
        assert await asyncio.to_thread(made.running.end) == 1


@pytest.mark.asyncio
async def test_a_worker_that_waits_for_its_hub_stops(tmp_path: Path) -> None:
    """A process that waits for its hub stops within the grace when it is told to, with nothing left behind."""
    text = APP.replace("App()", f'App("redpoll://127.0.0.1:{free_port()}", wait=True)')
    (tmp_path / "waiting.py").write_text(f"{text}\nPath({str(tmp_path / 'imported')!r}).touch()\n")
    with started(tmp_path, "run", "waiting", "--workers", "1", "--json", "--grace", "600") as running:
        await asyncio.to_thread(until, (tmp_path / "imported").exists, "imported")
        assert await asyncio.to_thread(running.end) == 0


@pytest.mark.asyncio
async def test_outcomes_wait_for_a_hub_that_is_away(tmp_path: Path) -> None:
    """What finishes while the hub is away is not begun again: a worker that stops waits for the hub, within the grace."""
    (tmp_path / "work.py").write_text(APP)
    url = f"redpoll://127.0.0.1:{free_port()}"
    options = ("--json", "--url", url, "--workers", "1", "--grace", "600")
    hub = Hub(tmp_path / "own", int(url.rpartition(":")[2]))
    async with hub, redpoll.connect(url, wait=True) as bus:
        with started(tmp_path, "run", "work", *options) as running:
            made = Started(bus, running, tmp_path)
            await made.event("ready")
            slow = await made.submit("wait", "slow", path=str(tmp_path / "w"))
            await made.there("w")
            await hub.stop()
            running.process.send_signal(signal.SIGTERM)
            await made.event("stopping")
            (tmp_path / "w.go").touch()
            while "done in" not in (await made.event("log"))["message"]:
                pass
            async with Hub(tmp_path / "own", int(url.rpartition(":")[2])):
                assert await slow.result(PATIENCE) == "waited"
                assert await asyncio.to_thread(running.wait) == 0


@pytest.mark.asyncio
async def test_outcomes_that_no_hub_took(tmp_path: Path) -> None:
    """Where the hub stays away for the whole grace, a line says how many outcomes it did not take; the exit code is 1."""
    (tmp_path / "work.py").write_text(APP)
    url = f"redpoll://127.0.0.1:{free_port()}"
    options = ("--json", "--url", url, "--workers", "1", "--grace", "0.2")
    hub = Hub(tmp_path / "own", int(url.rpartition(":")[2]))
    async with hub, redpoll.connect(url) as bus:
        with started(tmp_path, "run", "work", *options) as running:
            made = Started(bus, running, tmp_path)
            await made.event("ready")
            for name in ("a", "b"):
                await made.submit("wait", "slow", path=str(tmp_path / name))
            await made.there("a", "b")
            await hub.stop()
            for name in ("a", "b"):
                (tmp_path / f"{name}.go").touch()
                while "done in" not in (await made.event("log"))["message"]:
                    pass
            running.process.send_signal(signal.SIGTERM)
            rest = [json.loads(each) for each in (await asyncio.to_thread(running.rest)).splitlines()]
            assert await asyncio.to_thread(running.wait) == 1
    told = [each["message"] for each in rest if each["event"] == "log" and "outcome" in each["message"]]
    assert told == ["outcomes that the hub has not taken within the grace: 2; their tasks go back"]


@pytest.mark.asyncio
async def test_a_worker_that_dies_is_started_anew(tmp_path: Path) -> None:
    """Its death is told with the signal and the last task, which another process then does."""
    async with working(tmp_path, "--workers", "1") as made:
        handle = await made.submit("die", "deadly", path=str(tmp_path / "d"))
        died = await made.event("died")
        assert died == {"event": "died", "worker": 1, "code": -9, "running": 1, "last": f"deadly:die {handle.id}"}
        assert await handle.result(PATIENCE) == "alive"
        assert await asyncio.to_thread(made.running.end) == 0


@pytest.mark.asyncio
async def test_a_folder_that_was_cleaned_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has removed old temporary files, a worker that dies is started anew as before."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    async with working(tmp_path, "--workers", "1") as made:
        first = await (await made.submit("pid")).result(PATIENCE)
        (folder,) = (tmp_path / "temporary").glob("redpoll-run-*")
        shutil.rmtree(folder)
        os.kill(first, signal.SIGKILL)
        died = await made.event("died")
        assert died == {"event": "died", "worker": 1, "code": -9, "running": 0, "last": None}
        assert await (await made.submit("pid")).result(PATIENCE) != first
        assert await asyncio.to_thread(made.running.end) == 0
    assert not folder.exists()


@pytest.mark.asyncio
@pytest.mark.parametrize("option", ["--max-tasks-per-child", "--max-memory-per-child"])
async def test_a_worker_is_replaced(tmp_path: Path, option: str) -> None:
    """A process that did so many tasks, or is larger, finishes what it has and is replaced; nothing is told to have died."""
    async with working(tmp_path, "--workers", "1", "--concurrency", "1", option, "1") as made:
        pids = [await (await made.submit("pid")).result(PATIENCE) for _ in range(3)]
        assert len(set(pids)) == 3
        made.running.process.send_signal(signal.SIGTERM)
        rest = await asyncio.to_thread(made.running.rest)
        assert b'"died"' not in rest, rest.decode()
        assert await asyncio.to_thread(made.running.wait) == 0


@pytest.mark.asyncio
async def test_a_worker_that_is_killed_as_it_is_replaced(tmp_path: Path) -> None:
    """The death of a process that did enough tasks, and finishes what it has, is told as any other."""
    options = ("--workers", "1", "--concurrency", "2", "--max-tasks-per-child", "1")
    async with working(tmp_path, *options) as made:
        slow = await made.submit("wait", "slow", path=str(tmp_path / "w"))
        await made.there("w")
        pid = await (await made.submit("pid")).result(PATIENCE)
        os.kill(pid, signal.SIGKILL)
        died = await made.event("died")
        assert (died["code"], died["running"]) == (-9, 1)
        (tmp_path / "w.go").touch()
        assert await slow.result(PATIENCE) == "waited"
        assert await asyncio.to_thread(made.running.end) == 0


IN_TURN = """
import json
import sys
import time
from pathlib import Path

awaited = "ended"
if json.loads(sys.argv[1])["number"] == 1:
    awaited = "go" if Path("begun").exists() else "begun"
    Path("ended" if awaited == "go" else "begun").touch()
while not Path(awaited).exists():
    time.sleep(0.01)
"""
"""Worker 2 starts once worker 1 was replaced, and the successor of that once it may."""


@pytest.mark.asyncio
async def test_all_are_ready_once_each_has_worked(tmp_path: Path) -> None:
    """Processes that soon end need not work at the same moment: systemd would wait for that, and end them all."""
    (tmp_path / "brief.py").write_text(IN_TURN + APP)
    async with Hub(tmp_path / "own", 0) as hub, redpoll.connect(hub.url) as bus:
        await bus.tasks.submit(["pid", {}], "tasks")
        options = ("--json", "--url", hub.url, "--workers", "2", "--max-tasks-per-child", "1")
        with started(tmp_path, "run", "brief", *options) as running:
            await Started(bus, running, tmp_path).event("ready")
            assert (tmp_path / "ended").exists()
            (tmp_path / "go").touch()
            assert await asyncio.to_thread(running.end) == 0


@pytest.mark.asyncio
async def test_reload(tmp_path: Path) -> None:
    """With `--reload` a change of a file replaces the processes, also from one that cannot be imported."""
    async with working(tmp_path, "--workers", "1", "--reload", "--queues", "tasks") as made:
        path = tmp_path / "work.py"
        path.write_text("no python")
        await made.event("reloading")
        assert "cannot be imported" in (await made.event("log"))["message"]
        handle = await made.submit("pid")
        path.write_text(APP.replace("os.getpid()", "-7"))
        assert await handle.result(PATIENCE) == -7
        assert await asyncio.to_thread(made.running.end) == 0


@pytest.mark.asyncio
async def test_one_start_for_each_change(tmp_path: Path) -> None:
    """A process that waits for a file to be mended is started once when it is."""
    path, new = tmp_path / "mended.py", tmp_path / "new"
    path.write_text("no python")
    new.write_text(APP + f"\nwith open({str(tmp_path / 'starts')!r}, 'a') as file:\n    file.write('x')\n")
    async with Hub(tmp_path / "own", 0) as hub, redpoll.connect(hub.url) as bus:
        options = ("--json", "--url", hub.url, "--workers", "1", "--reload", "--queues", "tasks")
        with started(tmp_path, "run", "mended", *options) as running:
            made = Started(bus, running, tmp_path)
            assert "cannot be imported" in (await made.event("log"))["message"]
            # At once: a look between emptying and writing it would be a change of its own.
            new.replace(path)
            await made.event("ready")
            assert await (await made.submit("pid")).result(PATIENCE) > 0
            assert await asyncio.to_thread(running.end) == 0
    assert (tmp_path / "starts").read_text() == "x"


@pytest.mark.asyncio
async def test_the_workers_end_with_their_parent(tmp_path: Path) -> None:
    """When the parent is killed its processes finish what they have, and end."""
    async with working(tmp_path, "--workers", "2") as made:
        handle = await made.submit("wait", "slow", path=str(tmp_path / "w"))
        await made.there("w")
        made.running.process.kill()
        (tmp_path / "w.go").touch()
        assert await handle.result(PATIENCE) == "waited"
        async with asyncio.timeout(PATIENCE):
            while (await made.bus.queues.inspect("slow")).consumers:  # noqa: ASYNC110  # nothing tells it
                await asyncio.sleep(0.01)


def test_an_import_that_does_not_return(tmp_path: Path) -> None:
    """A process whose import of the app never returns ends with its parent, after the grace."""
    lock = tmp_path / "lock"
    text = f"import fcntl\nimport time\n\nlock = open({str(lock)!r}, 'w')\nfcntl.flock(lock, fcntl.LOCK_EX)\n"
    (tmp_path / "endless.py").write_text(f"{text}open({str(tmp_path / 'imports')!r}, 'w').close()\ntime.sleep(90)\n")
    with started(tmp_path, "run", "endless", "--workers", "1", "--grace", "0.1") as running:
        until((tmp_path / "imports").exists, "the import")
        running.process.kill()
        with lock.open() as file:
            until(lambda: lock_file(file.fileno()), "the end of the worker")


@pytest.mark.asyncio
async def test_programs_of_a_handler_have_an_empty_input(tmp_path: Path) -> None:
    """A program that a handler starts reads nothing, where it would wait for, and take, what the parent tells its worker."""
    text = f"{APP}\n\n@app.task\ndef cat() -> int:\n    import subprocess\n    return len(subprocess.check_output(['cat']))\n"
    async with working(tmp_path, "--workers", "1", text=text) as made:
        reading = await made.submit("cat")
        assert await reading.result(PATIENCE) == 0


@pytest.mark.asyncio
async def test_no_thread_outlives_a_parent_whose_output_nobody_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose parent was killed leaves its threads behind, also where it cannot print what it logged."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    lock = tmp_path / "lock"
    locked = f"import fcntl\n\nlock = open({str(lock)!r}, 'w')\nfcntl.flock(lock, fcntl.LOCK_EX)\n"
    async with working(tmp_path, "--workers", "1", "--grace", "0", text=locked + APP) as made:
        for name in ("wait", "block"):
            await made.submit(name, "slow", path=str(tmp_path / name))
        await made.there("wait", "block")
        output = made.running.process.stdout
        assert output is not None
        output.close()
        made.running.process.kill()
        with lock.open() as file:
            await asyncio.to_thread(until, lambda: lock_file(file.fileno()), "the end of the worker")


@pytest.mark.asyncio
async def test_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells systemd when it is ready, that it lives, and that it stops."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "500000")
        told: set[str] = set()

        def read() -> None:
            while "STOPPING=1" not in told:
                told.add(sock.recv(64).decode())

        reading = asyncio.ensure_future(asyncio.to_thread(read))
        async with working(tmp_path, "--workers", "1") as made:
            assert await asyncio.to_thread(made.running.end) == 0
        await reading
    assert told == {"WATCHDOG=1", "READY=1", "STOPPING=1"}


def test_the_watchdog_of_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life are sent where systemd wants them of this process, and to an abstract socket too."""
    monkeypatch.setenv("NOTIFY_SOCKET", f"@redpoll-{os.getpid()}")
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert Notifier().every is None
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert Notifier().every == 1.5
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0redpoll-{os.getpid()}")
        Notifier().tell("READY=1")
        assert sock.recv(64) == b"READY=1"
    Notifier().tell("READY=1")  # nobody is there any more


def test_dry_run(tmp_path: Path) -> None:
    """`--dry-run` prints what the app has, and connects to nothing."""
    (tmp_path / "work.py").write_text(APP)
    done = run("run", "work:app", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    found = [json.loads(each) for each in done.stdout.splitlines()]
    assert [(each["kind"], each["name"], each["times"]) for each in found] == [
        ("task", "tasks:pid", None),
        ("task", "tasks:fail", None),
        ("task", "slow:wait", None),
        ("task", "slow:block", None),
        ("task", "deadly:die", None),
        ("schedule", "night:clean", "every 3600 s"),
        ("call", "app.version", None),
        ("listener", "news", None),
    ]
    assert found[0]["signature"] == "pid(number: int = 0) -> int"
    done = run("run", "work", "--dry-run")
    assert b"task      slow:block  block(path: str) -> str\n" in done.stdout


LACKING = """
from redpoll import App, Unsupported

class Lacking(App):
    async def start(self):
        raise Unsupported("amqp", "schedules")

app = Lacking("redpoll://127.0.0.1:1")
"""


def test_an_engine_without_what_the_app_needs(tmp_path: Path) -> None:
    """A worker is not started anew for what its engine would lack again: the command ends with 2, and says what."""
    (tmp_path / "lacking.py").write_text(LACKING)
    done = run("run", "lacking", "--workers", "1")
    assert (done.returncode, b"amqp:// does not support schedules" in done.stderr) == (2, True)


def test_what_cannot_be_run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An app that is not there, or none, or a queue without a function ends with 2; so does an engine of one process."""
    (tmp_path / "wrong.py").write_text("app = 3\n")
    (tmp_path / "script.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "broken.py").write_text("import missing\n")
    (tmp_path / "two.py").write_text("import redpoll\nfirst, second = redpoll.App(), redpoll.App()\n")
    for name, text in (
        ("nowhere", "there is no module nowhere in "),
        ("no.where", "there is no module no.where in "),
        ("wrong.py", "(give its name: wrong)"),
        ("./wrong.py", "(give its name: wrong)"),
        ("broken", "broken cannot be imported: ModuleNotFoundError: No module named 'missing'"),
        ("script", "script cannot be imported: SystemExit: 0"),
        ("wrong", "is int, not a redpoll.App"),
        ("wrong:b", "wrong has no b (app = redpoll.App(…) makes one)"),
        ("two", "two has no app (it has two:first and two:second)"),
    ):
        done = run("run", name, "--workers", "1")
        assert done.returncode == 2
        assert text in done.stderr.decode()
        # The traceback of what a module did, not of how it was looked for.
        assert (b"Traceback" in done.stderr) == (name == "broken")
        assert refuse(capfd, "run", name, "--dry-run")[0] == 2
    (tmp_path / "work.py").write_text(APP)
    code, _, err = refuse(capfd, "run", "work", "--dry-run", "--queues", "none, tasks")
    assert (code, "queues='none'" in err) == (2, True)
    monkeypatch.setenv("REDPOLL_URL", "memory://mine")
    (tmp_path / "own.py").write_text(APP.replace("App()", 'App("memory://")'))
    for name in ("work", "own"):
        done = run("run", name, "--workers", "1")
        assert (done.returncode, b"is inside of one process" in done.stderr) == (2, True)


def test_apps_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app is named by its module, and by an attribute of that, also behind dots."""
    (tmp_path / "named_app.py").write_text(
        "import redpoll\nclass Inner:\n    mine = redpoll.App()\napp = redpoll.App()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load("named_app") is load("named_app:app")
    assert load("named_app:Inner.mine") is not load("named_app:app")
    with pytest.raises(UsageError, match=r"named_app has no Inner\.other \(it has named_app:app\)"):
        load("named_app:Inner.other")


def test_the_status_of_a_worker(tmp_path: Path) -> None:
    """The last status of a worker is there for another process; a long text is cut."""
    path = tmp_path / "status"
    Status.create(path)
    assert Status.read(path) == (0, 0, "")
    status = Status(str(path))
    status.write(READY, 3, "images:resize 7")
    assert Status.read(path) == (READY, 3, "images:resize 7")
    status.write(ENDED, 2)
    assert Status.read(path) == (ENDED, 2, "images:resize 7")
    status.write(READY, 1, "x" * 5_000)
    assert set(Status.read(path).last) == {"x"}


def test_sources(tmp_path: Path) -> None:
    """New, changed and removed Python files are seen once; others, hidden and installed ones are not."""
    sources = Sources(tmp_path)
    for name in (".git/x.py", "node_modules/x.py", "a/__pycache__/x.py", "a/data.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert not sources.changed()
    path = tmp_path / "a" / "x.py"
    path.touch()
    assert sources.changed()
    assert not sources.changed()
    os.utime(path, (1, 1))
    assert sources.changed()
    path.unlink()
    assert sources.changed()


def test_resident_bytes() -> None:
    """The memory of this process is more than a megabyte, and less than a terabyte."""
    assert 1 << 20 < resident_bytes() < 1 << 40

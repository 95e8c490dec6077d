"""`redpoll queue`, `redpoll task` and `redpoll hub`, as their users run them."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import redpoll
from redpoll.bus import Bus, EngineState, QueueInfo, Queues, QueueSpec
from redpoll.bus.engines.hub import opening
from redpoll.bus.engines.hub.opening import open_store
from redpoll.cli import main
from redpoll.cli.bus import BusCommand
from redpoll.cli.output import Output
from tests.cli.support import Running, refuse, started, until

TOKEN = "ops-ops-ops-ops-0"


def command(*arguments: str) -> tuple[int, str, str]:
    """Run a command in this process: its exit code, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0), out.getvalue(), " ".join(err.getvalue().split())


class Served:
    """A hub that runs as a command, and what is asked of it."""

    def __init__(self, running: Running, listening: dict[str, Any], folder: Path) -> None:
        self.running = running
        self.listening = listening
        self.url = str(listening["url"])
        self.folder = folder

    def ask(self, *arguments: str, code: int = 0) -> str:
        """Run a command on it, and return what it printed."""
        ended, out, err = command(*arguments, "--url", self.url)
        assert ended == code, err
        return out

    def events(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        """Run a command on it with --json."""
        return [json.loads(line) for line in self.ask(*arguments, "--json", code=code).splitlines()]

    def use(self, program: Callable[[Bus], Awaitable[Any]]) -> Any:
        """Run a program on it."""

        async def run_it() -> Any:
            async with redpoll.connect(self.url) as bus:
                return await program(bus)

        return asyncio.run(run_it())


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A hub for all of them."""
    folder = tmp_path_factory.mktemp("hub")
    with started(folder, "hub", "--data", str(folder / "data"), "--port", "0", "--json") as running:
        yield Served(running, running.event(), folder)


async def fill(bus: Bus, queue: str, *values: Any, **spec: Any) -> list[str]:
    """Put tasks into a queue of their own."""
    await bus.queues.declare(QueueSpec(queue, **spec))
    return [(await bus.tasks.submit(value, queue=queue)).id for value in values]


async def bury(bus: Bus, queue: str) -> None:
    """Make dead letters of what is in a queue."""
    while (await bus.queues.inspect(queue)).ready:
        delivery = await bus.engine.take(queue)
        await delivery.reject(requeue=False, reason="no good")


def test_queues(hub: Served) -> None:
    """Queues are listed with what is in them, one is shown with its settings, and each is deleted by its name."""
    hub.use(lambda bus: fill(bus, "first", 1, 2, max_length=7))
    hub.use(lambda bus: fill(bus, "second", "x"))
    found = {each["name"]: each for each in hub.events("queue", "list")}
    assert (found["first"]["ready"], found["second"]["ready"]) == (2, 1)
    assert found["first"]["spec"]["max_length"] == 7
    (shown,) = hub.events("queue", "show", "first")
    assert (shown["event"], shown["bytes"]) == ("queue", found["first"]["bytes"])
    table = hub.ask("queue", "list")
    assert [line.split()[:3] for line in table.splitlines() if line.startswith(("first", "second"))] == [
        ["first", "task", "2"],
        ["second", "task", "1"],
    ]
    assert "max_length" in hub.ask("queue", "show", "first")
    hub.ask("queue", "delete", "second", "--if-unused")
    assert "second" in hub.ask("queue", "list")
    hub.ask("queue", "delete", "second")
    assert "second" not in hub.ask("queue", "list")
    code, _, told = command("queue", "show", "nothing", "--url", hub.url)
    assert (code, "nothing" in told) == (1, True)


def test_queues_are_listed_in_parts(hub: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many queues a hundred are inspected at a time, and all are listed, in order."""
    open_ = most = 0
    names = [f"q{number:03}" for number in range(250)]

    async def all_names(_: Queues) -> list[str]:
        return names

    async def inspect(_: Queues, name: str) -> QueueInfo:
        nonlocal open_, most
        open_ += 1
        most = max(most, open_)
        await asyncio.sleep(0)
        open_ -= 1
        counts = dict.fromkeys(("ready", "delayed", "taken", "dead", "bytes", "consumers", "waiting"), 0)
        counts |= dict.fromkeys(("submitted", "delivered", "done", "requeued", "expired", "cancelled", "dropped"), 0)
        return QueueInfo(spec=QueueSpec(name), paused=False, **counts)

    monkeypatch.setattr(Queues, "names", all_names)
    monkeypatch.setattr(Queues, "inspect", inspect)
    assert [each["name"] for each in hub.events("queue", "list")] == names
    assert most == 100


def test_many_rows_are_printed_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A table takes few calls for a row, has its numbers at the right, and nothing that acts upon a terminal."""
    command = BusCommand(None, Output())  # type: ignore[arg-type]
    rows = [[f"queue {number}", number] for number in range(2_000)]
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        command.table("name ready", [*rows, ["\x1b[31m", 7]])
    finally:
        sys.setprofile(None)
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], *lines[-2:]) == ("name        ready", "queue 1999  1,999", "\\x1b[31m        7")
    assert calls < 50 * len(rows)


def test_peeking(hub: Served) -> None:
    """Tasks are shown in their order with their data, safely, and stay where they are."""
    ids = hub.use(lambda bus: fill(bus, "peeked", {"a": 1}, b"\xff", "\x1b[31m", {1: 2}))
    found = hub.events("queue", "peek", "peeked")
    assert [each["id"] for each in found] == ids
    assert [each["data"] for each in found] == [{"a": 1}, {"base64": "/w=="}, "\x1b[31m", {"base64": "gQEC"}]
    assert len(hub.events("queue", "peek", "peeked", "--limit", "1")) == 1
    assert "\x1b" not in hub.ask("queue", "peek", "peeked")
    assert hub.events("queue", "show", "peeked")[0]["ready"] == 4


def test_repairing(hub: Served) -> None:
    """Queues are paused and resumed, tasks moved, dead letters looked at, put back and purged."""
    hub.use(lambda bus: fill(bus, "one", 1, 2, 3))
    hub.use(lambda bus: fill(bus, "two"))
    hub.ask("queue", "pause", "one")
    assert hub.events("queue", "show", "one")[0]["paused"]
    assert "paused" in hub.ask("queue", "list")
    assert hub.events("queue", "resume", "one") == [{"event": "resumed", "queue": "one"}]
    assert hub.events("queue", "move", "one", "two", "--limit", "2")[0]["tasks"] == 2
    hub.use(lambda bus: bury(bus, "two"))
    dead = hub.events("queue", "peek", "two", "--state", "dead")
    assert [each["history"] for each in dead] == [["no good"], ["no good"]]
    (back,) = hub.events("queue", "redrive", "two", dead[0]["id"])[0]["tasks"]
    assert hub.events("task", "show", back)[0]["origin"] == dead[0]["id"]
    assert "1 task put back" in command("queue", "redrive", "two", "--url", hub.url)[2]
    assert hub.events("queue", "purge", "two", "--state", "ready")[0]["tasks"] == 2
    assert hub.events("queue", "purge", "one") == [{"event": "purged", "queue": "one", "tasks": 1}]


def test_tasks(hub: Served) -> None:
    """A task is shown, its result waited for and printed, and it is cancelled; failures have exit codes of their own."""
    ids = hub.use(lambda bus: fill(bus, "work", "text", {"a": [1, None]}, 3, 4))

    async def work(task: redpoll.bus.Task) -> Any:
        if task.data == 3:
            raise ValueError("not three")
        return task.data

    async def done(bus: Bus) -> None:
        async with bus.tasks.worker(work, queue="work", concurrency=1):
            for task in ids[:3]:
                await asyncio.wait([asyncio.ensure_future(bus.tasks.handle(task).result())])
            await bus.queues.pause("work")

    hub.use(done)
    assert hub.ask("task", "result", ids[0]) == "text\n"
    assert hub.ask("task", "result", ids[1]) == '{"a": [1, null]}\n'
    assert hub.events("task", "result", ids[1])[0]["result"] == {"a": [1, None]}
    code, _, told = command("task", "result", ids[2], "--url", hub.url)
    assert (code, "not three" in told) == (1, True)
    (shown,) = hub.events("task", "show", ids[2])
    assert (shown["state"], shown["outcome"]) == ("done", "error")
    waiting = hub.use(lambda bus: fill(bus, "never", 1))[0]
    assert command("task", "result", waiting, "--url", hub.url, "--timeout", "0.2")[0] == 3
    assert hub.events("task", "cancel", waiting)[0]["answer"] == "withdrawn"
    assert hub.events("task", "cancel", ids[0], code=1)[0]["answer"] == "too late"
    assert "withdrawn" not in hub.ask("task", "show", ids[0])
    assert command("task", "show", "nonsense", "--url", hub.url)[0] == 1


def test_backup_and_check(hub: Served, tmp_path: Path) -> None:
    """A hub that runs is copied and looked at through itself; the copy is another hub's file, which is looked at alone."""
    (task,) = hub.use(lambda bus: fill(bus, "kept", "x"))
    (tmp_path / "copy").mkdir()
    copy = tmp_path / "copy" / "hub.db"
    assert hub.events("hub", "backup", str(copy)) == [{"event": "saved", "file": str(copy)}]
    assert "exists" in command("hub", "backup", str(copy), "--url", hub.url)[2]
    hub.ask("hub", "backup", "beside.db")
    assert (hub.folder / "data" / "beside.db").exists()
    assert hub.events("hub", "check") == [{"event": "checked", "problems": []}]
    assert "used by another hub" in command("hub", "check", "--data", str(hub.folder / "data"))[2]
    assert command("hub", "check", "--data", str(copy.parent))[0] == 0
    with started(tmp_path, "hub", "--data", str(copy.parent), "--port", "0", "--json") as running:
        again = Served(running, running.event(), tmp_path)
        assert again.events("task", "show", task)[0]["data"] == "x"
        assert running.end() == 0
    copy.write_bytes(b"nothing of a database" * 500)
    code, out, _ = command("hub", "check", "--data", str(copy.parent), "--json")
    assert (code, json.loads(out)["problems"]) == (1, ["file is not a database"])


def test_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A file of an older format is refused by name until it is upgraded, all of it or nothing; a newer one always is."""
    path = tmp_path / "hub"
    asyncio.run(_make(path))
    older = opening.FORMAT
    monkeypatch.setattr(opening, "FORMAT", older + 1)
    for statements in (("CREATE TABLE more (x INT)", "nonsense"), ("CREATE TABLE more (x INT)",)):
        with pytest.raises(redpoll.errors.StoreError, match=f"has format {older}, this version has {older + 1}"):
            open_store(path)
        monkeypatch.setattr(opening, "UPGRADES", {older: statements})
        if "nonsense" in statements:
            with pytest.raises(redpoll.errors.StoreError, match="syntax error"):
                opening.upgrade_store(path)
    assert opening.upgrade_store(path) == older
    assert opening.upgrade_store(path) == older + 1
    with sqlite3.connect(path / "hub.db") as database:
        assert database.execute("SELECT count(*) FROM more").fetchone() == (0,)
    database.close()
    monkeypatch.setattr(opening, "FORMAT", older)
    with pytest.raises(redpoll.errors.StoreError, match="newest known"):
        opening.upgrade_store(path)
    assert refuse(capfd, "hub", "upgrade", "--data", str(tmp_path / "nothing"))[0] == 1


async def _make(path: Path) -> None:
    store = open_store(path)
    await store.close()


def test_what_is_told_is_told_without_hubs(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A command that reaches no hub says so; one without a folder, or on another engine, is usage."""
    url = "redpoll://127.0.0.1:1"
    code, _, told = refuse(capfd, "queue", "list", "--url", url, "--timeout", "0.2")
    assert (code, "cannot" in told or "refused" in told or "no hub" in told) == (1, True)
    assert refuse(capfd, "hub")[0] == 2
    assert refuse(capfd, "hub", "--data", str(tmp_path), "check")[0] == 2
    assert refuse(capfd, "hub", "check", "--url", "memory://")[0] == 2
    assert refuse(capfd, "queue", "list", "--url", "nothing://x")[0] == 2
    assert refuse(capfd, "hub", "--data", str(tmp_path), "--tokens", "x", "--no-tokens")[0] == 2


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub with tokens is looked after by who shows one, from a file or in the URL of the environment."""
    (tmp_path / "tokens.toml").write_text(f'[ops]\ntoken = "{TOKEN}"\nall = ["#"]\n')
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    arguments = ("--data", str(tmp_path / "hub"), "--port", "0", "--tokens", str(tmp_path / "tokens.toml"), "--json")
    with started(tmp_path, "hub", *arguments) as running:
        url = running.event()["url"]
        assert command("queue", "list", "--url", url, "--token-file", str(tmp_path / "token"))[0] == 0
        inside = url.replace("://", f"://{TOKEN}@")
        monkeypatch.setenv("REDPOLL_URL", inside)
        assert command("queue", "list")[0] == 0
        assert TOKEN not in command("queue", "list", "--help")[1]
        code, _, told = command("queue", "list", "--url", url)
        assert code == 1
        assert "wants a token" in told
        assert "--token-file" in told
        _, _, told = command("queue", "list", "--url", inside.replace("0@", "1@"))
        assert TOKEN[:-1] not in told


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_hub_that_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    """A hub tells what it holds; stopped, it says so to its clients, gives nothing back, and ends with exit code 0."""
    arguments = ("hub", "--data", str(tmp_path / "hub"), "--port")

    async def hold(running: Running, url: str) -> None:
        async with redpoll.connect(url) as bus:
            (number_of,) = await fill(bus, "q", 1)
            async with bus.tasks.next(queue="q", timeout=10) as task:
                assert await asyncio.to_thread(running.end, number) == 0
                await bus.status.wait_for(EngineState.RECONNECTING)
                assert "the hub is restarting" in bus.status.reason
                with started(tmp_path, *arguments, url.rpartition(":")[2]) as again:
                    await asyncio.to_thread(
                        until, lambda: "1 queue, 1 task, 0 results" in again.errors, "the hub again"
                    )
                    await bus.status.wait_for(EngineState.READY)
                    assert not task.lost
                    task.set_result(2)
                    assert await bus.tasks.handle(number_of).result(timeout=10) == 2
                    assert (await bus.queues.inspect("q")).delivered == 0  # to nobody else

    with started(tmp_path, *arguments, "0") as running:
        until(lambda: "with 0 queues, 0 tasks, 0 results" in running.errors, "the hub")
        found = re.search(r"redpoll://[\d.:]+", running.errors)
        assert found
        asyncio.run(hold(running, found[0]))

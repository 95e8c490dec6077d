"""The command `redpoll run`."""

from __future__ import annotations

import os
from inspect import signature
from typing import Annotated, Any, NoReturn

import typer

from redpoll.bus.app import App
from redpoll.cli import runtime
from redpoll.cli.bus import write
from redpoll.cli.codes import ExitCode
from redpoll.cli.options import JsonOption, QuietOption
from redpoll.cli.output import Output
from redpoll.cli.run.shared import Options, load
from redpoll.cli.run.supervisor import Supervisor

__all__ = ["run"]


def run(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app; MODULE alone means its `app`.")],
    workers: Annotated[
        int | None, typer.Option("--workers", "-w", min=1, max=1_000, help="Processes; by default one for each CPU.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, help="Tasks at a time of each queue in each process; 8 by default."),
    ] = None,
    queues: Annotated[
        str | None,
        typer.Option(
            "--queues", metavar="NAMES", help="Work on these queues alone, with commas between, and on nothing else."
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="URL of the bus, instead of the app's own or that of REDPOLL_URL."),
    ] = None,
    grace: Annotated[
        float, typer.Option("--grace", min=0.0, metavar="SECONDS", help="Time that handlers have to finish on a stop.")
    ] = 25.0,
    max_tasks: Annotated[
        int | None, typer.Option("--max-tasks-per-child", min=1, help="Replace a process after so many tasks.")
    ] = None,
    max_memory: Annotated[
        int | None,
        typer.Option(
            "--max-memory-per-child", min=1, metavar="MB", help="Replace a process that is larger, after a task."
        ),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Replace the processes when a Python file in this folder changes.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what the app has, and work on nothing.")] = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> NoReturn:
    """Work on an app in several processes.

    Ctrl-C and SIGTERM let handlers finish within --grace; a second one gives their tasks back and stops at once. A process
    that dies is started anew.
    """
    output = Output(json=json, quiet=quiet)
    names = None if queues is None else [each.strip() for each in queues.split(",")]
    if dry_run:
        loaded = load(app)
        loaded.work(names)  # refuses queues that are none
        _show(loaded, output)
        raise typer.Exit(ExitCode.DONE)
    memory = None if max_memory is None else max_memory << 20
    options = Options(app, 0, "", url, names, concurrency, grace, max_tasks, memory, json, quiet)
    count = workers or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))

    async def supervise(stop: runtime.Stop) -> ExitCode:
        return await Supervisor(options, count, reload=reload, output=output).run(stop)

    runtime.run(supervise, output)


def _show(app: App, output: Output) -> None:
    """Print the functions of an app."""
    found: list[dict[str, Any]] = []
    for task in app.tasks.values():
        times = None if task.every is None else task.every.cron or f"every {task.every.every:g} s"
        kind = "declared" if task.declared else "task" if times is None else "schedule"
        found.append({"kind": kind, "name": task.title, "times": times, "function": task})
    found += [
        {"kind": "call", "name": each.title, "times": None, "function": each}
        for each in (*app.calls.values(), *app.streams.values())
    ]
    found += [
        {"kind": "listener", "name": each.subject, "times": None, "function": each.function} for each in app.listeners
    ]
    for each in found:
        function = each.pop("function")
        function.shape  # noqa: B018  # annotations that cannot be used are told
        each["signature"] = f"{function.function.__name__}{signature(function.function)}"
        output.event("registered", each)
        if not output.json:
            write("  ".join(filter(None, (f"{each['kind']:8}", each["name"], each["signature"], each["times"]))))

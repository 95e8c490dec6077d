"""`redpoll queue`: inspect and repair the queues of a bus."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from redpoll.bus import QueueInfo
from redpoll.errors import NoRoute

from .bus import BusCommand, on_bus
from .codes import ExitCode
from .output import counted

__all__ = ["QUEUE", "delete", "list_", "move", "pause", "peek", "purge", "redrive", "resume", "show"]

_QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.")]
_LimitOption = Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of tasks.")]
_FIELDS = "ready delayed taken dead consumers"
#: Queues that are inspected together.
_TOGETHER = 100


def _record(info: QueueInfo) -> dict[str, Any]:
    return {"name": info.spec.name, **asdict(info)}


@on_bus
async def list_(command: BusCommand) -> ExitCode:
    """List the queues, with the number of tasks in each state."""
    names = sorted(await command.bus.queues.names())
    rows = []
    # In parts: the event loop continues between them, however many there are.
    for at in range(0, len(names), _TOGETHER):
        part = map(command.bus.queues.inspect, names[at : at + _TOGETHER])
        for info in await asyncio.gather(*part, return_exceptions=True):
            if isinstance(info, NoRoute):  # it was deleted meanwhile
                continue
            if isinstance(info, BaseException):
                raise info
            command.output.event("queue", _record(info))
            state = "paused" if info.paused else ""
            rows.append([info.spec.name, info.spec.kind, *(getattr(info, each) for each in _FIELDS.split()), state])
    command.table(f"queue kind {_FIELDS} state", rows)
    return ExitCode.DONE


@on_bus
async def show(command: BusCommand, queue: _QueueArgument) -> ExitCode:
    """Show the settings of a queue, its contents, and its counters since the hub was started."""
    info = await command.bus.queues.inspect(queue)
    command.output.event("queue", _record(info))
    values = {**asdict(info.spec), **asdict(info)}
    del values["spec"]
    command.table("field value", [[key, value] for key, value in values.items()])
    return ExitCode.DONE


@on_bus
async def peek(
    command: BusCommand,
    queue: _QueueArgument,
    state: Annotated[
        Literal["ready", "delayed", "taken", "dead"], typer.Option("--state", help="State of the tasks.")
    ] = "ready",
    limit: _LimitOption = 10,
) -> ExitCode:
    """Show tasks of a queue, the next ones first, without changing them."""
    rows = []
    for task in await command.bus.queues.browse(queue, state, limit or 10):
        data = None if task.envelope is None else command.value(task.envelope)
        fields = {"id": task.id, "queue": queue, "state": task.state, "attempt": task.attempt, "data": data}
        command.output.event("task", {**fields, "origin": task.origin, "history": task.history})
        rows.append([task.id, task.attempt, f"{data!r:.40}", "; ".join(task.history[-1:])])
    command.table("task attempt data history", rows)
    return ExitCode.DONE


@on_bus
async def purge(
    command: BusCommand,
    queue: _QueueArgument,
    state: Annotated[
        Literal["ready", "dead"],
        typer.Option("--state", help="State of the tasks: waiting (ready and delayed), or dead letters."),
    ] = "ready",
) -> ExitCode:
    """Remove the waiting tasks of a queue, which end as cancelled, or its dead letters."""
    count = await command.bus.queues.purge(queue, state)
    return command.done("purged", f"{counted(count, 'task')} removed", queue=queue, tasks=count)


@on_bus
async def move(
    command: BusCommand,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Queue of the tasks.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Queue to move the tasks to.")],
    limit: _LimitOption = None,
) -> ExitCode:
    """Move ready tasks to another queue; they keep their ids."""
    count = await command.bus.queues.move(source, target, limit)
    return command.done("moved", f"{counted(count, 'task')} moved", source=source, target=target, tasks=count)


@on_bus
async def pause(command: BusCommand, queue: _QueueArgument) -> ExitCode:
    """Pause a queue: deliver no tasks until it is resumed. Workers keep the tasks that they have."""
    await command.bus.queues.pause(queue)
    return command.done("paused", f"{queue} is paused", queue=queue)


@on_bus
async def resume(command: BusCommand, queue: _QueueArgument) -> ExitCode:
    """Resume a paused queue."""
    await command.bus.queues.resume(queue)
    return command.done("resumed", f"{queue} is resumed", queue=queue)


@on_bus
async def redrive(
    command: BusCommand,
    queue: _QueueArgument,
    task: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Ids of dead letters; all by default.")
    ] = None,
) -> ExitCode:
    """Return dead letters to their queue, as new tasks."""
    made = await command.bus.queues.redrive(queue, task or None)
    return command.done("redriven", f"{counted(len(made), 'task')} put back", queue=queue, tasks=made)


@on_bus
async def delete(
    command: BusCommand,
    queue: _QueueArgument,
    if_unused: Annotated[
        bool, typer.Option("--if-unused", help="Do not delete it if it has tasks or consumers.")
    ] = False,
) -> ExitCode:
    """Delete a queue with its contents: its tasks end as cancelled."""
    await command.bus.queues.delete(queue, if_unused=if_unused)
    return command.done("deleted", f"{queue} is deleted", queue=queue)


QUEUE = {
    "list": (list_, ["redpoll queue list", "redpoll queue list --url redpoll://hub.example.org --token-file token"]),
    "show": (show, ["redpoll queue show night"]),
    "peek": (peek, ["redpoll queue peek night", "redpoll queue peek night --state dead --json"]),
    "purge": (purge, ["redpoll queue purge night", "redpoll queue purge night --state dead"]),
    "move": (move, ["redpoll queue move night day --limit 100"]),
    "pause": (pause, ["redpoll queue pause night"]),
    "resume": (resume, ["redpoll queue resume night"]),
    "redrive": (redrive, ["redpoll queue redrive night", "redpoll queue redrive night 5e1f09ab-17-0123456789abcdef"]),
    "delete": (delete, ["redpoll queue delete night", "redpoll queue delete night --if-unused"]),
}

"""`redpoll task`: show a task, cancel it, wait for its result."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from redpoll.bus import OutcomeKind

from .bus import BusCommand, as_json, on_bus, write
from .codes import ExitCode

__all__ = ["TASK", "cancel", "result", "show"]

_IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the task.")]


@on_bus
async def show(command: BusCommand, task: _IdArgument) -> ExitCode:
    """Show the state of a task, its outcome, and the history of its attempts."""
    found = await command.bus.engine.lookup(task)
    outcome = found.outcome
    fields: dict[str, Any] = {"id": found.id, "queue": found.queue, "state": found.state, "attempt": found.attempt}
    fields["cancelling"] = found.cancelling
    fields["data"] = None if found.envelope is None else command.value(found.envelope)
    fields["outcome"] = None if outcome is None else OutcomeKind(outcome.kind).name.lower()
    fields["detail"] = "" if outcome is None else outcome.detail
    fields |= {"origin": found.origin, "after": list(found.after), "history": list(found.history)}
    command.output.event("task", fields)
    command.table("field value", [[key, value] for key, value in fields.items() if value or key == "data"])
    return ExitCode.DONE


@on_bus
async def cancel(command: BusCommand, task: _IdArgument) -> ExitCode:
    """Cancel a task: withdraw it, or ask its worker to stop. The exit code is 1 if it is too late."""
    answer = await command.bus.tasks.handle(task).cancel()
    command.done("cancelled", answer, id=task, answer=answer)
    return ExitCode.NOT_DELIVERED if answer == "too late" else ExitCode.DONE


@on_bus
async def result(command: BusCommand, task: _IdArgument) -> ExitCode:
    """Wait for the result of a task, and print it: text unchanged, other values as JSON. The exit code of a failure is 1."""
    value = await command.bus.tasks.handle(task).result()
    plain = as_json(value)
    command.output.event("result", {"id": task, "result": plain})
    if not command.output.json:
        write(plain if isinstance(plain, str) else json.dumps(plain))
    return ExitCode.DONE


TASK = {
    "show": (show, ["redpoll task show 5e1f09ab-17-0123456789abcdef"]),
    "cancel": (cancel, ["redpoll task cancel 5e1f09ab-17-0123456789abcdef"]),
    "result": (result, ["redpoll task result 5e1f09ab-17-0123456789abcdef --timeout 60"]),
}

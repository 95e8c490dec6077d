"""Calls by name: inspection and repair of queues and tasks, schedules, and maintenance of the hub."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from redpoll.bus.broker.outputs import Brief, Ended
from redpoll.bus.broker.queue import Task
from redpoll.bus.broker.schedules import Schedule
from redpoll.bus.engines.hub import protocol as p
from redpoll.bus.engines.hub.authorization import may_see
from redpoll.bus.engines.hub.clients import Client
from redpoll.bus.engines.hub.requests import check_payload, read_publication
from redpoll.bus.engines.hub.turns import Turns, seconds_left
from redpoll.errors import ProtocolError, RedpollError, ResultExpired, StoreError

__all__ = ["CALLS", "Calls"]

#: Tasks, and bytes of them, in one answer.
_BROWSED: Final = 1_000
_BROWSED_BYTES: Final = 16 * 2**20


class Calls:
    """Carries out calls of clients; each method of the table takes the client and the arguments, and returns the answer.

    Args:
        turns: The broker in its turns.
        max_body: The largest body, in bytes.
    """

    def __init__(self, turns: Turns, max_body: int) -> None:
        self._turns = turns
        self._broker = turns.broker
        self._max_body = max_body

    def call(self, client: Client, request: int, name: str, arguments: list[Any]) -> None:
        """Carry out a call whose name and arguments were checked, and answer it."""
        value = CALLS[name](self, client, *arguments)
        if isinstance(value, Coroutine):
            client.calls += 1
            self._turns.later(self._answer(client, request, name, value))
        else:
            client.owe(request, value)
            self._turns.claim(client, bool(self._broker.out.writes), p.REPLY, request, value)

    async def _answer(self, client: Client, request: int, name: str, value: Coroutine[Any, Any, Any]) -> None:
        try:
            answer = await value
            client.owe(request, answer)
            client.reply(request, answer)
        except RedpollError as error:
            client.fail(request, error)
        except Exception as error:  # noqa: BLE001  # logged there
            self._turns.fail_by_defect(client, request, name, error)
        finally:
            client.calls -= 1
            if client.deferred:
                client.flush()

    def _declare(self, client: Client, spec: dict[str, Any], update: bool) -> None:  # noqa: ARG002  # as for all
        self._broker.queues.declare(p.rebuild_spec(spec), time.monotonic(), update=update)

    def _delete(self, client: Client, queue: str, if_unused: bool) -> None:  # noqa: ARG002  # as for all
        found = self._broker.queues.get(queue)
        if not if_unused or not (found.consumers or found.count):
            self._broker.queues.delete(found, time.monotonic())

    def _queues(self, client: Client) -> list[str]:
        found, rights = self._broker.queues.found, client.rights
        return [name for name, each in found.items() if rights is None or may_see(rights, each.spec.kind, each.title)]

    def _inspect(self, client: Client, queue: str) -> dict[str, Any]:  # noqa: ARG002
        info = self._broker.admin.inspect(self._broker.queues.get(queue))
        return {**_plain(info), "spec": _plain(info.spec)}

    def _cancel(self, client: Client, task: bytes) -> str | None:  # noqa: ARG002
        return self._broker.work.cancel(p.id_number(task), time.monotonic())

    def _claim(self, client: Client, number: int, task: bytes) -> list[Any] | str:
        consumer = client.consumers.get(number)
        if consumer is None:
            return "busy"
        got = self._broker.work.claim(consumer, p.id_number(task))
        if isinstance(got, str):
            return got
        return [got.token, got.attempts + 1, seconds_left(got)]

    def _tell(self, client: Client, task: bytes, payload: bytes) -> bool:  # noqa: ARG002
        check_payload(payload, self._max_body)
        return self._broker.work.tell(p.id_number(task), payload)

    def _lookup(self, client: Client, task: bytes) -> Any:  # noqa: ARG002
        found = self._broker.admin.find(p.id_number(task), time.monotonic())
        if isinstance(found, Brief):
            return self._recall(found.id)
        if isinstance(found, Ended):
            return _plain(self._broker.admin.describe(found))
        described = self._described([found])
        return described[0] if isinstance(described, list) else _first(described)

    async def _recall(self, number: int) -> dict[str, Any]:
        found = await self._turns.store.outcome(number)
        if isinstance(found, StoreError):
            raise found
        if found is None:
            raise ResultExpired(self._broker.tasks.text(number))
        return _plain(self._broker.admin.describe(found))

    def _browse(self, client: Client, queue: str, state: Any, limit: Any) -> Any:  # noqa: ARG002
        found: list[Task] = []
        size = 0
        most = min(limit, _BROWSED) if isinstance(limit, int) else limit
        for task in self._broker.admin.browse(self._broker.queues.get(queue), state, most):
            size += task.size if task.payload is None else len(task.payload)
            if size > _BROWSED_BYTES and found:
                break
            found.append(task)
        return self._described(found)

    def _described(self, tasks: list[Task]) -> list[dict[str, Any]] | Coroutine[Any, Any, list[dict[str, Any]]]:
        """Describe tasks, as they are now; their bodies may have to be read."""
        found = [_plain(self._broker.admin.describe(each)) for each in tasks]
        wanted = {each.id: place for place, each in enumerate(tasks) if each.payload is None}
        return self._with_bodies(found, wanted) if wanted else found

    async def _with_bodies(self, found: list[dict[str, Any]], wanted: dict[int, int]) -> list[dict[str, Any]]:
        bodies = await self._turns.store.bodies(list(wanted))
        for place, body in zip(wanted.values(), bodies, strict=True):
            found[place]["envelope"] = body if isinstance(body, bytes) else None
        return found

    def _purge(self, client: Client, queue: str, state: Any) -> int:  # noqa: ARG002
        return self._broker.admin.purge(self._broker.queues.get(queue), state, time.monotonic())

    def _move(self, client: Client, source: str, target: str, limit: int | None) -> int:  # noqa: ARG002
        queues = self._broker.queues
        return self._broker.admin.move(queues.get(source), queues.get(target), limit, time.monotonic())

    def _pause(self, client: Client, queue: str, paused: bool) -> None:  # noqa: ARG002
        self._broker.queues.pause(self._broker.queues.get(queue), paused)

    def _redrive(self, client: Client, queue: str, tasks: list[bytes] | None) -> list[bytes]:
        if tasks is not None and not all(isinstance(each, bytes) for each in tasks):
            raise ProtocolError("expected a list of ids of tasks")
        numbers = None if tasks is None else [p.id_number(each) for each in tasks]
        found = self._broker.queues.get(queue)
        made = self._broker.admin.redrive(client.member, found, numbers, time.monotonic())
        return [p.id_bytes(each.id) for each in made]

    def _schedule(self, client: Client, name: str, values: Any, *times: Any) -> None:  # noqa: ARG002
        task, size = read_publication(values, self._max_body)
        made = Schedule(name, task.queue, task.envelope, size, task.options, *times)
        self._broker.schedules.set(made, time.monotonic())

    def _unschedule(self, client: Client, name: str) -> bool:  # noqa: ARG002
        return self._broker.schedules.remove(name)

    def _schedules(self, client: Client) -> list[dict[str, Any]]:
        seen = set(self._queues(client))
        return [_plain(each) for each in self._broker.schedules.describe(time.monotonic()) if each.queue in seen]

    def _observe(self, client: Client, wanted: bool) -> None:
        client.observes = wanted
        self._turns.look_for_observers()

    def _check(self, client: Client) -> Coroutine[Any, Any, list[str]]:  # noqa: ARG002
        return self._turns.store.check()

    def _backup(self, client: Client, target: str) -> Coroutine[Any, Any, None]:  # noqa: ARG002
        return self._turns.store.backup(target)


async def _first(answer: Coroutine[Any, Any, list[dict[str, Any]]]) -> dict[str, Any]:
    return (await answer)[0]


def _plain(record: Any) -> dict[str, Any]:
    """Return the fields of a record by their names."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


CALLS: Final[Mapping[str, Callable[..., Any]]] = {
    "declare": Calls._declare,
    "delete": Calls._delete,
    "queues": Calls._queues,
    "inspect": Calls._inspect,
    "cancel": Calls._cancel,
    "claim": Calls._claim,
    "tell": Calls._tell,
    "lookup": Calls._lookup,
    "browse": Calls._browse,
    "purge": Calls._purge,
    "move": Calls._move,
    "pause": Calls._pause,
    "redrive": Calls._redrive,
    "schedule": Calls._schedule,
    "unschedule": Calls._unschedule,
    "schedules": Calls._schedules,
    "observe": Calls._observe,
    "check": Calls._check,
    "backup": Calls._backup,
}

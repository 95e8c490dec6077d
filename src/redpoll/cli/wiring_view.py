"""A graph of bindings, from the entries of a directory and from the owners' descriptions of themselves.

Descriptions are foreign text: they are truncated, and escaped wherever they are shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from redpoll.address import Address
from redpoll.errors import ProtocolError, RedpollError
from redpoll.message import Message
from redpoll.node import Node
from redpoll.wiring import protocol
from redpoll.wiring.directory.entries import Entry
from redpoll.wiring.network import greet

from .output import printable

__all__ = ["FORMATS", "Graph", "Item", "Pipe", "Process", "draw", "look"]

#: The word that asks a wiring to describe itself.
_DESCRIBE: Final = protocol.encode({"word": "describe"})

#: Maximum owners asked at a time.
_AT_ONCE: Final = 16

#: Maximum characters of a foreign text, and maximum items of one kind accepted from one owner.
_MAX_TEXT: Final = 300
_MAX_THINGS: Final = 10_000

#: Placeholder for the name of a queue that its exchange's owner shows only with the token.
_HIDDEN: Final = "(local)"


@dataclass(frozen=True, slots=True)
class Item:
    """An exchange or a queue.

    Attributes:
        kind: "exchange" or "queue".
        name: Its name.
        scope: The scope, as its owner says; "global" if only the directory knows it.
        style: The style of an exchange; None if it is not known.
        listed: True if the directory has it.
    """

    kind: str
    name: str
    scope: str
    style: str | None
    listed: bool


@dataclass(slots=True)
class Process:
    """A process with exchanges and queues.

    Attributes:
        address: Its address, perhaps only as the owner of an exchange knows it; "" if unknown.
        identity: Its node identity in hexadecimal; "" if unknown.
        problem: The reason why it was not reached, or not asked; "" if it answered.
        items: Its exchanges and queues, exchanges first.
    """

    address: str
    identity: str = ""
    problem: str = ""
    items: list[Item] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The text that names it in output."""
        return self.address or self.identity[:8] or "unknown"


@dataclass(frozen=True, slots=True)
class Pipe:
    """A binding in the graph, from an exchange to a queue; not the pipe that carries it (`redpoll.wiring.pipe.Pipe`).

    Attributes:
        source: Index of the exchange's process in the graph.
        exchange: The exchange's name.
        target: Index of the queue's process.
        queue: The queue's name.
        state: "up", "connecting" or "lost", as the exchange's owner says.
        sent: Number of messages sent; None if unknown.
        dropped: Number of messages dropped for it; None if unknown.
    """

    source: int
    exchange: str
    target: int
    queue: str
    state: str
    sent: int | None
    dropped: int | None


@dataclass(frozen=True, slots=True)
class Graph:
    """Processes, their exchanges and queues, and the bindings between them.

    Attributes:
        processes: The processes; first those that the directory lists, in the order of their addresses.
        pipes: The bindings.
    """

    processes: list[Process]
    pipes: list[Pipe]


async def look(entries: Iterable[Entry], node: Node[Any], timeout: float | None, token: bytes | None = None) -> Graph:
    """Ask every owner in a list to describe itself. LOCAL names are shown only with the token of their owner.

    Args:
        entries: The entries of a directory.
        node: A running node, which sends the requests.
        timeout: Seconds for each owner to answer; None is no limit.
        token: The token that the owners require of each other; None for none.

    Returns:
        The graph; an owner that does not answer is in it, with the reason.

    Cancelling it ends the requests.
    """
    known = list(entries)
    places = sorted({entry.address for entry in known}, key=str)
    said: dict[Address, Mapping[str, Any] | str] = {}
    left = iter(places)

    async def ask() -> None:
        for place in left:
            said[place] = await _described(node, place, timeout, token)

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(ask())
    return draw(known, said)


async def _described(
    node: Node[Any], place: Address, timeout: float | None, token: bytes | None
) -> Mapping[str, Any] | str:
    """Return an owner's description of itself, or the reason why there is none."""
    try:
        if token is not None:
            await greet(node, place, node.identity, token, timeout)
        answer = await node.request(Message(_DESCRIBE, place, header=protocol.WORD), timeout=timeout, dial="once")
        said = protocol.decode(answer.data)
    except ProtocolError:
        return "what it said cannot be read"
    except RedpollError as error:
        return str(error.__cause__ if isinstance(error.__cause__, RedpollError) else error)
    return "it does not say what it has" if "error" in said else said


def draw(entries: Iterable[Entry], said: Mapping[Address, Mapping[str, Any] | str]) -> Graph:
    """Make the graph.

    Args:
        entries: The entries of a directory.
        said: By address: the description of the wiring there, or the reason why there is none.
    """
    return _Drawing(entries, said).graph


class _Drawing:
    """A graph under construction."""

    def __init__(self, entries: Iterable[Entry], said: Mapping[Address, Mapping[str, Any] | str]) -> None:
        self.graph = Graph([], [])
        self._by_address: dict[str, int] = {}
        self._by_identity: dict[str, int] = {}
        #: The queues of processes, by the index of the process.
        self._queues: set[tuple[int, str]] = set()
        listed: dict[str, dict[tuple[str, str], Entry]] = {}
        for entry in sorted(entries, key=lambda each: each.key):
            listed.setdefault(str(entry.address), {})[entry.key] = entry
        for address in sorted(listed):
            self._add(address, listed[address], said.get(Address.parse(address), "it was not asked"))
        for address, place in list(self._by_address.items()):
            answer = said.get(Address.parse(address))
            if isinstance(answer, Mapping):
                self._bind(place, answer)

    def _add(self, address: str, listed: Mapping[tuple[str, str], Entry], answer: Mapping[str, Any] | str) -> None:
        place = self._by_address[address] = len(self.graph.processes)
        process = Process(address)
        self.graph.processes.append(process)
        described: dict[tuple[str, str], Item] = {}
        if isinstance(answer, str):
            process.problem = answer[:_MAX_TEXT]
            process.identity = next((each.identity.hex() for each in listed.values() if each.identity is not None), "")
        else:
            process.identity = _text(answer.get("identity"))
            for kind in ("exchange", "queue"):
                for each in _records(answer.get(f"{kind}s")):
                    key = kind, _text(each.get("name"))
                    style = _text(each.get("style")) or None if kind == "exchange" else None
                    described[key] = Item(*key, _text(each.get("scope")), style, key in listed)
        for key, entry in listed.items():
            described.setdefault(key, Item(*key, "global", entry.style, True))
        process.items = sorted(described.values(), key=lambda each: (each.kind, each.name))
        self._queues.update((place, each.name) for each in process.items if each.kind == "queue")
        if process.identity:
            self._by_identity.setdefault(process.identity, place)

    def _bind(self, source: int, answer: Mapping[str, Any]) -> None:
        for exchange in _records(answer.get("exchanges")):
            for pipe in _records(exchange.get("pipes")):
                target = self._process(source, pipe)
                queues = pipe.get("queue", pipe.get("queues"))
                for queue in queues[:_MAX_THINGS] if isinstance(queues, list | tuple) else [queues]:
                    name = _text(queue) or _HIDDEN
                    if (target, name) not in self._queues:
                        self._queues.add((target, name))
                        self.graph.processes[target].items.append(Item("queue", name, "", None, False))
                    bound = Pipe(
                        source,
                        _text(exchange.get("name")),
                        target,
                        name,
                        _text(pipe.get("state")),
                        _count(pipe.get("sent")),
                        _count(pipe.get("dropped")),
                    )
                    self.graph.pipes.append(bound)

    def _process(self, source: int, pipe: Mapping[str, Any]) -> int:
        """Return the index of the process at the other end of a pipe, by its identity; without one the exchange's."""
        identity = _text(pipe.get("identity"))
        if not identity:
            return source
        place = self._by_identity.get(identity)
        if place is None:
            place = self._by_identity[identity] = len(self.graph.processes)
            self.graph.processes.append(Process(_text(pipe.get("peer")), identity, "the directory does not list it"))
        return place


# Foreign data


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()[:_MAX_TEXT]
    return value[:_MAX_TEXT] if isinstance(value, str) else ""


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _records(value: Any) -> list[Mapping[str, Any]]:
    things = value[:_MAX_THINGS] if isinstance(value, list | tuple) else []
    return [each for each in things if isinstance(each, Mapping)]


# Formats


def _as_text(graph: Graph) -> str:
    """Return a table: a line for each binding, and for each exchange and queue without one."""
    processes = graph.processes
    leading: dict[tuple[int, str], list[Pipe]] = {}
    for pipe in graph.pipes:
        leading.setdefault((pipe.source, pipe.exchange), []).append(pipe)
    bound = {(pipe.target, pipe.queue) for pipe in graph.pipes}
    rows: list[tuple[str, ...]] = [("EXCHANGE", "STYLE", "OF", "QUEUE", "AT", "STATE", "SENT", "DROPPED")]
    for place, process in enumerate(processes):
        for item in process.items:
            if item.kind == "exchange":
                before = (item.name, item.style or "-", process.label)
                pipes = leading.get((place, item.name), ())
                for pipe in pipes:
                    counts = _number(pipe.sent), _number(pipe.dropped)
                    rows.append((*before, pipe.queue, processes[pipe.target].label, pipe.state or "-", *counts))
                if not pipes:
                    rows.append((*before, *"-----"))
            elif (place, item.name) not in bound:
                rows.append((*"---", item.name, process.label, *"---"))
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]
    lines += [
        f"not reached: {printable(process.label)}: {printable(process.problem)}"
        for process in processes
        if process.problem
    ]
    return "\n".join(lines) + "\n"


def _as_dot(graph: Graph) -> str:
    lines = ["digraph wiring {", "  rankdir=LR;"]
    for place, process in enumerate(graph.processes):
        dashed = ' style="dashed";' if process.problem else ""
        lines.append(f"  subgraph cluster_{place} {{ label={_quoted(_title(process))};{dashed}")
        for number, item in enumerate(process.items):
            shape = "cds" if item.kind == "exchange" else "box"
            style = f" ({item.style})" if item.style else ""
            lines.append(f"    n{place}_{number} [shape={shape}, label={_quoted(item.name + style)}];")
        lines.append("  }")
    for pipe, source, target in _ends(graph):
        line = "" if pipe.state == "up" else ", style=dashed"
        lines.append(f"  {source} -> {target} [label={_quoted(_note(pipe))}{line}];")
    return "\n".join([*lines, "}"]) + "\n"


def _as_mermaid(graph: Graph) -> str:
    lines = ["flowchart LR"]
    for place, process in enumerate(graph.processes):
        lines.append(f'  subgraph p{place}["{_entities(_title(process))}"]')
        for number, item in enumerate(process.items):
            style = f" ({item.style})" if item.style else ""
            opened, closed = ("([", "])") if item.kind == "exchange" else ("[", "]")
            lines.append(f'    n{place}_{number}{opened}"{_entities(item.name + style)}"{closed}')
        lines.append("  end")
    for pipe, source, target in _ends(graph):
        arrow = "-->" if pipe.state == "up" else "-.->"
        note = _entities(_note(pipe))
        lines.append(f'  {source} {arrow}|"{note}"| {target}' if note else f"  {source} {arrow} {target}")
    return "\n".join(lines) + "\n"


FORMATS: Mapping[str, Callable[[Graph], str]] = MappingProxyType(
    {"text": _as_text, "dot": _as_dot, "mermaid": _as_mermaid}
)
"""Functions that turn a graph into text, by the name of the format."""


def _ends(graph: Graph) -> Iterable[tuple[Pipe, str, str]]:
    names = {
        (place, item.kind, item.name): f"n{place}_{number}"
        for place, process in enumerate(graph.processes)
        for number, item in enumerate(process.items)
    }
    for pipe in graph.pipes:
        source = names.get((pipe.source, "exchange", pipe.exchange))
        target = names.get((pipe.target, "queue", pipe.queue))
        if source is not None and target is not None:
            yield pipe, source, target


def _title(process: Process) -> str:
    return f"{process.label} (not reached)" if process.problem else process.label


def _note(pipe: Pipe) -> str:
    counts: Sequence[tuple[int | None, str]] = ((pipe.sent, "sent"), (pipe.dropped, "dropped"))
    told = [f"{number:,} {what}" for number, what in counts if number]
    return ", ".join(([] if pipe.state == "up" else [pipe.state or "?"]) + told)


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _quoted(text: str) -> str:
    return '"' + printable(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _entities(text: str) -> str:
    return "".join(f"#{ord(char)};" if char in '"#<>&;`\\|' else char for char in printable(text))

"""One connection through the proxy: two flows, and the faults that happen to them over time."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Protocol

from redpoll.testing.faults import Cut, Direction, Faults, Step
from redpoll.testing.flow import Flow

__all__ = ["Passage", "Watcher"]

_RESET = struct.pack("ii", 1, 0)


class Watcher(Protocol):
    """The proxy of a connection. All methods are plain calls."""

    def count(self, name: str, number: int = 1) -> None:
        """Count an event."""

    def moved(self, passage: Passage) -> None:
        """Count bytes that a connection passed on."""

    def holding(self, passage: Passage) -> None:
        """Hold bytes of a connection back until a newer connection has passed some."""

    def closed(self, passage: Passage) -> None:
        """Note that both sockets of a connection are closed."""


class Passage:
    """A connection: the accepted socket, the one to the target, and a flow each way.

    Attributes:
        number: Which of the proxy's connections it is, from 1.
        flows: "forward" and "back".
        silenced: Whether a direction was silenced.
    """

    def __init__(
        self,
        number: int,
        near: socket.socket,
        far: socket.socket,
        *,
        watcher: Watcher,
        loop: asyncio.AbstractEventLoop,
        seed: int,
        faults: tuple[Faults, Faults],
        bound: int,
    ) -> None:
        self.number = number
        self._near = near
        self._far = far
        self._watcher = watcher
        self._loop = loop
        self._dialling = False
        self._open = False
        self._closed = False
        self._timers: set[asyncio.TimerHandle] = set()
        self.flows: dict[str, Flow] = {
            name: Flow(
                name,
                source,
                dest,
                journey=self,
                loop=loop,
                draw=random.Random(f"{seed}/{number}/{name}"),  # noqa: S311 - faults are no secret
                faults=conditions,
                bound=bound,
            )
            for name, source, dest, conditions in (
                ("forward", near, far, faults[0]),
                ("back", far, near, faults[1]),
            )
        }

    @property
    def silenced(self) -> bool:
        """True if a direction passes nothing any more, without either end being told."""
        return any(flow.silent for flow in self.flows.values())

    # Beginning

    def dial(self, sockaddr: object) -> None:
        """Connect to the target; bytes that arrive meanwhile wait in the socket."""
        try:
            self._far.connect(sockaddr)  # type: ignore[arg-type]  # whatever the target's family has
        except (BlockingIOError, InterruptedError):
            self._dialling = True
            self._loop.add_writer(self._far, self._dialled)
        except OSError:
            self._unreachable()
        else:
            self._reached()

    def _dialled(self) -> None:
        self._loop.remove_writer(self._far)
        self._dialling = False
        if self._far.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._unreachable()
        else:
            self._reached()

    def _reached(self) -> None:
        self._open = True
        self._advance()

    def _unreachable(self) -> None:
        self._watcher.count("unreachable")
        self.close(reset=True)

    def _advance(self) -> None:
        if self._open:
            for flow in self.flows.values():
                if not self._closed:
                    flow.advance()

    # Faults

    def follow(self, steps: Iterator[Step]) -> None:
        """Carry out steps, each at its time."""
        if self._closed:
            return
        step = next(steps, None)
        if step is not None:
            self._later(step.after, lambda: self._take(step, steps))

    def _take(self, step: Step, steps: Iterator[Step]) -> None:
        if step.do in {"fin", "rst", "silence"}:
            self.cut(step.do, step.direction)
        elif step.do == "freeze":
            self.freeze(step.direction, step.seconds)
        elif step.do == "thaw":
            self.thaw(step.direction)
        elif step.do == "hold":
            self.hold(step.direction, step.seconds)
        else:
            self._set_for(step)
        self.follow(steps)

    def _set_for(self, step: Step) -> None:
        before = {flow.name: flow.faults for flow in self._of(step.direction)}
        self.set(step.faults, step.direction)
        if step.seconds is not None:
            self._later(step.seconds, lambda: self._restore(before))

    def _restore(self, before: dict[str, Faults]) -> None:
        for name, faults in before.items():
            self.flows[name].faults = faults
        self._advance()

    def forget_steps(self) -> None:
        """Cancel planned steps, and the ends of temporary ones."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def set(self, faults: Faults, direction: Direction = "both") -> None:
        """Change the conditions."""
        for flow in self._of(direction):
            flow.faults = faults
        self._advance()

    def freeze(self, direction: Direction = "both", seconds: float | None = None) -> None:
        """Stop reading and writing, for a time or until `thaw`."""
        for flow in self._of(direction):
            self._watcher.count("freezes", not flow.frozen)
            flow.frozen = True
        self._advance()
        if seconds is not None:
            self._later(seconds, lambda: self.thaw(direction))

    def thaw(self, direction: Direction = "both") -> None:
        """Continue reading and writing."""
        for flow in self._of(direction):
            flow.frozen = False
        self._advance()

    def hold(self, direction: Direction = "both", seconds: float | None = None) -> None:
        """Read, within the bound, and pass nothing on, for a time or until `release`."""
        for flow in self._of(direction):
            self._watcher.count("holds", not flow.held)
            flow.held = True
        self._watcher.holding(self)
        if seconds is not None:
            self._later(seconds, lambda: self.release(direction))

    def release(self, direction: Direction = "both") -> None:
        """Pass on what was held."""
        for flow in self._of(direction):
            flow.held = False
        self._advance()

    def cut(self, how: Cut = "rst", direction: Direction = "both") -> None:
        """End it, or one direction of it; bytes on their way are lost."""
        if self._closed:
            return
        if how == "rst" or (how == "fin" and not self._open):
            self._watcher.count("rst")
            self.close(reset=True)
            return
        flows = [flow for flow in self._of(direction) if not (flow.over or flow.silent)]
        if how == "silence":
            self._watcher.count("silence", len(flows))
            for flow in flows:
                flow.silence()
        elif flows:
            self._watcher.count("fin")
            for flow in flows:
                if not self._closed:
                    flow.finish()

    def close(self, *, reset: bool = False) -> None:
        """Close both sockets; a reset tells both ends of a failure."""
        if self._closed:
            return
        self._closed = True
        self.forget_steps()
        if self._dialling and not self._loop.is_closed():
            self._loop.remove_writer(self._far)
        for flow in self.flows.values():
            flow.close()
        for sock in (self._near, self._far):
            if reset:
                try:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                except OSError:
                    pass  # a unix socket has none, and a reset one may have no options left
            sock.close()
        self._watcher.closed(self)

    def _of(self, direction: Direction) -> list[Flow]:
        return [flow for flow in self.flows.values() if direction in {"both", flow.name}]

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        def ring() -> None:
            self._timers.discard(timer)
            if not self._closed:
                act()

        timer = self._loop.call_later(seconds, ring)
        self._timers.add(timer)

    # Reports of its flows

    def passed(self, flow: Flow, count: int) -> None:
        """Bytes were written."""
        self._watcher.count(flow.name, count)
        self._watcher.count("pieces")
        self._watcher.moved(self)

    def dropped(self, count: int) -> None:
        """Bytes that were read will not be written."""
        self._watcher.count("dropped", count)

    def due_to_cut(self, flow: Flow) -> None:
        """The bytes after which the connection is to be cut have passed."""
        how = flow.faults.cut
        self.cut(how, flow.name if how == "silence" else "both")  # type: ignore[arg-type]  # a flow's name is a direction

    def ended(self, flow: Flow) -> None:
        """Close as the source did, once both sources have closed."""
        other = self._other(flow)
        if other.over:
            self.close(reset=other.broken)

    def source_broke(self) -> None:
        """Reset the connection, as a source did."""
        self.close(reset=True)

    def dest_broke(self, flow: Flow) -> None:
        """Note the end of a destination: the other flow learns the reason, if it still reads there."""
        if self._other(flow).over:
            self.close(reset=True)

    def _other(self, flow: Flow) -> Flow:
        return self.flows["back" if flow.name == "forward" else "forward"]

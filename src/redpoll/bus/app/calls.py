"""Functions that others call, and which answer at once or stream their values."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack

from redpoll.bus.app.functions import AppState, Function
from redpoll.bus.app.middleware import Work
from redpoll.bus.rpc.caller import CallOptions
from redpoll.errors import BadPayload, RemoteError

__all__ = ["AppCall", "AppStream", "StreamOptions"]

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


class _Served(Function[P, R, C]):
    """A function of a target.

    Attributes:
        target: The target of its calls.
    """

    def __init__(self, state: AppState, function: Callable[..., Any], name: str, target: str) -> None:
        super().__init__(state, function, name, f"{target}.{name}")
        self.target = target


class AppCall(_Served[P, R, C]):
    """A function that is called by others, and answers at once. Made by `App.call`.

    It is called as the function that it is. The errors of its other methods are those of `redpoll.bus.Rpc`, and `BadPayload`
    with the path of the field where the arguments do not fit.
    """

    def prepare(self, **options: Unpack[CallOptions]) -> AppCall[P, R, C]:
        """Return the same call with settings: ``await add.prepare(timeout=3, wait=10).call(1, 2)``.

        Args:
            **options: Those of `redpoll.bus.Rpc.call`: timeout, retry, wait, mandatory, monitor, headers.
        """
        return self._with(options, CallOptions)

    async def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it at a server, and wait for the answer. Cancelling tells the server."""
        work = Work("call", self.title, self.shape.bind(args, kwargs), dict(self.options))
        value: R = await self._submitting(self._last)(work)
        return value

    async def cast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call it at a server, without an answer; done when a queue has it. Cancelled, the call may be made nevertheless."""
        work = Work("call", self.title, self.shape.bind(args, kwargs), dict(self.options))
        await self._submitting(self._last_cast)(work)

    async def _last(self, work: Work) -> Any:
        values = self.shape.to_wire(work.arguments, text=self._state.text)
        try:
            answer = await self._state.connected().rpc.call(self.target, self.name, values, **work.options)
        except RemoteError as error:
            raise _refused(error) from error
        return self.shape.result(answer)

    async def _last_cast(self, work: Work) -> None:
        values = self.shape.to_wire(work.arguments, text=self._state.text)
        await self._state.connected().rpc.cast(self.target, self.name, values, **work.options)


class StreamOptions(TypedDict, total=False):
    """Options of a stream, as of `redpoll.bus.Rpc.stream`."""

    timeout: float | None
    wait: float
    headers: Mapping[str, Any] | None


class AppStream(_Served[P, R, C]):
    """An asynchronous generator that others call, and whose values are streamed to them. Made by `App.call`.

    It is called as the function that it is. Errors of `stream` are those of `redpoll.bus.Rpc.stream`, and `BadPayload` as for
    `AppCall`.
    """

    def prepare(self, **options: Unpack[StreamOptions]) -> AppStream[P, R, C]:
        """Return the same stream with options: ``primes.prepare(timeout=3).stream(below=100)``.

        Args:
            **options: Those of `redpoll.bus.Rpc.stream`: timeout, wait, headers.
        """
        return self._with(options, StreamOptions)

    async def stream(self, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        """Call it at a server, and iterate over its values as they come; the server waits for a caller that is slow.

        Leaving the loop stops the server; leave by `contextlib.aclosing` where the loop may be left early.
        """
        work = Work("stream", self.title, self.shape.bind(args, kwargs), dict(self.options))
        async with aclosing(await self._submitting(self._last)(work)) as values:
            async for each in values:
                yield each

    async def _last(self, work: Work) -> AsyncGenerator[Any, None]:
        return self._values(work)

    async def _values(self, work: Work) -> AsyncGenerator[Any, None]:
        values = self.shape.to_wire(work.arguments, text=self._state.text)
        parts = self._state.connected().rpc.stream(self.target, self.name, values, **work.options)
        async with aclosing(parts):
            try:
                async for each in parts:
                    yield self.shape.result(each)
            except RemoteError as error:
                raise _refused(error) from error


def _refused(error: RemoteError) -> Exception:
    """Return the error of a call: `BadPayload` again, where the server could not read its arguments."""
    if error.kind != BadPayload.__name__:
        return error
    return BadPayload("typed", error.text.partition("'typed': ")[2] or error.text)

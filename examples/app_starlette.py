"""A web program with Starlette: requests submit tasks, and follow their progress by server-sent events.

Needs Starlette (`pip install starlette`).

Prints:

    POST /albums: 202
    GET /albums/...: progress, and then: 3 pictures
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import redpoll
from redpoll import GIVEN, App
from redpoll.bus import Task

tasks = App("memory://")  # with a hub: `redpoll run app_starlette:tasks`, and any ASGI server for `web`


@tasks.task(queue="albums")
async def convert(pictures: int, task: Task = GIVEN) -> str:
    """Convert an album."""
    for number in range(1, pictures + 1):
        await asyncio.sleep(0.05)
        task.progress(f"{number} of {pictures}")
    return f"{pictures} pictures"


async def submit(request: Request) -> JSONResponse:
    """Submit a task; whoever asks for its id later may be another process."""
    body = await request.json()
    task = await convert.submit(body["pictures"])
    return JSONResponse({"id": task.id}, 202)


async def follow(request: Request) -> StreamingResponse:
    """Stream the progress of a task, and its result."""
    task = tasks.bus.tasks.handle(request.path_params["id"])

    async def events() -> AsyncIterator[str]:
        async for progress in task.watch():
            yield f"data: {progress}\n\n"
        yield f"data: {await task.result()}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Connect while the web program runs; with memory://, work here as well."""
    async with tasks, tasks.work():
        yield


web = Starlette(
    routes=[Route("/albums", submit, methods=["POST"]), Route("/albums/{id}", follow)],
    lifespan=lifespan,
)


async def request(method: str, path: str, body: bytes = b"") -> AsyncIterator[dict[str, Any]]:
    """Stand for a server and a browser: send a request, and return the messages of the answer as they come."""
    messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
    bodies = [{"type": "http.request", "body": body}]

    async def receive() -> dict[str, Any]:
        return bodies.pop() if bodies else await asyncio.get_running_loop().create_future()

    async def answer() -> None:
        scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
        await web(scope, receive, messages.put)  # type: ignore[arg-type]
        await messages.put(None)

    answering = asyncio.ensure_future(answer())
    while (message := await messages.get()) is not None:
        yield message
    await answering


async def main() -> None:
    """Submit an album, and follow it."""
    async with web.router.lifespan_context(web):
        started, answered, *_ = [each async for each in request("POST", "/albums", b'{"pictures": 3}')]
        print(f"POST /albums: {started['status']}")
        identity = json.loads(answered["body"])["id"]
        events = [
            line.removeprefix("data: ")
            async for message in request("GET", f"/albums/{identity}")
            for line in message.get("body", b"").decode().splitlines()
            if line
        ]
        # Progress from before it was followed is known by its latest alone.
        assert set(events[:-1]) <= {"1 of 3", "2 of 3", "3 of 3"}
        print(f"GET /albums/...: progress, and then: {events[-1]}")


if __name__ == "__main__":
    redpoll.run(main())

"""The page of what the engines do is what they were seen to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import pytest

from benchmarks.rabbitmq import RabbitMQ, Server
from redpoll.bus.engines.hub.opening import open_store
from redpoll.testing.conformance import Setting, behaviours, observe, table
from redpoll.testing.conformance.__main__ import main
from tests.bus.engines.hub.support import running
from tests.ports import free_port

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "conformance.md"
#: The columns of the page that are tried here, each by its title; the others are tried with the tests of their engines.
#: The page is made again by `python -m tests.testing.conformance.test_table`.
COLUMNS = {
    "`memory://`": Setting("memory://"),
    "`memory://`, threads": Setting("memory://", face="blocking"),
}
HUB_COLUMNS: dict[str, Literal["async", "blocking"]] = {"`redpoll://`": "async", "`redpoll://`, threads": "blocking"}
AMQP_COLUMNS: dict[str, Literal["async", "blocking"]] = {"`amqp://`": "async", "`amqp://`, threads": "blocking"}
WITH_HUB = "`amqp://`, `results=`"
_BEGIN, _END = "<!-- the table -->\n", "<!-- its end -->\n"


Again = Callable[[], Awaitable[object]]
"""Restarts a server."""


@dataclass(frozen=True, kw_only=True)
class Restarting(Setting):
    """A setting with a server that restarts."""

    again: Again

    async def restart(self) -> None:
        """Restart it."""
        await self.again()


def page(seen: Mapping[str, Mapping[str, str]]) -> str:
    """Return the page with a table of what was seen."""
    before, _, rest = PAGE.read_text().partition(_BEGIN)
    _, found, after = rest.partition(_END)
    assert found
    return f"{before}{_BEGIN}\n{table(seen, behaviours())}\n{_END}{after}"


def on_page() -> dict[str, dict[str, str]]:
    """Return the cells of the page by the title of the column and the id of the behaviour."""
    rows = PAGE.read_text().partition(_BEGIN)[2].partition(_END)[0].strip().splitlines()
    titles, _, *lines = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    return {title: {cells[0]: cells[at] for cells in lines} for at, title in enumerate(titles) if at > 1}


def test_the_page_is_what_was_seen() -> None:
    """The table of behaviours and engines in the documentation is that of a run of all behaviours."""
    there = on_page()
    seen = {title: observe(setting) for title, setting in COLUMNS.items()}
    seen |= {title: there.get(title, {}) for title in [*HUB_COLUMNS, *AMQP_COLUMNS, WITH_HUB]}
    assert page(seen) == PAGE.read_text(), "run python -m tests.testing.conformance.test_table"


def test_the_command_says_whether_all_holds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prints the table, and fails where something does not hold, or where it is given nothing."""
    seen = {"X-01": "yes"}
    monkeypatch.setattr("redpoll.testing.conformance.__main__.observe", lambda _: seen)
    assert main(["memory://"]) == 0
    assert capsys.readouterr().out.startswith("| | behaviour | memory:// |\n")
    seen["X-01"] = "no"
    assert main(["memory://"]) == 1
    assert main([]) == main(["--help"]) == 2
    assert "usage" in capsys.readouterr().err


async def restart(server: Server) -> None:
    """Kill a server of RabbitMQ, start it again, and wait until it serves."""
    server.kill()
    server.start()
    await asyncio.to_thread(server.wait_ready)


if __name__ == "__main__":
    logging.basicConfig()
    with (
        TemporaryDirectory() as folder,
        running(open_store(f"{folder}/hub"), port=free_port()) as hub,
        RabbitMQ(Path(folder), port=free_port) as rabbitmq,
    ):
        again = partial(asyncio.to_thread, hub.restart, partial(open_store, f"{folder}/hub"))
        settings = COLUMNS | {title: Restarting(hub.url, face=face, again=again) for title, face in HUB_COLUMNS.items()}
        again = partial(restart, rabbitmq.servers[0])
        for title, face in AMQP_COLUMNS.items():
            settings[title] = Restarting(rabbitmq.url, face=face, patience=20.0, again=again)
        settings[WITH_HUB] = Restarting(rabbitmq.url, {"results": hub.url}, patience=20.0, again=again)
        PAGE.write_text(page({title: observe(setting) for title, setting in settings.items()}))

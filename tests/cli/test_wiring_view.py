"""Who is wired to whom, as a graph, and the ways to show it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redpoll import Address, Node
from redpoll.cli.wiring_view import FORMATS, Graph, draw, look
from redpoll.wiring import GLOBAL, Wiring, protocol
from redpoll.wiring.directory import Directory
from redpoll.wiring.directory.entries import Entry
from redpoll.wiring.directory.tokens import token_bytes
from tests.node.support import PATIENCE, make
from tests.ports import free_port

ONE = Address.parse("10.0.0.1:4000")
TWO = Address.parse("10.0.0.2:4000")
GONE = Address.parse("10.0.0.3:4000")

ENTRIES = [
    Entry("exchange", "PRICES", ONE, "distribute", b"\x01" * 16),
    Entry("queue", "ALL", TWO, None, b"\x02" * 16),
    Entry("exchange", "NEWS", GONE, "balance", b"\x03" * 16),
]
SAID: dict[Address, Any] = {
    ONE: {
        "identity": b"\x01" * 16,
        "exchanges": [
            {
                "name": "PRICES",
                "scope": "global",
                "style": "distribute",
                "pipes": [
                    {"queue": "ALL", "identity": (b"\x02" * 16).hex(), "state": "up", "sent": 1200, "dropped": 0},
                    {
                        "queue": ["A", "B"],
                        "identity": b"\x04" * 16,
                        "peer": "a phone",
                        "state": "lost",
                        "sent": 7,
                        "dropped": 2,
                    },
                    {"queue": "HERE", "peer": "here", "identity": None, "state": "up"},
                    {"queue": "FAR", "identity": b"\x05" * 16, "state": "up"},
                ],
            },
            {"name": "LOCAL", "scope": "local", "style": "balance", "pipes": []},
        ],
        "queues": [{"name": "HERE", "scope": "local"}, {"name": "IDLE", "scope": "local"}],
    },
    TWO: {"identity": b"\x02" * 16, "queues": [{"name": "ALL", "scope": "global"}]},
    GONE: "cannot connect",
}


def whole() -> Graph:
    """The graph of all of this."""
    return draw(ENTRIES, SAID)


def test_the_graph() -> None:
    """Names of the directory and of their owners, what binds them, who is beside the directory and who is not reached."""
    graph = whole()
    assert [(each.label, each.problem) for each in graph.processes] == [
        ("10.0.0.1:4000", ""),
        ("10.0.0.2:4000", ""),
        ("10.0.0.3:4000", "cannot connect"),
        ("a phone", "the directory does not list it"),
        ("05050505", "the directory does not list it"),
    ]
    assert [[(item.kind, item.name, item.listed) for item in each.items] for each in graph.processes] == [
        [
            ("exchange", "LOCAL", False),
            ("exchange", "PRICES", True),
            ("queue", "HERE", False),
            ("queue", "IDLE", False),
        ],
        [("queue", "ALL", True)],
        [("exchange", "NEWS", True)],
        [("queue", "A", False), ("queue", "B", False)],
        [("queue", "FAR", False)],
    ]
    assert [(pipe.source, pipe.exchange, pipe.target, pipe.queue, pipe.state) for pipe in graph.pipes] == [
        (0, "PRICES", 1, "ALL", "up"),
        (0, "PRICES", 3, "A", "lost"),
        (0, "PRICES", 3, "B", "lost"),
        (0, "PRICES", 0, "HERE", "up"),
        (0, "PRICES", 4, "FAR", "up"),
    ]
    assert [(pipe.sent, pipe.dropped) for pipe in graph.pipes[:2]] == [(1200, 0), (7, 2)]


def test_text() -> None:
    """A line for each pipe, one for what has none, and one for who is not reached."""
    assert FORMATS["text"](whole()).splitlines() == [
        "EXCHANGE  STYLE       OF             QUEUE  AT             STATE  SENT   DROPPED",
        "LOCAL     balance     10.0.0.1:4000  -      -              -      -      -",
        "PRICES    distribute  10.0.0.1:4000  ALL    10.0.0.2:4000  up     1,200  0",
        "PRICES    distribute  10.0.0.1:4000  A      a phone        lost   7      2",
        "PRICES    distribute  10.0.0.1:4000  B      a phone        lost   7      2",
        "PRICES    distribute  10.0.0.1:4000  HERE   10.0.0.1:4000  up     -      -",
        "PRICES    distribute  10.0.0.1:4000  FAR    05050505       up     -      -",
        "-         -           -              IDLE   10.0.0.1:4000  -      -      -",
        "NEWS      balance     10.0.0.3:4000  -      -              -      -      -",
        "not reached: 10.0.0.3:4000: cannot connect",
        "not reached: a phone: the directory does not list it",
        "not reached: 05050505: the directory does not list it",
    ]


def test_dot() -> None:
    """Graphviz gets a cluster for each process, and dashed lines where nothing flows."""
    lines = FORMATS["dot"](whole()).splitlines()
    assert lines[:4] == [
        "digraph wiring {",
        "  rankdir=LR;",
        '  subgraph cluster_0 { label="10.0.0.1:4000";',
        '    n0_0 [shape=cds, label="LOCAL (balance)"];',
    ]
    assert '  subgraph cluster_2 { label="10.0.0.3:4000 (not reached)"; style="dashed";' in lines
    assert '  n0_1 -> n1_0 [label="1,200 sent"];' in lines
    assert '  n0_1 -> n3_0 [label="lost, 7 sent, 2 dropped", style=dashed];' in lines
    assert lines[-1] == "}"


def test_mermaid() -> None:
    """Markdown gets a flowchart."""
    lines = FORMATS["mermaid"](whole()).splitlines()
    assert lines[:3] == ["flowchart LR", '  subgraph p0["10.0.0.1:4000"]', '    n0_0(["LOCAL (balance)"])']
    assert '  n0_1 -->|"1,200 sent"| n1_0' in lines
    assert "  n0_1 --> n0_2" in lines
    assert '  n0_1 -.->|"lost, 7 sent, 2 dropped"| n3_0' in lines


def test_nothing() -> None:
    """A directory without names is a graph without anything."""
    graph = draw([], {})
    assert FORMATS["text"](graph) == "EXCHANGE  STYLE  OF  QUEUE  AT  STATE  SENT  DROPPED\n"
    assert FORMATS["dot"](graph) == "digraph wiring {\n  rankdir=LR;\n}\n"
    assert FORMATS["mermaid"](graph) == "flowchart LR\n"


EVIL = 'a"]; x -> y\x1b[31m\n\\"<script>#|`'


def test_names_of_strangers_stay_text() -> None:
    """Whatever a name has in it, it ends no label, starts no line and reaches no terminal."""
    entries = [Entry("exchange", "E", ONE)]
    graph = draw(entries, {ONE: {"exchanges": [{"name": EVIL, "style": EVIL, "pipes": []}]}})
    harmless = draw(entries, {ONE: {"exchanges": [{"name": "X"}]}})
    for show in FORMATS.values():
        text = show(graph)
        assert "\x1b" not in text
        assert len(text.splitlines()) == len(show(harmless).splitlines())
    (label,) = re.findall(r'n0_\d \[shape=cds, label="((?:[^"\\]|\\.)*)"\];', FORMATS["dot"](graph))[1:]
    assert label.startswith('a\\"]; x')
    assert "<script" not in FORMATS["mermaid"](graph)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(("name", "pipes", "queue", "peer", "identity", "exchanges", "queues", "state")), inner
        )
    ),
    max_leaves=25,
)


@given(st.dictionaries(st.sampled_from(("identity", "exchanges", "queues")), ANYTHING))
def test_whatever_an_owner_says(said: dict[str, Any]) -> None:
    """Nothing that it says keeps the rest from being shown."""
    graph = draw(ENTRIES, {**SAID, TWO: said})
    for show in FORMATS.values():
        assert "PRICES" in show(graph)


def test_what_is_said_at_great_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of long texts and many things a part is shown."""
    monkeypatch.setattr("redpoll.cli.wiring_view._MAX_THINGS", 2)
    said = {"exchanges": [{"name": "x" * 5000}, {"name": "b"}, {"name": "c"}]}
    (process,) = draw([Entry("queue", "Q", ONE)], {ONE: said}).processes
    assert [len(item.name) for item in process.items] == [1, 300, 1]


@pytest.mark.asyncio
@pytest.mark.parametrize("token", ["sesame", None])
async def test_wirings_are_drawn(token: str | None) -> None:
    """What wirings say of themselves is what is drawn: names, pipes, where these lead; LOCAL names to who has the token."""
    async with Directory(port=free_port(), token=token) as directory:
        async with (
            Wiring(directory.address, token=token) as one,
            Wiring(directory.address, token=token) as two,
            Node(listen=False) as node,
        ):
            prices = await one.create_exchange("PRICES", scope=GLOBAL)
            await one.create_queue("OWN")
            mine = await two.create_queue("MINE")
            await two.create_queue("WORK", scope=GLOBAL)
            await two.bind("PRICES", "MINE")
            await two.bind("PRICES", "WORK")
            await one.bind("PRICES", "OWN")
            await prices.send(b"tick")
            assert await mine.receive() == b"tick"
            graph = await look(directory.entries, node, PATIENCE, token_bytes(token))
            places = {each.identity: number for number, each in enumerate(graph.processes)}
            first, second = (places[each.describe()["identity"].hex()] for each in (one, two))
            assert [each.problem for each in graph.processes] == ["", ""]
            assert sorted((pipe.source, pipe.exchange, pipe.target, pipe.queue) for pipe in graph.pipes) == sorted(
                [
                    (first, "PRICES", second, "MINE" if token else "(local)"),
                    (first, "PRICES", second, "WORK"),
                    (first, "PRICES", first, "OWN" if token else "(local)"),
                ]
            )
            assert {(pipe.state, pipe.sent, pipe.dropped) for pipe in graph.pipes} == {("up", 1, 0)}
            listed = {
                (item.name, item.scope, *([item.style, True] if item.listed else []))
                for each in graph.processes
                for item in each.items
            }
            assert listed == {
                ("PRICES", "global", "distribute", True),
                *([("OWN", "local"), ("MINE", "local")] if token else [("(local)", "")]),
                ("WORK", "global", None, True),
            }


@pytest.mark.asyncio
async def test_owners_are_asked() -> None:
    """Each owner is asked once, however many names it has; one that does not answer is shown with the reason."""
    asked: list[dict[str, Any]] = []

    def wiring(message: Any) -> bytes:
        assert message.header == protocol.WORD
        asked.append(protocol.decode(message.data))
        return protocol.encode({"queues": [{"name": "Q", "scope": "global"}]})

    def other(message: Any) -> bytes:
        return b"\xc1"

    def refusing(message: Any) -> bytes:
        return protocol.encode({"error": "WiringError", "arguments": []})

    nobody = Address("tcp", "127.0.0.1", free_port())
    async with make(wiring) as one, make(other) as two, make(refusing) as three, Node(listen=False) as node:
        places = [one.address, two.address, three.address, nobody]
        entries = [Entry("queue", f"Q{number}", place) for place in places for number in range(3)]
        graph = await look(entries, node, PATIENCE)
        problems = {each.address: each.problem for each in graph.processes}
        assert problems == {
            str(one.address): "",
            str(two.address): "what it said cannot be read",
            str(three.address): "it does not say what it has",
            str(nobody): f"cannot connect to {nobody}: Connection refused",
        }
    assert asked == [{"word": "describe"}]

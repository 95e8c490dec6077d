"""The pytest plugin, as the tests of other projects meet it."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from tests.doc_pages import PLUGINS
from tests.source_tree import ROOT

#: Hypothesis' plugin would take longer to import than the tests take.
ARGUMENTS = [
    "-p",
    "no:cacheprovider",
    "-p",
    "no:hypothesispytest",
    *(word for name in PLUGINS for word in ("-p", name)),
]

USES = """
import asyncio
import pytest
import redpoll
from redpoll import Message, PeerLost
from redpoll.testing import Faults

async def use(redpoll_node, redpoll_nodes, redpoll_faults):
    async with redpoll_node(lambda message: message.data * 2) as server, redpoll_node() as client:
        async with redpoll_faults(server, faults=Faults(pieces=1)) as proxy:
            answer = await client.request(Message(b"ab", proxy.address))
            assert answer.data == b"abab"
            assert proxy.stats().pieces > 50
    async with redpoll_nodes(3, lambda message: message.data) as nodes:
        assert all(len(node.peers) == 2 for node in nodes)
        await nodes[0].send(Message(b"x", nodes[2].address))
"""

WAYS = {
    "strict": """
@pytest.mark.asyncio
async def test_it(redpoll_node, redpoll_nodes, redpoll_faults):
    await use(redpoll_node, redpoll_nodes, redpoll_faults)
""",
    "auto": """
@pytest.fixture
async def server(redpoll_node):
    async with redpoll_node(lambda message: b"from a fixture") as node:
        yield node

async def test_it(server, redpoll_node, redpoll_nodes, redpoll_faults):
    await use(redpoll_node, redpoll_nodes, redpoll_faults)
    async with redpoll_node() as client:
        assert (await client.request(Message(b"", server.address))).data == b"from a fixture"
""",
    "anyio": """
@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
async def server(redpoll_node):
    async with redpoll_node(lambda message: b"from a fixture") as node:
        yield node

@pytest.mark.anyio
async def test_it(server, redpoll_node, redpoll_nodes, redpoll_faults):
    await use(redpoll_node, redpoll_nodes, redpoll_faults)
    async with redpoll_node() as client:
        assert (await client.request(Message(b"", server.address))).data == b"from a fixture"
""",
    "plain": """
@pytest.mark.parametrize("run", [asyncio.run, redpoll.run])
def test_it(redpoll_node, redpoll_nodes, redpoll_faults, run):
    run(use(redpoll_node, redpoll_nodes, redpoll_faults))
""",
}


def run(pytester: pytest.Pytester, test: str, *arguments: str) -> pytest.RunResult:
    """Run a test file in a process of its own, warnings as errors."""
    pytester.makepyfile(test)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n")
    return pytester.runpytest_subprocess(*ARGUMENTS, *arguments)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_run_coroutines(pytester: pytest.Pytester, way: str) -> None:
    """The factories work under pytest-asyncio in both modes, under anyio, and in plain functions that run a loop."""
    options = ["-o", f"asyncio_mode={'auto' if way == 'auto' else 'strict'}"]
    if way == "anyio":
        options = ["-p", "no:asyncio"]
        pytester.makeini("[pytest]\n")
        pytester.makepyfile(USES + WAYS[way])
        result = pytester.runpytest_subprocess(*ARGUMENTS, *options, "-W", "error")
    else:
        result = run(pytester, USES + WAYS[way], *options)
    result.assert_outcomes(passed=2 if way == "plain" else 1)


def test_works_side_by_side(pytester: pytest.Pytester) -> None:
    """Several processes of pytest-xdist run the same tests at a time and do not meet."""
    many = WAYS["plain"].replace("[asyncio.run, redpoll.run]", "[redpoll.run] * 8")
    run(pytester, USES + many, "-n", "2").assert_outcomes(passed=8)


FORGETFUL = """
import asyncio
import pytest
import redpoll
from redpoll.testing import FaultProxy

def test_forgets_a_node(redpoll_node):
    async def main():
        await redpoll_node(listen=False).start()
    asyncio.run(main())

def test_forgets_a_proxy(redpoll_faults):
    async def main():
        await redpoll_faults("127.0.0.1:9").start()
    asyncio.run(main())

@pytest.mark.asyncio
async def test_forgets_on_a_loop_that_goes_on(redpoll_node, redpoll_faults):
    node = redpoll_node(lambda message: None)
    await node.start()
    await redpoll_faults(node).start()

def test_forgets_nothing(redpoll_node, redpoll_faults):
    redpoll_node()
    redpoll_faults("127.0.0.1:9")
"""


def test_forgotten_nodes_and_proxies(pytester: pytest.Pytester) -> None:
    """A node or proxy that is open at the end fails its test, by name and with the remedy, and troubles no other."""
    result = run(pytester, FORGETFUL)
    result.assert_outcomes(passed=4, errors=3)
    text = result.stdout.str()
    # On CI the summary repeats it.
    reports, _, _ = text.partition("short test summary")
    assert reports.count("the test ended and did not close:") == 3
    result.stdout.fnmatch_lines(["*<Node * running, not listening>*", "*open them with `async with`*"])
    result.stdout.fnmatch_lines(["*<FaultProxy * -> 127.0.0.1:9, seed *, running, 0 open>*"])


SEEDED = """
import pytest

def test_drawn(redpoll_faults):
    first, second = redpoll_faults("127.0.0.1:9"), redpoll_faults("127.0.0.1:9")
    raise LookupError(f"{first.seed} {second.seed}")

def test_given(redpoll_faults):
    raise LookupError(f"given {redpoll_faults('127.0.0.1:9', seed=7).seed}")

def test_passes(redpoll_faults):
    redpoll_faults("127.0.0.1:9")
"""


@pytest.mark.parametrize(
    "arguments", [pytest.param([], id="here"), pytest.param(["-n", "1"], id="xdist", marks=pytest.mark.nightly)]
)
def test_seed_repeats(pytester: pytest.Pytester, arguments: list[str]) -> None:
    """A failed test names its seed; with that option the proxies have the same ones, as they do without another."""
    first = run(pytester, SEEDED, *arguments)
    first.assert_outcomes(failed=2, passed=1)
    remarks = [line for line in first.outlines if "--redpoll-seed=" in line]
    assert len(remarks) == 1
    seed = int(remarks[0].rpartition("=")[2])
    assert f"LookupError: {seed} {seed + 1}" in first.stdout.str()
    again = run(pytester, SEEDED, *arguments, f"--redpoll-seed={seed}")
    assert f"LookupError: {seed} {seed + 1}" in again.stdout.str()
    assert "LookupError: given 7" in again.stdout.str()


CERTIFIED = """
import ssl
import pytest

@pytest.fixture(scope="session")
def server(redpoll_pki):
    return redpoll_pki.issue("server")

@pytest.mark.parametrize("time", range(2))
def test_certificates(redpoll_pki, server, time):
    context = ssl.create_default_context(cafile=redpoll_pki.ca)
    context.load_cert_chain(redpoll_pki.issue("worker"))
    context.load_cert_chain(server)
    assert redpoll_pki.issue("worker") != redpoll_pki.issue("worker")
"""


@pytest.mark.parametrize(
    "arguments", [pytest.param([], id="here"), pytest.param(["-n", "2"], id="xdist", marks=pytest.mark.nightly)]
)
def test_certificates_of_a_session(pytester: pytest.Pytester, arguments: list[str]) -> None:
    """Plain tests and fixtures of any scope make certificates of one CA, the same names again and side by side."""
    run(pytester, CERTIFIED, *arguments).assert_outcomes(passed=2)


def test_imports_nothing_until_used(pytester: pytest.Pytester) -> None:
    """A test run that uses no fixture imports nothing of redpoll."""
    test = """
        import sys

        def test_not_used():
            assert [name for name in sys.modules if name.partition(".")[0] == "redpoll"] == []

        def test_used(redpoll_node):
            assert "redpoll" in sys.modules
    """
    run(pytester, test, "-p", "no:randomly").assert_outcomes(passed=2)


def test_redpoll_does_not_need_pytest() -> None:
    """Neither redpoll nor what it has for tests imports pytest."""
    code = "import sys, redpoll, redpoll.testing, redpoll.testing.plugin; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_is_installed_as_a_plugin() -> None:
    """The metadata name the module, and the wheel holds it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"redpoll": "_redpoll_pytest"}
    assert "src/_redpoll_pytest.py" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]

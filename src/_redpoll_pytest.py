"""The pytest plugin of redpoll: fixtures that hand out factories of nodes, fault proxies and certificates.

It stands outside the package, because importing anything in there imports all of redpoll: a test run in an environment
where redpoll happens to be installed imports nothing of it until a fixture is used, and coverage sees all of it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from redpoll.testing.apps import AppFactory
    from redpoll.testing.buses import BusFactory
    from redpoll.testing.certificates import Certificates
    from redpoll.testing.plugin import FaultsFactory, Kept, NodeFactory, NodesFactory

__all__ = [
    "pytest_addoption",
    "pytest_runtest_makereport",
    "redpoll_app",
    "redpoll_bus",
    "redpoll_faults",
    "redpoll_node",
    "redpoll_nodes",
    "redpoll_pki",
]

# So that what an engine's author sees of a behaviour that fails is more than "AssertionError".
pytest.register_assert_rewrite("redpoll.testing.conformance")

_KEPT = pytest.StashKey["Kept"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--redpoll-seed`` and ``--redpoll-engine``."""
    group = parser.getgroup("redpoll")
    group.addoption(
        "--redpoll-engine",
        default="memory://",
        metavar="URL",
        help="let redpoll_bus use this engine; the default is memory://, of which each test has one of its own",
    )
    group.addoption(
        "--redpoll-seed",
        type=int,
        default=None,
        metavar="SEED",
        help="draw the network faults of redpoll_faults from this seed, as the report of a failed test names it",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say in the report of a failed test how to run it again with the same faults."""
    report = yield
    kept = item.stash.get(_KEPT, None)
    if kept is not None and report.failed and kept.remark is not None:
        report.sections.append(("redpoll", kept.remark))
    return report


@pytest.fixture
def _redpoll_kept(request: pytest.FixtureRequest) -> Iterator[Kept]:
    """Objects that the test made; fails the test if it did not close it."""
    from redpoll.testing.plugin import Kept

    kept = Kept(request.config.getoption("--redpoll-seed", default=None))
    request.node.stash[_KEPT] = kept
    yield kept
    problem = kept.end()
    if problem is not None:
        pytest.fail(problem, pytrace=False)


@pytest.fixture
def redpoll_node(_redpoll_kept: Kept) -> NodeFactory:
    """Make nodes, each on a free port.

    `async with redpoll_node(handler, **options) as node`
    """
    from redpoll.testing.plugin import NodeFactory

    return NodeFactory(_redpoll_kept)


@pytest.fixture
def redpoll_nodes(_redpoll_kept: Kept) -> NodesFactory:
    """Make nodes that have links to one another.

    `async with redpoll_nodes(3, handler, **options) as (a, b, c)`
    """
    from redpoll.testing.plugin import NodesFactory

    return NodesFactory(_redpoll_kept)


@pytest.fixture
def redpoll_faults(_redpoll_kept: Kept) -> FaultsFactory:
    """Put a proxy in front of a node or an address, which breaks connections as it is told or by chance.

    `async with redpoll_faults(node) as proxy`, and then dial `proxy.address`
    """
    from redpoll.testing.plugin import FaultsFactory

    return FaultsFactory(_redpoll_kept)


@pytest.fixture
def redpoll_bus(request: pytest.FixtureRequest) -> Iterator[BusFactory]:
    """Make buses that meet each other, on the engine of ``--redpoll-engine`` or in memory.

    `async with redpoll_bus() as bus`; `redpoll_bus.sent` is what was published, `redpoll_bus.time` virtual time
    """
    from redpoll.testing.buses import BusFactory

    factory = BusFactory(request.config.getoption("--redpoll-engine", default="memory://"))
    yield factory
    forgotten = factory.forgotten()
    if forgotten:
        names = "\n".join(f"    {bus!r}" for bus in forgotten)
        pytest.fail(f"the test ended and did not close:\n{names}\n(open them with `async with`)", pytrace=False)


@pytest.fixture
def redpoll_app(redpoll_bus: BusFactory) -> AppFactory:
    """Run an app in memory, in virtual time.

    `async with redpoll_app(app) as running`; `running.submitted` is what was submitted, `await running.drain()` lets it end
    """
    from redpoll.testing.apps import AppFactory

    return AppFactory(redpoll_bus)


@pytest.fixture(scope="session")
def redpoll_pki(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Make certificates of a CA that is thrown away when the session ends.

    `redpoll_pki.issue("worker", names=["localhost"])` is the path of a file; `redpoll_pki.ca` is that of the CA's.
    """
    from redpoll.testing.certificates import Certificates

    return Certificates(tmp_path_factory.mktemp("redpoll-pki"))

"""README and the documentation do what they say."""

from __future__ import annotations

import ast
import codeop
import enum
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import redpoll
from redpoll import Config, Message, Received, bus, nq
from redpoll.bus import notifications, rpc, threads
from tests.doc_pages import ROOT, blocks, installs, pages
from tests.test_tests import found_in

README = ROOT / "README.md"
WITH_CODE = [page for page in pages() if any(block.language in {"python", "sh"} for block in blocks(page))]
#: Pages that the tests of RabbitMQ run.
ELSEWHERE = {ROOT / "docs" / "how-to" / "rabbitmq.md"}


def name(page: Path) -> str:
    """Return a page's path as a test shows it."""
    return str(page.relative_to(ROOT))


@pytest.mark.timeout(180)
@pytest.mark.parametrize("page", [page for page in WITH_CODE if page not in ELSEWHERE], ids=name)
def test_page_runs(page: Path) -> None:
    """Every Python and shell block of a page runs, without a warning, and prints what the page shows."""
    command = [sys.executable, "-W", "error", "-m", "tests.doc_pages", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr


@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_blocks_can_be_typed(page: Path) -> None:
    """`python -m asyncio` takes each Python block line by line, where a blank line ends what is indented."""
    typed = codeop.CommandCompiler()
    typed.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    for block in blocks(page):
        if block.language != "python" or block.file is not None:
            continue
        entered: list[str] = []
        for number, line in enumerate([*block.text.splitlines(), ""]):
            entered.append(line)
            try:
                if typed("\n".join(entered)) is not None:
                    entered.clear()
            except SyntaxError as error:
                pytest.fail(f"{name(page)}:{block.line + number}: {line!r}: {error.msg}", pytrace=False)
        assert not any(entered)


def test_every_block_has_a_language() -> None:
    """No block escapes the tests by not saying what it is."""
    known = {"python", "sh", "text", "toml"}
    found = [(page, block) for page in pages() for block in blocks(page)]
    assert not [f"{name(page)}:{block.line} {block.language!r}" for page, block in found if block.language not in known]


def test_readme_has_the_two_commands() -> None:
    """README opens with one command that does the main job and one that passes the tests."""
    commands = [block.text.strip() for block in blocks(README) if installs(block)]
    assert commands == [
        "python3 -m venv .venv && .venv/bin/pip install '.[cli]' && .venv/bin/redpoll demo",
        "python3 -m venv .venv && .venv/bin/pip install nox && .venv/bin/nox",
    ]


def test_ci_runs_readmes_commands() -> None:
    """What CI runs are README's own lines, found by words that only they have."""
    script = (ROOT / ".ci" / "run").read_text()
    words = re.findall(r"^readme '(.+)'$", script, re.MULTILINE)
    lines = README.read_text().splitlines()
    run = [line for word in words for line in lines if word in line]
    assert sorted(run) == sorted(block.text.strip() for block in blocks(README) if installs(block))


def test_only_readme_installs() -> None:
    """No other page has a block that only CI could run."""
    others = [name(page) for page in pages() if page != README and any(installs(block) for block in blocks(page))]
    assert not others


def test_figures_come_from_results() -> None:
    """A rate in README or the documentation stands in benchmarks/results as well."""
    results = "\n".join(path.read_text() for path in (ROOT / "benchmarks" / "results").rglob("*") if path.is_file())
    rate = re.compile(
        r"\b(\d[\d,.]*) ?(?:k|M)?(?: messages| msg| requests| sends)?(?:/s\b| (?:a|per) second)", re.IGNORECASE
    )
    unbacked = [
        f"{name(page)}: {match[0]}"
        for page in pages()
        for match in rate.finditer(page.read_text())
        if match[1] not in results
    ]
    assert not unbacked


def test_tuning_quotes_measurements() -> None:
    """Each ratio on the page of tuning is that of a row of its benchmark on the page of measurements."""
    measured = (ROOT / "docs" / "explanation" / "measured.md").read_text()
    page = (ROOT / "docs" / "how-to" / "tuning.md").read_text()
    rows = set(re.findall(r"^\| (\w+) \|(?:[^|]*\|){4} ([\d,.]+) \|", measured, re.MULTILINE))
    quoted = [
        (name, ratio)
        for name, ratios in re.findall(r"`([a-z]+_[a-z0-9_]+|stream|pressure)` (\d[^`|;)]*)", page)
        for ratio in re.findall(r"\d+\.\d\d", ratios)
    ]
    assert len(quoted) > 20
    assert [each for each in quoted if each not in rows] == []


def shown(value: object) -> str:
    """Return a default as the page of bounds writes it."""
    if isinstance(value, float):
        return f"{value:g} s"
    assert isinstance(value, int)
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if value >= size and value % size == 0:
            return f"{value // size} {unit}"
    return f"{value:,}"


def test_bounds_are_the_defaults() -> None:
    """The page of bounds names real options, with the defaults that they have."""
    page = (ROOT / "docs" / "explanation" / "bounds.md").read_text()
    rows = re.findall(r"^\|[^|]+\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE)
    default = Config()
    derived = {
        "slots": f"{default.effective_slots} acknowledging, {Config(acknowledge=False).effective_slots} not",
        "window": f"{default.effective_window}, or `slots` where that is more",
        "connect_timeout": "twice `timeout`, at most 60 s",
    }
    expected = {option: derived.get(option) or shown(getattr(default, option)) for option, _ in rows}
    expected["max_message_size"] = "100 MiB"
    assert len(rows) >= 14
    assert dict(rows) == expected


def test_bounds_of_the_facade_are_the_defaults() -> None:
    """The same of the queue facade's options."""
    page = (ROOT / "docs" / "explanation" / "bounds.md").read_text()
    rows = set(re.findall(r"^\|[^|]+\| `ConnectionOptions\.(\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    default = nq.ConnectionOptions()
    assert default.queue_size == 2**30
    assert default.message_size == 2**40
    assert default.queue_bytes is None
    assert rows == {("queue_size", "2**30"), ("message_size", "1 TiB"), ("queue_bytes", "no limit")}


def test_promises_have_their_tests() -> None:
    """Each promise names tests that show it, and there are such tests."""
    page = (ROOT / "docs" / "explanation" / "promises.md").read_text()
    *promises, last = re.findall(r"^## (.+)$", page, re.MULTILINE)
    table = page.partition(f"## {last}")[2]
    named = dict(re.findall(r"^\| (\w[^|]+?) \| (`.+`) \|$", table, re.MULTILINE))
    assert list(named) == promises
    tests = [name.split("::") for names in named.values() for name in re.findall("`(.+?)`", names)]
    assert [f"{path}::{test}" for path, test in tests if test not in found_in(ROOT / "tests" / path)] == []


def test_what_errors_say_is_said() -> None:
    """Each text on the page of errors is a piece of one in the source."""
    page = (ROOT / "docs" / "how-to" / "errors.md").read_text()
    texts = re.findall(r"^\| `(.+?)` \|", page, re.MULTILINE)
    sources = (ROOT / "src" / "redpoll").rglob("*.py")
    trees = (ast.walk(ast.parse(path.read_text())) for path in sources)
    said = "\n".join(str(each.value) for tree in trees for each in tree if isinstance(each, ast.Constant))
    assert len(texts) > 10
    assert [text for text in texts if text not in said] == []


#: Public names of objects of the bus that are for the library and its engines.
INTERNAL = {"change", "in_place", "let_go", "lose", "planned_worker", "read_by"}
OF_BUS = (
    bus.Bus, bus.Queues, bus.Status, bus.Tasks, bus.Handle, bus.Task, bus.Claim, bus.TaskChain, bus.TaskGroup, bus.Broadcasts,
    bus.BroadcastSubscription, bus.Broadcast, rpc.Rpc, rpc.Client, rpc.Server, rpc.Stream, notifications.Notifications,
    notifications.Notifier, notifications.RoutingNotifier, notifications.Listener, threads.BlockingEngine,
    threads.BlockingWorker, threads.BlockingBus, threads.BlockingClient,
)  # fmt: skip


def test_how_tos_tell_of_every_method_of_the_bus() -> None:
    """Each public method, property and attribute of an object of the bus is named by a how-to."""
    text = "\n".join(page.read_text() for page in (ROOT / "docs" / "how-to").glob("*.md"))
    named = set(re.findall(r"(?:\.|`)([a-z]\w+)", text)) | set(re.findall(r"\b([a-z]\w+)=", text))
    names = {name for kind in OF_BUS for name in dir(kind) if not name.startswith("_")} - INTERNAL - set(dir(tuple))
    assert len(names) > 90
    assert sorted(names - named) == []


def test_command_page_is_complete() -> None:
    """The page of the command names every command and every option there is."""
    page = (ROOT / "docs" / "reference" / "command.md").read_text()
    sources = sorted((ROOT / "src" / "redpoll" / "cli").rglob("*.py"))
    texts = {
        node.value
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    options = {word for text in texts for word in text.split("/") if re.fullmatch(r"--[a-z][a-z-]+", word)}
    hidden = {"--help", "--version"}
    assert options >= {"--lines", "--json", "--timeout"}
    assert sorted(option for option in options - hidden if f"`{option}`" not in page) == []


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link outside the built documentation leads to a file; mkdocs checks those inside."""
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_architecture_names_what_there_is() -> None:
    """Each module and package that the page about the architecture names, or its pictures, is in the source."""
    page = ROOT / "docs" / "explanation" / "architecture.md"
    source = ROOT / "src" / "redpoll"
    named = set(re.findall(r"`((?:wire|node|transport|wiring|bus|blocking|core)/[a-z_/]+(?:\.py)?)`", page.read_text()))
    for picture in (ROOT / "docs" / "pictures").glob("*.svg"):
        named |= set(re.findall(r"\b((?:wire|node|transport)/[a-z_]+)\b", picture.read_text()))
    assert len(named) > 30
    places = (source, source / "nq")
    assert not [
        each for each in named if not any((at / each).exists() or (at / f"{each}.py").exists() for at in places)
    ]


def test_reference_shows_all_of_a_received_message() -> None:
    """What a user can ask of a received message stands in the reference, also what a class below it defines."""
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    listed = re.search(r"^::: redpoll\.Received\n +options:\n +inherited_members: \[(.+)\]$", page, re.MULTILINE)
    assert listed
    shown = {*vars(Received), *vars(Message), *listed[1].split(", ")}
    for_the_library = {"begun", "frame", "link", "phase", "serial", "kind", "body_size"}
    assert sorted(name for name in set(dir(Received)) - shown - for_the_library if not name.startswith("_")) == []
    assert [name for name in listed[1].split(", ") if not hasattr(Received, name)] == []


@pytest.mark.parametrize("package", ["redpoll.blocking", "redpoll.bus", "redpoll.wiring"])
def test_reference_shows_what_is_exported(package: str) -> None:
    """Every public name of a package stands in the reference, but for the members of enums."""
    text = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    exported = importlib.import_module(package)
    names = {name for name in exported.__all__ if not isinstance(getattr(exported, name), enum.Enum)}
    assert sorted(name for name in names if f"::: {package}.{name}\n" not in text) == []


def test_home_leads_everywhere() -> None:
    """The first page of the documentation names every other one."""
    docs = ROOT / "docs"
    home = docs / "index.md"
    others = {str(page.relative_to(docs)) for page in docs.rglob("*.md") if page != home}
    assert sorted(others - set(re.findall(r"\]\(([^)#:]+)\)", home.read_text()))) == []


def test_glossary_has_each_term_once() -> None:
    """No term of the glossary is explained twice, and those of a section stand in order."""
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text()
    sections = [re.findall(r"^\| ([^|]+) \| [^|]+ \| \[", section, re.MULTILINE) for section in page.split("\n## ")]
    found = [term for section in sections for terms in section for term in terms.split(", ")]
    assert len(found) > 60
    assert sorted(term for term in set(found) if found.count(term) > 1) == []
    assert [section for section in sections if section != sorted(section, key=str.lower)] == []


def test_one_version() -> None:
    """The package, its metadata, the citation and the change log name the same version."""
    current = redpoll.__version__
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == current
    assert f"version: {current}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {current}" in (ROOT / "CHANGELOG.md").read_text()

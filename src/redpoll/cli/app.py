"""The command: its groups and their help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

import redpoll

from .bench.programs import bench
from .bridge import bridge
from .demo import demo
from .directory import directory
from .echo import echo
from .hub import HUB
from .hub import hub as serve_hub
from .listen import listen
from .options import epilog, flowing
from .pki import init, issue, renew, show
from .queue import QUEUE
from .request import request
from .run.command import run
from .send import send
from .task import TASK
from .wiring import show as show_wiring

__all__ = ["app"]

_CODES = """Exit codes:
  0    done
  1    not delivered, not confirmed or refused; could not be read or written; an unusable certificate
  2    usage: a bad option, address or file
  3    no answer in time
  4    cannot listen at that address
  130  ended by Ctrl-C before completion, 143 by SIGTERM"""

app = typer.Typer(
    name="redpoll",
    help="Messages between processes: acknowledged, throttled, bounded.",
    epilog=_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _group(name: str, text: str, example: str) -> typer.Typer:
    made = typer.Typer(name=name, help=text, epilog=epilog(example), no_args_is_help=True)
    app.add_typer(made)
    return made


pki = _group(
    "pki",
    "Make a CA and the certificates of nodes, and show and renew them.",
    "redpoll pki init && redpoll pki issue worker --names worker.example.org,10.0.0.7",
)
app.add_typer(bench)
wiring = _group("wiring", "Show exchanges, queues and their bindings.", "redpoll wiring show 127.0.0.1:5682")
hub = typer.Typer(name="hub", invoke_without_command=True)
hub.callback(
    help=flowing(serve_hub),
    epilog=epilog(
        "redpoll hub --data /var/lib/redpoll",
        "redpoll hub --data hub --host 0.0.0.0 --tls pki/hub.pem --tokens tokens.toml",
    ),
)(serve_hub)
app.add_typer(hub)
queue = _group("queue", "Inspect and repair the queues of a bus.", "redpoll queue list --url redpoll://127.0.0.1")
task = _group(
    "task",
    "Show a task of a bus, cancel it, wait for its result.",
    "redpoll task show 5e1f09ab-17-0123456789abcdef --url redpoll://127.0.0.1",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"redpoll {redpoll.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Messages between processes: acknowledged, throttled, bounded."""


_Commands = dict[str, tuple[Callable[..., Any], list[str]]]

_COMMANDS: _Commands = {
    "demo": (demo, ["redpoll demo"]),
    "listen": (listen, ["redpoll listen", "redpoll listen 0 --output copy.log --count 1000"]),
    "send": (send, ["redpoll send 127.0.0.1:2998 hello", "redpoll send 127.0.0.1:2998 --lines < some.log"]),
    "request": (request, ['redpoll request 127.0.0.1:2998 "are you there?" --timeout 2']),
    "echo": (echo, ["redpoll echo 127.0.0.1:2998"]),
    "bridge": (
        bridge,
        [
            "redpoll bridge redpoll://127.0.0.1 amqp://127.0.0.1",
            "redpoll bridge @hub.url @rabbit.url --queue 'images.*' --queue rpc:calculator",
        ],
    ),
    "run": (run, ["redpoll run photos:app --workers 4", "redpoll run photos --queues images,mail --reload"]),
    "directory": (
        directory,
        ["redpoll directory", "redpoll directory --config directory.toml --token-file token"],
    ),
}
_PKI: _Commands = {
    "init": (init, ["redpoll pki init", "redpoll pki init --dir /srv/pki --key rsa-3072"]),
    "issue": (issue, ["redpoll pki issue worker --names worker.example.org,10.0.0.7"]),
    "show": (show, ["redpoll pki show", "redpoll pki show worker --json"]),
    "renew": (renew, ["redpoll pki renew worker", "redpoll pki renew ca --days 3650"]),
}
_WIRING: _Commands = {
    "show": (
        show_wiring,
        ["redpoll wiring show 127.0.0.1:5682", "redpoll wiring show 127.0.0.1 --format dot | dot -Tsvg > wiring.svg"],
    )
}

for _typer, _commands in ((app, _COMMANDS), (pki, _PKI), (wiring, _WIRING), (hub, HUB), (queue, QUEUE), (task, TASK)):
    for _name, (_run, _examples) in _commands.items():
        _typer.command(_name, help=flowing(_run), epilog=epilog(*_examples))(_run)

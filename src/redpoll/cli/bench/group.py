"""The group `redpoll bench`: latency and throughput, and the programs that measure them."""

from __future__ import annotations

from collections.abc import Callable

import typer

from redpoll.cli.texts import epilog, flowing

from .latency import lat, lat_local, lat_remote
from .throughput import thr, thr_local, thr_remote

__all__ = ["bench"]

bench = typer.Typer(
    name="bench",
    help="Measure messages between two processes of one machine, or of two.",
    epilog=epilog("redpoll bench lat", "redpoll bench thr --plot charts"),
    no_args_is_help=True,
)

_Command = Callable[..., None]

_WORKS: list[tuple[_Command, list[str], dict[_Command, str]]] = [
    (
        lat,
        ["redpoll bench lat", "redpoll bench lat --sizes 1,256 --json"],
        {
            lat_remote: "redpoll bench lat remote directory.example.org eth0 eth0 1 10000",
            lat_local: "redpoll bench lat local directory.example.org 1 10000",
        },
    ),
    (
        thr,
        ["redpoll bench thr", "redpoll bench thr --sizes 65536 --count 50000"],
        {
            thr_local: "redpoll bench thr local directory.example.org eth0 256 1000000",
            thr_remote: "redpoll bench thr remote directory.example.org 256 1000000",
        },
    ),
]

for _work, _examples, _programs in _WORKS:
    # Without a program's name it runs everything; with one, only that program.
    _group = typer.Typer(name=_work.__name__, invoke_without_command=True)
    _group.callback(help=flowing(_work), epilog=epilog(*_examples))(_work)
    for _program, _example in _programs.items():
        _name = _program.__name__.removeprefix(f"{_work.__name__}_")
        _group.command(_name, help=flowing(_program), epilog=epilog(_example))(_program)
    bench.add_typer(_group)

"""The commands, put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

import redpoll

from .demo import demo
from .echo import echo
from .listen import listen
from .request import request
from .send import send

__all__ = ["app"]

_CODES = """Exit codes:
  0    done
  1    not delivered, not confirmed or refused; could not be read or written
  2    usage: a bad option, address or file
  3    no answer in time
  4    cannot listen there
  130  ended by Ctrl-C before it was done, 143 by SIGTERM"""

_EXAMPLES: dict[Callable[..., Any], list[str]] = {
    demo: ["redpoll demo"],
    listen: ["redpoll listen", "redpoll listen 0 --output copy.log --count 1000"],
    send: ["redpoll send 127.0.0.1:2998 hello", "redpoll send 127.0.0.1:2998 --lines < some.log"],
    request: ['redpoll request 127.0.0.1:2998 "are you there?" --timeout 2'],
    echo: ["redpoll echo 127.0.0.1:2998"],
}

app = typer.Typer(
    name="redpoll",
    help="Messages between processes: acknowledged, throttled, bounded.",
    epilog=_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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


def _flowing(text: str) -> str:
    # Paragraphs of a docstring without its line breaks, which would be shown as they are.
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


for _command, _examples in _EXAMPLES.items():
    _heading = "Example:" if len(_examples) == 1 else "Examples:"
    app.command(help=_flowing(_command.__doc__ or ""), epilog="\n  ".join([_heading, *_examples]))(_command)

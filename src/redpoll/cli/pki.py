"""`redpoll pki`: make, show and renew certificates of nodes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from redpoll.errors import UsageError

from .certificates import details, overview, record
from .codes import ExitCode, code_of
from .options import JsonOption, QuietOption
from .output import Output, reason, remedy

if TYPE_CHECKING:
    from redpoll.pki import Report

__all__ = ["init", "issue", "renew", "show"]

# Files that `redpoll.pki` writes for the CA, and its name in `show` and `renew`.
_CA = "ca"

FolderOption = Annotated[
    Path, typer.Option("--dir", "-d", metavar="PATH", help="Folder of the CA and its certificates.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite existing files, including private keys.")]
# As `redpoll.pki.KeyKind`, which is imported only by the commands that need it.
KeyKind = Literal["ec", "rsa-3072", "rsa-2048"]
KeyOption = Annotated[KeyKind, typer.Option("--key", help="Kind of the key; ec is the curve P-256.")]


def init(
    folder: FolderOption = Path("pki"),
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="Name of the CA.")] = "redpoll CA",
    key: KeyOption = "ec",
    days: Annotated[int, typer.Option("--days", help="How long it is valid.")] = 3650,
    dh: Annotated[int, typer.Option("--dh", metavar="BITS", help="Size of the group in dh.pem: 2048 or 3072.")] = 3072,
    force: ForceOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make a CA: ca.key, ca.pem and, for libchirp, dh.pem.

    libchirp peers limited to TLS 1.2 need --key rsa-3072.
    """
    from redpoll.pki import CA, dh_parameters
    from redpoll.pki.files import File, write_files

    output = Output(json=json, quiet=quiet)
    with _telling(output):
        parameters = File(folder / "dh.pem", dh_parameters(dh), private=False)
        path = CA.make(name, key=key, days=days).save(folder, force=force)
        # Not secret, and the same everywhere: an existing file is kept.
        if force or not parameters.path.exists():
            write_files([parameters], force=True)
        _made(path, output)


def issue(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node: names its file and its certificate.")],
    names: Annotated[
        str | None,
        typer.Option(
            "--names", metavar="LIST", help="DNS names and IP addresses, separated by commas; NAME by default."
        ),
    ] = None,
    folder: FolderOption = Path("pki"),
    key: Annotated[KeyKind | None, typer.Option("--key", help="Kind of the key; the CA's by default.")] = None,
    days: Annotated[int, typer.Option("--days", help="How long it is valid.")] = 365,
    force: ForceOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make a node's certificate and key: one file, NAME.pem, whose path is printed."""
    from redpoll.pki import CA

    output = Output(json=json, quiet=quiet)
    with _telling(output):
        hosts = None if names is None else [each.strip() for each in names.split(",")]
        chain = CA.load(folder).issue(name, hosts, key=key, days=days)
        _made(chain.save(folder / f"{name}.pem", force=force), output)


def renew(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The node, or ca.")],
    folder: FolderOption = Path("pki"),
    days: Annotated[
        int | None, typer.Option("--days", help="Days of validity from now on; 365 by default, 3650 for ca.")
    ] = None,
    new_key: Annotated[bool, typer.Option("--new-key", help="Make a new private key too; needs --force.")] = False,
    force: ForceOption = False,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Replace a certificate with a new one with the same names and key.

    After the CA is renewed, its certificates stay valid; renew these too, to include the CA's new certificate.
    """
    from redpoll.pki import CA, Chain

    output = Output(json=json, quiet=quiet)
    with _telling(output):
        authority = CA.load(folder)
        if name == _CA and new_key:
            raise UsageError("a CA with a new key is a new CA", "make it with `redpoll pki init --force`")
        if name == _CA:
            path = authority.renewed(days=3650 if days is None else days).save_certificate(folder)
        else:
            path = folder / f"{name}.pem"
            if new_key and not force:
                raise UsageError(f"--new-key overwrites the private key in {path}", "add --force to overwrite it")
            chain = authority.renew(Chain.load(path), days=365 if days is None else days, new_key=new_key)
            chain.save(path, force=True)
        _made(path, output)


def show(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME|FILE]...", help="Nodes, ca, or files in PEM; a table of all by default."),
    ] = None,
    folder: FolderOption = Path("pki"),
    json: JsonOption = False,
) -> None:
    """Show certificates: names, dates, key, fingerprint, and problems.

    The exit code is 1 if one is unusable: expired, not signed by its CA, or not matching its key.
    """
    output = Output(json=json)
    code = ExitCode.DONE
    reports = []
    with _telling(output):
        for path in [_path(each, folder) for each in names] if names else _all(folder):
            try:
                reports.append(_inspect(path))
            except (UsageError, OSError) as error:
                told = _tell(error, output)
                code = code or told
        _print(reports, output, table=not names)
    if code or any(report.problems for report in reports):
        raise typer.Exit(code or ExitCode.NOT_DELIVERED)


@contextmanager
def _telling(output: Output) -> Iterator[None]:
    """Report an error, and exit with its code."""
    try:
        yield
    except (UsageError, OSError) as error:
        if isinstance(error, OSError) and error.filename is None:  # standard output, and nothing of the CA
            raise
        raise typer.Exit(_tell(error, output)) from error


def _tell(error: UsageError | OSError, output: Output) -> ExitCode:
    file = error.filename if isinstance(error, OSError) else None
    hint = remedy(error)
    for name in ("force", "names"):  # arguments of the library, options here
        hint = hint and hint.replace(f"`{name}`", f"--{name}")
    output.error(f"{os.fsdecode(file)}: {reason(error)}" if file else error, hint=hint)
    return code_of(error)


def _made(path: Path, output: Output) -> None:
    report = _inspect(path)
    output.event("certificate", record(report))
    if not output.json and sys.stdout is not None:
        print(path)  # noqa: T201 - the result, for scripts
    output.notice(f"{report.subject} is valid until {report.end:%Y-%m-%d}; its fingerprint is {report.fingerprint}")


def _path(name: str, folder: Path) -> Path:
    is_file = name.endswith(".pem") or os.sep in name
    return Path(name) if is_file else folder / f"{name}.pem"


def _all(folder: Path) -> list[Path]:
    authority = folder / f"{_CA}.pem"
    if not authority.exists():
        raise UsageError(f"no CA in {folder}", "`redpoll pki init` makes one, --dir names another folder")
    nodes = sorted(path for path in folder.glob("[!.]*.pem") if path.name not in {authority.name, "dh.pem"})
    return [authority, *nodes]


def _inspect(path: Path) -> Report:
    from redpoll.pki import inspect

    key = path.with_suffix(".key")
    return inspect(path, key=key if path.stem == _CA and key.exists() else None)


def _print(reports: Sequence[Report], output: Output, *, table: bool) -> None:
    for report in reports:
        output.event("certificate", record(report))
    if output.json or not reports:
        return
    console = Console(highlight=False)
    if table:
        console.print(overview(reports))
    else:
        console.print("\n\n".join(map(details, reports)), markup=False, soft_wrap=True)

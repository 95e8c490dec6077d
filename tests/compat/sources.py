"""Test suites of other libraries: from their source distributions, kept in a folder that git ignores."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

CACHE = Path(__file__).resolve().parent.parent.parent / ".cache"


def fetch_tests(library: str) -> Path:
    """Return a folder with the tests, ``t/``, of the installed version of a library; get them if need be."""
    name = f"{library}-{version(library)}"
    folder = CACHE / f"{name}-tests"
    if folder.exists():
        return folder
    CACHE.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=CACHE) as temporary:
        options = ["--no-deps", "--no-binary", library, "--dest", temporary]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *options, f"{library}=={version(library)}"]
        subprocess.run(command, check=True)
        made = Path(temporary, "made")
        with tarfile.open(Path(temporary, f"{name}.tar.gz")) as archive:
            for member in archive.getmembers():
                member.name = member.name.partition("/")[2]
                if member.name.startswith("t/"):
                    archive.extract(member, made, filter="data")
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            if not folder.exists():
                raise
    return folder

"""kiwiPy's own tests, from its source distribution, on each engine; `nox -s compat` has what they need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

# Its tests of `kiwipy.rmq`: 15 that all communicators have to pass, and 14 more. Those of its communicator inside of one
# process have nothing of redpoll in them.
CASES = 29
# A push tries the hub.
ENGINES = ["hub", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("memory", "rabbitmq"))]
REPOSITORY = Path(__file__).parents[3]


@pytest.mark.interop
@pytest.mark.parametrize("url", ENGINES, indirect=True)
def test_all_cases_hold(url: str, tmp_path: Path) -> None:
    """K-01 to K-20: all tests of kiwiPy 0.5.3 pass, for threads and for coroutines, on each engine."""
    with tarfile.open(os.environ["REDPOLL_KIWIPY_SDIST"]) as archive:
        # Not the kiwiPy beside them: 0.9 is installed.
        archive.extractall(tmp_path, [each for each in archive if "/test/" in each.name], filter="data")
    (suite,) = tmp_path.glob("kiwipy-*/test")
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "test/rmq"),
            *("-p", "tests.compat.kiwipy.suite", "-p", "no:cacheprovider", "--timeout=30"),
        ],
        cwd=suite.parent,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "REDPOLL_COMPAT_URL": url},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    (passed,) = re.findall(r"^(\d+) passed in", run.stdout, re.MULTILINE)
    assert int(passed) == CASES

"""The benchmarks that run other libraries on redpoll."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_benchmarks import ON_REDPOLL, check_row

pytestmark = [pytest.mark.interop, pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.mark.parametrize("name", sorted(ON_REDPOLL))
def test_benchmark_runs_and_reports_every_contender(name: str, tmp_path: Path) -> None:
    """Each completes with redpoll alone and writes a positive figure for each contender and job."""
    check_row(name, tmp_path)

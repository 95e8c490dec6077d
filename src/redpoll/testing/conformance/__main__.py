"""Tries the behaviours of the bus on engines, and prints what was seen as a table in Markdown.

``python -m redpoll.testing.conformance memory:// nats://127.0.0.1``. The exit code is 1 if something does not hold.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from redpoll.testing.conformance.frame import Setting, behaviours, observe, table

__all__ = ["main"]


def main(urls: Sequence[str]) -> int:
    """Print the table for some engines; returns the exit code."""
    if not urls or urls[0].startswith("-"):
        sys.stderr.write("usage: python -m redpoll.testing.conformance URL...\n")
        return 2
    seen = {url: observe(Setting(url)) for url in urls}
    sys.stdout.write(table(seen, behaviours()))
    return int(any("no" in each.values() for each in seen.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs oslo.messaging's own functional tests on redpoll's driver: ``python -m tests.compat.oslo_suite TEST …``.

Two of them are skipped unless the URL begins with ``rabbit://``: such a URL means redpoll's driver here as well. The tests
ask for eventlet, which oslo.messaging gives up: they get threads. A test that is skipped fails the run.
"""

from __future__ import annotations

import os
import sys
import unittest
from typing import Any

import eventlet
import futurist
from oslo_messaging._drivers import impl_rabbit

from redpoll.compat.oslo import RedpollDriver


def driver(conf: Any, url: Any, **options: Any) -> RedpollDriver:
    """Return redpoll's driver of a ``rabbit://`` URL; that of notifications says what engine it is."""
    url.transport = os.environ["NOTIFY_TRANSPORT_URL"].partition(":")[0]
    return RedpollDriver(conf, url, **options)


def main() -> None:
    """Run them; the exit code is 1 if one fails or is skipped."""
    eventlet.monkey_patch = lambda *_, **__: None
    futurist.GreenThreadPoolExecutor = futurist.ThreadPoolExecutor
    impl_rabbit.RabbitDriver = driver
    suite = unittest.defaultTestLoader.loadTestsFromNames(
        [f"oslo_messaging.tests.functional.{name}" for name in sys.argv[1:]]
    )
    result = unittest.TextTestRunner(sys.stdout, verbosity=2).run(suite)
    sys.exit(not result.wasSuccessful() or bool(result.skipped) or not result.testsRun)


if __name__ == "__main__":
    main()

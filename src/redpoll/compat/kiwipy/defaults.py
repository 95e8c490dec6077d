"""The defaults of kiwiPy: names, encoding, times."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

try:
    import yaml
except ModuleNotFoundError as error:
    error.add_note("pip install 'redpoll[kiwipy]'")
    raise

__all__ = [
    "DECODER",
    "ENCODER",
    "MESSAGE_EXCHANGE",
    "QUEUE_EXPIRES",
    "TASK_EXCHANGE",
    "TASK_FETCH_TIMEOUT",
    "TASK_PREFETCH_COUNT",
    "TASK_PREFETCH_SIZE",
    "TASK_QUEUE",
    "TEST_QUEUE_EXPIRES",
    "URL",
]

MESSAGE_EXCHANGE: Final = "kiwipy.messages"
"""The scope of calls and broadcasts."""
TASK_EXCHANGE: Final = "kiwipy.tasks"
"""Without effect: a queue of tasks is found by its name."""
TASK_QUEUE: Final = "kiwipy.tasks"
"""The queue of tasks that name none."""
TASK_PREFETCH_COUNT: Final = 0
"""Maximum tasks that one communicator works on; 0 is no limit."""
TASK_PREFETCH_SIZE: Final = 0
"""Without effect, as on RabbitMQ."""
TASK_FETCH_TIMEOUT: Final = 5.0
"""Seconds for taking a task; an empty queue does not wait."""
QUEUE_EXPIRES: Final = 60_000
"""Without effect: a recipient that nobody serves is unknown at once."""
TEST_QUEUE_EXPIRES: Final = 10_000
"""Milliseconds after which a queue of tasks that nobody uses is deleted, in testing mode."""
URL: Final = "amqp://guest:guest@127.0.0.1/"
"""The URL of communicators that name none."""

# Of libyaml where it is there, which is several times as fast.
_dumper: Any = getattr(yaml, "CDumper", yaml.Dumper)
_loader: Any = getattr(yaml, "CFullLoader", yaml.FullLoader)
ENCODER: Final = partial(yaml.dump, encoding="utf-8", Dumper=_dumper)
"""Encodes as YAML; tuples stay tuples."""
DECODER: Final = partial(yaml.load, Loader=_loader)
"""Decodes YAML."""

"""AiiDA's broker ``redpoll``: process control over a hub, or any other engine.

A profile uses it by ``profile.set_process_controller("redpoll", {"broker_url": "redpoll://127.0.0.1:5683"})``. It needs
aiida-core 2.9.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

from aiida.brokers.broker import Broker, BrokerConfigField
from aiida.manage.configuration import get_config_option
from aiida.orm.utils import serialize

from redpoll.bus.urls import EngineURL
from redpoll.compat.kiwipy import RmqThreadCommunicator, RmqThreadIncomingTask

__all__ = ["RedpollBroker"]

_URL = "redpoll://127.0.0.1:5683"


class _Resources:
    """The communicator of a broker, which ends with it."""

    def __init__(self) -> None:
        self.communicator: RmqThreadCommunicator | None = None
        # Reentrant: the garbage collector may close it anywhere.
        self.lock = threading.RLock()

    def close(self) -> None:
        """Close the communicator, if there is one."""
        with self.lock:
            communicator, self.communicator = self.communicator, None
        if communicator is not None:
            communicator.close()


class RedpollBroker(Broker):  # type: ignore[misc]  # aiida-core is not there where types are checked
    """Processes of one profile on an engine of redpoll. Several profiles, and several machines, share one.

    Args:
        profile: The profile. ``broker_url`` of its process control names the engine; a token may stand in it.
    """

    _config_fields = (
        BrokerConfigField(
            name="broker_url",
            prompt="Broker URL",
            help="URL of the hub: redpoll://HOST:PORT, or of another engine.",
            default=_URL,
            param_type="non_empty_string",
        ),
    )

    def __init__(self, profile: Any) -> None:
        super().__init__(profile)
        self._prefix = f"aiida-{profile.uuid}"
        self._queue = f"{self._prefix}.process.queue"
        self._url: str = profile.process_control_config.get("broker_url", _URL)
        self._resources = _Resources()
        weakref.finalize(self, self._resources.close)

    def __str__(self) -> str:
        # Without a token.
        return f"redpoll @ {EngineURL.parse(self._url)}"

    def get_communicator(self) -> RmqThreadCommunicator:
        """Return the communicator, which is connected when it is first asked for.

        Raises:
            ConfigError: The URL cannot be.
            DialFailed: The engine was not reached.
        """
        resources = self._resources
        with resources.lock:
            if resources.communicator is None:
                resources.communicator = RmqThreadCommunicator(
                    self._url,
                    message_exchange=f"{self._prefix}.messages",
                    task_exchange=f"{self._prefix}.tasks",
                    task_queue=self._queue,
                    task_prefetch_count=get_config_option("daemon.worker_process_slots"),
                    encoder=partial(serialize.serialize, encoding="utf-8"),
                    decoder=serialize.deserialize_unsafe,
                    testing_mode=self._profile.is_test_profile,
                    async_task_timeout=get_config_option("broker.task_timeout"),
                )
            return resources.communicator

    def iterate_tasks(self) -> Iterator[RmqThreadIncomingTask]:
        """Iterate over the tasks that no worker has; those without an outcome go back at the end."""
        yield from self.get_communicator().task_queue(self._queue)

    def check_service_reachable(self) -> bool:
        """Return True if the engine is reached."""
        return bool(self.probe_service_status()["connected"])

    def probe_service_status(self) -> dict[str, Any]:
        """Return whether the engine is reached, with its properties, or the error."""
        present = self._resources.communicator is not None
        try:
            return {"connected": True, **self.get_communicator().server_properties}
        except Exception as error:  # noqa: BLE001  # its text is the status
            return {"connected": False, "error": f"{type(error).__name__}: {error}"}
        finally:
            if not present:
                self.close()

    def close(self) -> None:
        """Disconnect; tasks that this process works on go back."""
        self._resources.close()

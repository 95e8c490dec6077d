"""A user of AiiDA, one step each time it is started: ``python program.py PROFILE STEP ARGUMENT…``; prints JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from aiida import engine, load_profile, orm

import redpoll.blocking


def prepare(folder: str) -> None:
    """Make a computer, which is this machine, and a code on it: bash, which adds two numbers."""
    computer = orm.Computer("here", "localhost", "", "core.local", "core.direct", folder).store()
    computer.set_minimum_job_poll_interval(0.5)
    computer.configure(safe_interval=0)
    Path(folder).mkdir()
    orm.InstalledCode(
        label="add", computer=computer, filepath_executable="/bin/bash", default_calc_job_plugin="core.arithmetic.add"
    ).store()


def submit(count: str, seconds: str) -> list[int]:
    """Submit calculations that take so long; return their numbers."""
    numbers = []
    for number in range(int(count)):
        builder = orm.load_code("add@here").get_builder()
        builder.x, builder.y = orm.Int(number), orm.Int(1)
        builder.metadata.options.update(
            resources={"num_machines": 1, "num_mpiprocs_per_machine": 1}, withmpi=False, sleep=int(seconds)
        )
        numbers.append(engine.submit(builder).pk)
    return numbers


def sums(patience: str, *numbers: str) -> list[int | None]:
    """Wait until calculations have ended; return the sums, and None of one that failed."""
    end = time.monotonic() + float(patience)
    nodes = [orm.load_node(int(number)) for number in numbers]
    while not all(node.is_terminated for node in nodes) and time.monotonic() < end:
        time.sleep(0.2)
    return [node.outputs.sum.value if node.is_finished_ok else None for node in nodes]


def taken(patience: str, count: str) -> int:
    """Wait until workers have so many processes; return how many they have."""
    end = time.monotonic() + float(patience)
    profile = load_profile()
    with redpoll.blocking.connect(profile.process_control_config["broker_url"]) as bus:
        while True:
            found = bus.queues.inspect(f"aiida-{profile.uuid}.process.queue").taken
            if found >= int(count) or time.monotonic() > end:
                return found
            time.sleep(0.1)


def status() -> dict[str, Any]:
    """Return what the broker says of itself."""
    from aiida.manage import get_manager

    broker: Any = get_manager().get_broker()
    return {"text": str(broker), "reached": broker.check_service_reachable(), **broker.probe_service_status()}


def uuid() -> str:
    """Return the identifier of the profile."""
    found: str = load_profile().uuid
    return found


if __name__ == "__main__":
    load_profile(sys.argv[1])
    print(json.dumps(globals()[sys.argv[2]](*sys.argv[3:])))

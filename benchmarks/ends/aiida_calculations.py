"""Calculations through AiiDA's daemon: the server end runs the broker and the daemon, the client end submits and waits."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.control import Control, Fields, arguments, now
from benchmarks.ends.app_tasks import broker
from benchmarks.ends.hub_rounds import stand_by

PROFILE = "calculations"
WORKERS = "2"
#: Seconds for all calculations of a job, and between two looks at them.
PATIENCE = 570.0
PAUSE = 0.2


def verdi(*command: str) -> None:
    """Run AiiDA's command on the profile."""
    subprocess.run([sys.executable, "-m", "aiida", *command], stdout=subprocess.DEVNULL, check=True)


def set_up(folder: Path, backend: str, url: str | None) -> None:
    """Make a profile with a computer, which is this machine, and a code on it: bash, which adds two numbers."""
    person = ("--email", "a@example.org", "--first-name", "A", "--last-name", "B", "--institution", "C")
    verdi("profile", "setup", "core.sqlite_dos", "-n", "--profile-name", PROFILE, "--broker", "none", *person)
    from aiida import load_profile, orm
    from aiida.manage.configuration import get_config

    config = get_config()
    profile = config.get_profile(PROFILE)
    profile.set_process_controller(backend, _settings(backend, url))
    config.update_profile(profile)
    config.store()
    load_profile(PROFILE)
    computer = orm.Computer("here", "localhost", "", "core.local", "core.direct", str(folder / "work")).store()
    computer.set_minimum_job_poll_interval(0.5)
    computer.configure(safe_interval=0)
    orm.InstalledCode(
        label="add", computer=computer, filepath_executable="/bin/bash", default_calc_job_plugin="core.arithmetic.add"
    ).store()


def _settings(backend: str, url: str | None) -> dict[str, Any]:
    if backend == "core.zeromq":
        return {"supervised_by_daemon": True}
    if backend == "redpoll":
        return {"broker_url": url}
    parts = urlsplit(url or "")
    return {
        "broker_protocol": "amqp",
        "broker_username": parts.username,
        "broker_password": parts.password,
        "broker_host": parts.hostname,
        "broker_port": parts.port,
        "broker_virtual_host": "",
    }


def submit(control: Control) -> None:
    """Submit all, then wait until they have ended."""
    from aiida import engine, load_profile, orm

    load_profile(PROFILE)
    control.write(address=None)
    for job in control.jobs():
        started, sums = now(), {}
        for number in range(job["count"]):
            builder = orm.load_code("add@here").get_builder()
            builder.x, builder.y = orm.Int(number), orm.Int(1)
            builder.metadata.options.update(
                resources={"num_machines": 1, "num_mpiprocs_per_machine": 1}, withmpi=False, sleep=0
            )
            sums[engine.submit(builder).pk] = number + 1
        ended = orm.QueryBuilder().append(
            orm.ProcessNode,
            filters={
                "id": {"in": list(sums)},
                "attributes.process_state": {"in": ["finished", "excepted", "killed"]},
            },
        )
        while ended.count() < len(sums) and now() < started + PATIENCE:
            time.sleep(PAUSE)
        finished, nodes = now(), {number: orm.load_node(number) for number in sums}
        good = [
            node for number, node in nodes.items() if node.is_finished_ok and node.outputs.sum.value == sums[number]
        ]
        control.write(started=started, finished=finished, count=len(good))


def kill_daemon() -> None:
    """Kill the daemon with all that it started: they have groups of their own, and would take long to stop."""
    import psutil
    from aiida.engine.daemon.client import get_daemon_client

    with suppress(psutil.NoSuchProcess):
        daemon = psutil.Process(get_daemon_client(PROFILE).get_daemon_pid())
        for each in (daemon, *daemon.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                each.kill()


def serve(control: Control, options: Fields) -> None:
    """Run the broker, if it is not the daemon's, and the daemon, until the input ends."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=options["folder"]))
        os.environ["AIIDA_PATH"] = folder  # where it keeps its settings, read when it is imported
        # The daemon starts its workers by their command.
        os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        url = stack.enter_context(broker(options)) if "runs" in options else None
        set_up(Path(folder), options["backend"], url)
        verdi("-p", PROFILE, "daemon", "start", WORKERS)
        stack.callback(kill_daemon)
        control.write(address=folder)
        stand_by(control)


def main() -> None:
    """Run the end that the driver asked for."""
    role, options = arguments()
    control = Control()
    if role == "server":
        serve(control, options)
    else:
        os.environ["AIIDA_PATH"] = options["address"]
        submit(control)


if __name__ == "__main__":
    main()

"""Times in the notation of cron: minute, hour, day of the month, month, day of the week."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from redpoll.errors import ConfigError

__all__ = ["UTC", "next_time"]

UTC: Final = "UTC"
"""The zone of times that name none."""


def next_time(cron: str, after: float, zone: str = UTC) -> float:
    """Return the first time after another one, in seconds since 1970.

    As in Debian's cron: a time that the clocks skip in spring is the end of the gap, and one that they have twice in autumn
    is the first of both; times with a ``*`` for the hour or the minute come in each of these.

    Args:
        cron: Five fields, as cronsim reads them: ``*``, numbers, names of months and days of the week, ranges ``a-b``,
            steps ``*/n``, ``a-b/n`` and ``a/n``, which is from a to the greatest value, lists of these, ``L`` for the last
            day of a month. Where both days are limited, either is enough.
        after: The other time.
        zone: The time zone of the fields, as "Europe/Berlin".

    Raises:
        ConfigError: It cannot be read, there is no such time, or no such zone here.
    """
    from cronsim import CronSim, CronSimError  # few programs have such times

    if len(str(cron).split()) != 5:
        raise ConfigError("cron", cron, "must have five fields: minute, hour, day, month, day of the week")
    try:
        start = datetime.fromtimestamp(after, ZoneInfo(zone))
    except (KeyError, ValueError, TypeError, OSError) as error:
        hint = "pip install tzdata, where the engine runs, if that system has no time zones"
        raise ConfigError("zone", zone, "is no time zone that is known here", hint) from error
    try:
        return next(CronSim(cron, start)).timestamp()
    except CronSimError as error:
        raise ConfigError("cron", cron, f"cannot be read: {error}") from error
    except StopIteration:
        raise ConfigError("cron", cron, "must have a day and a month that exist") from None

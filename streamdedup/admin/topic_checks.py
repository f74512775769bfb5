"""*Pure.* What `config check` says about topics: retention, sizes, replicas, access."""

from __future__ import annotations

import datetime as dt

from streamdedup.settings.units import format_duration

_TO_READ = frozenset({"Read", "Describe", "DescribeConfigs"})
_TO_WRITE = frozenset({"Write", "Describe", "DescribeConfigs"})


def _duration(ms: int) -> str:
    return format_duration(dt.timedelta(milliseconds=ms))

"""How many bytes a call holds at its highest, of what it allocates itself."""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler prints lines of its own otherwise

from torch.profiler import ProfilerActivity, profile


def peak_bytes(call: Callable[[], object]) -> int:
    """The highest sum of live allocations during the call, from the profiler's list of allocations and releases."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = call()
    live = peak = 0
    for event in seen.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    del kept
    return peak

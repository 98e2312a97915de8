"""Whether the kernels are right on this device: nobody has tried them on all cards, so each user's is asked once.

The first use on a device, in a dtype, holds a few small examples against the reference. The result is remembered in a
file for device, driver and versions, the text of the kernels included. Until they have passed, "auto" does not take the
kernels; where they have not, one warning says so.

    failure(device, dtype)   None if the kernels can be trusted, else what is wrong; checks if nobody has
    known(device, dtype)     what is remembered
"""

from __future__ import annotations

import datetime
import hashlib
import json
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from selattn.errors import CannotWriteError
from selattn.ops.backends.base import Backend
from selattn.ops.backends.triton import support
from selattn.ops.backends.triton.battery import Outcome, Size, run
from selattn.utils import files, folders, records

EXAMPLES = ("decoding", "eviction order", "sharp", "everything")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FOLDER = "triton"  # in the cache folder


class Known(NamedTuple):
    """What is remembered of a device and a dtype."""

    passed: bool
    wrong: str  # the first of what was wrong
    date: str


_in_process: dict[tuple[torch.device, torch.dtype], str | None] = {}


def failure(device: torch.device, dtype: torch.dtype, backend: Backend) -> str | None:
    """Why the kernels cannot be trusted there; None if they can. The first time it runs them, and warns if they fail.

    While a CUDA graph is recorded nothing can be tried: what is not known by then is not trusted in that call.
    """
    place = _place(device), dtype
    if place not in _in_process:
        remembered = known(*place)
        if remembered is not None and remembered.passed:
            _in_process[place] = None
        elif device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return "it has not been checked on this device yet"
        else:
            _in_process[place] = _check(*place, backend)
    return _in_process[place]


def _check(device: torch.device, dtype: torch.dtype, backend: Backend) -> str | None:
    outcomes = (examine(name, device, dtype, backend) for name in EXAMPLES)
    wrong = next((f"{x.name}: {x.wrong[0]}" for x in outcomes if x.wrong), None)
    remember(device, dtype, wrong)
    if wrong is not None:
        warn_once(
            f"selattn's GPU kernels are wrong on {name_of(device)} in {dtype}, so that 'auto' takes the slower "
            f"'chunked': {wrong}; please run `selattn bench --check` and send us its record"
        )
    return wrong


@cache
def warn_once(message: str) -> None:
    """One line, the first time that it is said in a process."""
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def examine(name: str, device: torch.device, dtype: torch.dtype, backend: Backend) -> Outcome:
    """One example. What the caller has under way (modes, autocast, no gradients) is set aside."""
    small = device.type == "cpu"  # in Triton's interpreter
    size = Size(37 if small else 200, 16 if small else 64, dtype, device)
    with _disable_current_modes(), torch.inference_mode(False), torch.autocast(device.type, enabled=False):
        return run(name, size, backend)


def known(device: torch.device, dtype: torch.dtype) -> Known | None:
    """What is remembered; None if nothing is."""
    try:
        found = json.loads(_file(device, dtype).read_text())
        return Known(bool(found["passed"]), str(found["wrong"]), str(found["date"]))
    except (OSError, ValueError, KeyError, TypeError):  # not there, or not whole: it is made anew
        return None


def remember(device: torch.device, dtype: torch.dtype, wrong: str | None) -> None:
    """For later processes; where nothing can be written, they check for themselves."""
    content = {
        "passed": wrong is None,
        "wrong": wrong or "",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **identity(device, dtype),
    }
    with suppress(CannotWriteError):
        files.write_json(_file(device, dtype), content)


def forget() -> None:
    """What this process knows; files stay."""
    _in_process.clear()


def states() -> dict[str, str]:
    """For each dtype what is known of this machine's device, in words."""
    if support.unavailable() is not None or not torch.cuda.is_available():
        return {}
    device, found = _place(torch.device("cuda")), {}
    for dtype in DTYPES:
        state = known(device, dtype)
        said = "not checked yet: the first use does it"
        if state is not None:
            said = f"passed on {state.date[:10]}" if state.passed else f"FAILED on {state.date[:10]}: {state.wrong}"
        found[f"{name_of(device)}, {str(dtype).removeprefix('torch.')}"] = said
    return found


def identity(device: torch.device, dtype: torch.dtype) -> dict[str, str]:
    """All that a result depends on."""
    return {
        "device": name_of(device),
        "driver": _driver() if device.type == "cuda" else "interpreter",
        **{name: records.version_of(name) for name in ("torch", "triton", "selattn")},
        "kernels": _kernels(),
        "dtype": str(dtype),
    }


def name_of(device: torch.device) -> str:
    """Of the card, with its compute capability."""
    if device.type != "cuda":
        return "Triton's interpreter"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} (sm_{major}{minor})"


def _place(device: torch.device) -> torch.device:
    """The device with its number, which `cuda` alone does not have."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _file(device: torch.device, dtype: torch.dtype) -> Path:
    key = hashlib.sha256(json.dumps(identity(device, dtype)).encode()).hexdigest()[:16]
    return folders.cache_folder() / FOLDER / f"{key}.json"


@cache
def _driver() -> str:
    """The version of the driver, as far as it tells."""
    with suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    return f"unknown, CUDA {torch.version.cuda}"


@cache
def _kernels() -> str:
    """The text of this folder: with a checkout, versions do not tell what the kernels are."""
    texts = (path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py")))
    return hashlib.sha256(b"".join(texts)).hexdigest()[:16]

"""Whether the kernels are right on this device: nobody has tried them on all cards, so each user's is asked once.

The first use on a device, in a dtype, with heads of at most 64 or of more features (each has its own configuration),
holds a few small examples against the reference. The result is remembered in a file for device, driver and versions,
the text of the kernels included. Until they have passed, "auto" does not take the kernels; where they have not, one
warning says so.

    failure(place, backend)   None if the kernels can be trusted, else what is wrong; checks if nobody has
    known(place)              what is remembered
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
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
from selattn.ops.backends.triton import configs, support
from selattn.ops.backends.triton.battery import Outcome, Size, run
from selattn.utils import files, records
from selattn.utils import files as folders

EXAMPLES = ("decoding", "eviction order", "sharp", "everything", "bias")  # of a bias, tiles have another size
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
FOLDER = "triton"  # in the cache folder


class Known(NamedTuple):
    """What is remembered of a device and a dtype."""

    passed: bool
    wrong: str  # the first of what was wrong
    date: str


class Place(NamedTuple):
    """Where kernels run, and which: a result is of one place."""

    device: torch.device
    dtype: torch.dtype
    size: int  # of the heads, one of `configs.SIZES`

    def __str__(self) -> str:
        return f"{name_of(self.device)}, {str(self.dtype).removeprefix('torch.')}, heads of up to {self.size}"


_in_process: dict[Place, str | None] = {}


def place_of(device: torch.device, dtype: torch.dtype, features: int) -> Place:
    """The place at which heads of so many features are computed. `cuda` alone gets the number of its device."""
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return Place(device, dtype, configs.size_class(features))


def failure(place: Place, backend: Backend) -> str | None:
    """Why the kernels cannot be trusted there; None if they can. The first time it runs them, and warns if they fail.

    While a CUDA graph is recorded nothing can be tried: what is not known by then is not trusted in that call.
    """
    if place not in _in_process:
        remembered = known(place)
        if remembered is not None and remembered.passed:
            _in_process[place] = None
        elif place.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return "it has not been checked on this device yet"
        else:
            _in_process[place] = _check(place, backend)
    return _in_process[place]


def _check(place: Place, backend: Backend) -> str | None:
    outcomes = (examine(name, place, backend) for name in EXAMPLES)
    wrong = next((f"{x.name}: {x.wrong[0]}" for x in outcomes if x.wrong), None)
    remember(place, wrong)
    if wrong is not None:
        warn_once(
            f"selattn's GPU kernels are wrong on {place}, so that 'auto' takes the slower "
            f"'chunked': {wrong}; please run `selattn bench --check` and send us its record"
        )
    return wrong


@cache
def warn_once(message: str) -> None:
    """One line, the first time that it is said in a process."""
    warnings.warn(message, RuntimeWarning, stacklevel=2)


def examine(name: str, place: Place, backend: Backend) -> Outcome:
    """One example. What the caller has under way (modes, autocast, no gradients) is set aside."""
    small = place.device.type == "cpu"  # in Triton's interpreter
    size = Size(37 if small else 200, place.size // 4 if small else place.size, place.dtype, place.device)
    with _disable_current_modes(), torch.inference_mode(False), torch.autocast(place.device.type, enabled=False):
        return run(name, size, backend)


def known(place: Place) -> Known | None:
    """What is remembered; None if nothing is."""
    try:
        found = json.loads(_file(place).read_text())
        return Known(bool(found["passed"]), str(found["wrong"]), str(found["date"]))
    except (OSError, ValueError, KeyError, TypeError):  # not there, or not whole: it is made anew
        return None


def remember(place: Place, wrong: str | None) -> None:
    """For later processes; where nothing can be written, they check for themselves."""
    content = {
        "passed": wrong is None,
        "wrong": wrong or "",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **_identity(place),
    }
    with suppress(CannotWriteError):
        files.write_json(_file(place), content)


def forget() -> None:
    """What this process knows; files stay."""
    _in_process.clear()


def states() -> dict[str, str]:
    """For each dtype and size what is known of this machine's device, in words."""
    if support.unavailable() is not None or not torch.cuda.is_available():
        return {}
    found = {}
    for dtype, size in itertools.product(DTYPES, configs.SIZES):
        place = place_of(torch.device("cuda"), dtype, size)
        state = known(place)
        said = "not checked yet: the first use does it"
        if state is not None:
            said = f"passed on {state.date[:10]}" if state.passed else f"FAILED on {state.date[:10]}: {state.wrong}"
        found[str(place)] = said
    return found


def identity(device: torch.device) -> dict[str, str]:
    """Device, driver, versions and kernels: what results on a device depend on."""
    return {
        "device": name_of(device),
        "driver": _driver() if device.type == "cuda" else "interpreter",
        **{name: records.version_of(name) for name in ("torch", "triton", "selattn")},
        "kernels": kernels(),
    }


def _identity(place: Place) -> dict[str, str]:
    return {**identity(place.device), "dtype": str(place.dtype), "heads": str(place.size)}


def name_of(device: torch.device) -> str:
    """Of the card, with its compute capability."""
    if device.type != "cuda":
        return "Triton's interpreter"
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)} (sm_{major}{minor})"


def _file(place: Place) -> Path:
    key = hashlib.sha256(json.dumps(_identity(place)).encode()).hexdigest()[:16]
    return folders.cache_folder() / FOLDER / f"{key}.json"


@cache
def _driver() -> str:
    """The version of the driver, as far as it tells."""
    with suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    return f"unknown, CUDA {torch.version.cuda}"


@cache
def kernels() -> str:
    """A hash of the text of this folder: with a checkout, versions do not tell what the kernels are."""
    texts = (path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py")))
    return hashlib.sha256(b"".join(texts)).hexdigest()[:16]

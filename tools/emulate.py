"""The attention kernel's ARM code, run by an emulator: the fuzz of the operator against the reference.

    apt-get install g++-aarch64-linux-gnu qemu-user
    python -m tools.emulate --count 300

Cross-compiles the library (16-byte vectors: NEON) with a small program around it, and hands it one call at a time.
"""

import argparse
import ctypes
import itertools
import struct
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from unittest import mock

from selattn.utils import native
from tests.ops import fuzz

ROOT = Path(__file__).parents[1]
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")


def build(folder):
    """The program, from what pyproject.toml says of the real library."""
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"][0]
    program = Path(folder) / "emulated"
    source = Path(__file__).with_name("emulated.cpp")
    command = [COMPILER, *said["extra-compile-args"], f"-I{ROOT / 'csrc'}", str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def memory_of(x):
    """The bytes that a tensor's elements lie in, whatever its strides."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return (ctypes.c_char * ((last + 1) * x.element_size())).from_address(x.data_ptr())


class Emulated:
    """Stands in for the loaded library: the program computes attention, the library everything else."""

    def __init__(self, program):
        self.program, self.library = program, native.library()
        self.calls, self.given = 0, {}

    def __getattr__(self, name):
        return getattr(self.library, name)

    def remember(self, packed_by):
        """`Struct.pack` that also keeps what it was given: the bytes alone do not say how much a pointer points to."""

        def pack(layout, **values):
            packed = packed_by(layout, **values)
            self.given = {packed: (layout, values)}
            return packed

        return pack

    def selattn_forward(self, packed):
        return self.call(0, packed)

    def selattn_backward(self, packed):
        return self.call(1, packed)

    def call(self, function, packed):
        """Write the call into a file, run it, and copy what comes back to where the real library would have written."""
        layout, values = self.given[packed]
        pointers = {
            at: memory_of(values[name])
            for name, at in offsets(layout).items()
            if layout.fields[name] == "pointer" and values[name] is not None and values[name].numel()
        }
        parts = [struct.pack("2q", function, len(packed)), packed, struct.pack("q", len(pointers))]
        parts += [struct.pack("2q", offset, len(data)) + bytes(data) for offset, data in pointers.items()]
        call = self.program.with_name("call")
        call.write_bytes(b"".join(parts))
        done = subprocess.run([*EMULATOR, str(self.program), str(call)], check=True, capture_output=True).stdout
        for data in pointers.values():
            data[:], done = done[: len(data)], done[len(data) :]
        self.calls += 1
        return 0


def offsets(layout):
    """By its name, where a field of a struct begins. All are of 8 bytes, or of three times 8."""
    sizes = [24 if kind == "strides" else 8 for kind in layout.fields.values()]
    return dict(zip(layout.fields, itertools.accumulate(sizes, initial=0), strict=False))


def main():
    """Build the program and compare it with the reference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="examples of the fuzz")
    parser.add_argument("--start", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        emulated = Emulated(build(folder))
        pack = emulated.remember(native.Struct.pack)
        with mock.patch.object(native, "_LIBRARY", emulated), mock.patch.object(native.Struct, "pack", pack):
            failed = fuzz.run_all(arguments.start, arguments.count)
        print(f"{arguments.count} examples, {emulated.calls} calls on {EMULATOR[0]}, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()

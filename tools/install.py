"""Install selattn as users do, in fresh environments outside the repository, and try it there: `make test-install`.

    python -m tools.install                           # every way, with and without a compiler; all is downloaded
    python -m tools.install wheel --compiler without  # one of them
    python -m tools.install --share SITE-PACKAGES     # torch and the like come from that folder: quicker

The ways are `wheel` (pip wheel of the source), `sdist` (an sdist, and a wheel from it) and `editable`. In each
environment `selattn info`, an answer and a pruned generation with models of the zoo must work without any extra; an
installed wheel must say where to get the zoo. `info` must say whether the compiled library is there and, if not, why.
"Without a compiler" means that PATH has none.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "csrc", "docs", "examples", "lab", "results", "selattn", "tests", "tools", "zoo")
FILES = (
    "*.md",
    "*.toml",
    "*.cff",
    "*.in",
    "*.py",
    "*.txt",
    "LICENSE",
    "Makefile",
    ".clang-format",
)  # at the root
BUILT = ("__pycache__", "*.so", "_native_missing.txt", "*.part", "*.parts.jsonl", "*.egg-info")
NO_ZOO = "selattn: error: selattn is installed without the zoo: take the folder zoo/ from"
WAYS = ("wheel", "sdist", "editable")
COMPILERS = ("with", "without")
PLACES = """
import selattn
from selattn.models.zoo import zoo_folder, zoo_models
print(selattn.__path__[0], zoo_folder(), " ".join(zoo_models()), sep="\\n")
"""
SIZES = """
import torch
from selattn import SelectiveForCausalLM
from selattn.models.loading import find_folder
model = SelectiveForCausalLM.from_pretrained(find_folder("zoo:memory")).eval()
cache = model.model.new_cache(16)
model.generate(torch.arange(3, 103)[None], past_key_values=cache, cache_budgets=16, max_new_tokens=8, do_sample=False)
print(cache.nbytes(), cache.full_nbytes())
"""  # of a pruned cache, and of one that keeps everything


class Failed(Exception):
    """An installation that does not end as it should; the message is for people."""


def copy_source(to):
    """The project without the files of builds and runs, none of which may be needed or changed."""
    to.mkdir(parents=True)
    for pattern in FILES:
        for path in ROOT.glob(pattern):
            shutil.copy(path, to)
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, to / folder, ignore=shutil.ignore_patterns(*BUILT))
    return to


class Environment:
    """A new virtual environment, and commands in it that see nothing of the repository or of the user's settings."""

    def __init__(self, folder, share, compiler):
        self.folder, self.share = folder, share
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        self.bin = folder / "bin"
        self.site = next((folder / "lib").glob("python*/site-packages"))
        if share:  # a path in a .pth file: the folder's own .pth files, such as an editable selattn's, are not read
            (self.site / "shared.pth").write_text(f"{share}\n")
        path = str(self.bin) if compiler == "without" else f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        hidden = ("PYTHONPATH", "PYTHONHOME", "CC", "CXX", "SELATTN_ZOO", "SELATTN_TARGET", "VIRTUAL_ENV")
        self.variables = {name: value for name, value in os.environ.items() if name not in hidden}
        self.variables |= {"PATH": path, "PYTHONNOUSERSITE": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "400"}

    def run(self, *command):
        """Standard output and standard error of a program of the environment."""
        command = [str(self.bin / command[0]), *map(str, command[1:])]
        done = subprocess.run(
            command, cwd=self.folder, env=self.variables, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            raise Failed(
                f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )
        return done.stdout, done.stderr

    def install(self, *what):
        self.run(
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *(["--no-deps"] if self.share else []),
            *("-c", ROOT / "constraints.txt"),
            *what,
        )


def install(way, environment, folder):
    """Install from a copy of the source; the folder where the package must be now, and its zoo, if any."""
    source = copy_source(folder / "source")
    if way == "editable":
        environment.install("--editable", source)
        return source / "selattn", source / "zoo"
    if way == "sdist":
        environment.run("pip", "install", "--quiet", "build")
        environment.run("python", "-m", "build", "--sdist", "--outdir", folder, source)
        shutil.rmtree(source)
        (source,) = folder.glob("selattn-*.tar.gz")
        print(f"    {source.name}: {source.stat().st_size / 1e6:.1f} MB")
    environment.run("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source)
    (wheel,) = folder.glob("selattn-*.whl")
    print(f"    {wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
    shutil.rmtree(folder / "source", ignore_errors=True)
    environment.install(wheel)
    return environment.site / "selattn", None


def check(environment, compiler, package, zoo):
    """Try it; Failed if something is not as it should be."""
    found = environment.run("python", "-c", PLACES)[0].splitlines()
    models = " ".join(sorted(path.name for path in (ROOT / "zoo").iterdir())) if zoo else ""
    expect(
        found == [str(package), str(zoo), models],
        f"package, zoo and models are {found}, not {package}, {zoo}, {models}",
    )
    if zoo is None:
        try:
            environment.run("selattn", "generate", "zoo:memory", "--prompt", "The")
        except Failed as error:
            expect(NO_ZOO in str(error) and "ended with 2" in str(error), f"without a zoo: {error}")
        else:
            raise Failed("a model of the zoo was found where there is none")
        environment.variables["SELATTN_ZOO"] = str(ROOT / "zoo")

    info = json.loads(environment.run("selattn", "info", "--json")[0])
    missing = info["compiled library"]["attention, decoding"]
    if compiler == "with":
        expect(missing is None, f"there is a compiler, and info says: {missing}")
        expect(info["backends"]["cpu"] is None, f"the cpu backend: {info['backends']['cpu']}")
    else:
        told = re.fullmatch(r"it was not built: \S+ was not found; install a C\+\+ compiler .*", missing or "")
        expect(told, f"there is no compiler, and info says: {missing}")
        expect(missing in environment.run("selattn", "info")[0], "the tables of info do not say why")
    task = ["zoo:variable-assignment-selective", "--prompt", "Z= 5 Z= 7 Z=", "--max-new-tokens", "1"]
    answer = environment.run("selattn", "generate", *task)[0].strip()
    expect(answer.endswith("Z= 7"), f"the answer is {answer!r}")

    prompt = "The history of the city begins with " * 8
    command = ["generate", "zoo:memory", "--prompt", prompt, "--budgets", "16", "--max-new-tokens", "24"]
    text = environment.run("selattn", *command)[0].strip()
    expect(text.startswith(prompt.strip()) and len(text) > len(prompt) + 10, f"the text is {text!r}")
    held, full = map(int, environment.run("python", "-c", SIZES)[0].split())
    expect(held < full, f"the pruned cache holds {held} bytes, a full one {full}")
    print(f"    compiled library: {missing or 'available'}")
    print(f"    generated with a cache of {held:,} bytes instead of {full:,}")


def expect(truth, message):
    """Fail unless it is true."""
    if not truth:
        raise Failed(message)


def main():
    """Try each way of installing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", metavar="WAY", help=f"of {', '.join(WAYS)} (default: all)")
    parser.add_argument("--compiler", choices=COMPILERS, help="only with, or only without (default: both)")
    parser.add_argument("--share", type=Path, metavar="FOLDER", help="a site-packages folder that has the dependencies")
    parser.add_argument("--folder", type=Path, help="where the environments are made (default: a temporary folder)")
    args = parser.parse_args()
    if unknown := sorted(set(args.ways) - set(WAYS)):
        parser.error(f"there is no way {unknown[0]!r}: choose of {', '.join(WAYS)}")
    if args.share and not (args.share / "torch").is_dir():
        parser.error(f"{args.share} has no torch: --share takes a site-packages folder with the dependencies")
    failed = 0
    for way in args.ways or WAYS:
        for compiler in [args.compiler] if args.compiler else COMPILERS:
            began = time.monotonic()
            print(f"{way}, {compiler} a compiler", flush=True)
            with tempfile.TemporaryDirectory(prefix="selattn-install-", dir=args.folder) as name:
                folder = Path(name).resolve()
                try:
                    environment = Environment(folder / "env", args.share and args.share.resolve(), compiler)
                    check(environment, compiler, *install(way, environment, folder / "built"))
                except Failed as error:
                    failed += 1
                    print(f"    FAILED: {error}")
            print(f"    {time.monotonic() - began:.0f} s", flush=True)
    print(f"{failed} failed" if failed else "all of it works")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

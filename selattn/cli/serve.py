"""`selattn serve`: serve a model on vLLM, each request at a constant cost, however long its text grows.

Options that are not ours go to vLLM's server, which speaks OpenAI's protocol.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any

from selattn.cli import _options
from selattn.errors import SelattnError

if TYPE_CHECKING:
    from selattn.vllm.serving import Serving

# Written by this command, or read by it too.
OURS = {
    "--model": "MODEL is the first argument",
    "--hf-overrides": "--budgets and --policy are written there",
    "--tensor-parallel-size": "a head selects for all others: use --data-parallel-size",
    "-tp": "a head selects for all others: use --data-parallel-size",
    "--speculative-config": "drafts that are rejected have already selected and evicted",
}


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add `selattn serve` and its options to the command line."""
    parser = subparsers.add_parser("serve", help="serve a model on vLLM, at a constant cost", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="a model's folder, a run's folder, or zoo:NAME")
    _add_own(parser)
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="...", help="options of vLLM's server")


def _add_own(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--budgets",
        metavar="BUDGETS",
        help="how many tokens each layer may keep: 64, or 8,48,8, a budgets file, or the folder of a search",
    )
    parser.add_argument("--policy", help="which token is evicted when a layer is full (default: the model's)")
    parser.add_argument("--dtype", default="auto", help="of weights and states (default: as the config has it)")
    parser.add_argument("--max-model-len", type=_options.whole(2), metavar="N", help="tokens of the longest text")
    parser.add_argument("--print", action="store_true", help="say what it costs and how vLLM is called, and end")


def run(args: argparse.Namespace) -> int:
    """Say what a request costs, and become vLLM's server."""
    own = _options.Parser(prog="selattn serve", add_help=False, allow_abbrev=False)
    _add_own(own)
    # What stands behind MODEL is ours or vLLM's, in any order.
    _, rest = own.parse_known_args(args.options, args)
    for option in rest:
        name = option.partition("=")[0]
        if name in OURS:
            raise SelattnError(f"{name} cannot be given: {OURS[name]}")
    from selattn.evaluation.subjects import read_budgets
    from selattn.vllm.serving import check_installed, serving

    budgets = None if args.budgets is None else read_budgets(args.budgets)
    found = serving(args.model, budgets, args.policy, args.dtype, args.max_model_len)
    command = found.command(rest)
    print(cost(found), file=sys.stderr)
    if args.print:
        print(shlex.join(command))
        return 0
    check_installed()
    sys.stderr.flush()
    os.execv(command[0], command)


def cost(found: Serving) -> str:
    """What a request costs beside a whole cache, and how many fit."""
    kept = sum(plan.budget for plan in found.plans) / len(found.plans)
    space = 2**30
    return (
        f"a request costs {found.state:,} bytes, however long its text: {kept:,.0f} tokens in a layer; a cache that "
        f"keeps all {found.longest:,} tokens would take {found.whole:,}, {found.whole / found.state:.1f} times as "
        f"much\n1 GiB holds {found.fit(space):,} requests at once, instead of {space // found.whole:,}"
    )

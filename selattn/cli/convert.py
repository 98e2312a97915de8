"""`selattn convert`: a checkpoint of another program as a model folder that every command takes.

So far these are checkpoints of llama2.c: a folder with one model `.bin` and its tokenizer `tok*.bin`.
"""

import argparse
from pathlib import Path
from typing import Any

from selattn.cli import _options
from selattn.errors import SelattnError


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add `selattn convert` and its options to the command line."""
    parser = subparsers.add_parser("convert", help="take over a llama2.c checkpoint", description=__doc__)
    parser.add_argument("source", type=_options.path, metavar="FOLDER", help="with the checkpoint and its tok*.bin")
    parser.add_argument("out", type=_options.path, metavar="OUT", help="the model folder to make")
    parser.add_argument(
        "--attention", default="standard", help="kind of attention (default: standard, what was trained)"
    )


def run(args: argparse.Namespace) -> int:
    """Write the model folder and print where it is; the exit code."""
    from selattn.utils.records import check_new_folder

    if not args.source.is_dir():
        raise SelattnError(f"there is no folder {args.source}: give the one with the checkpoint")

    from transformers.utils import logging

    from selattn.models import from_llama2c
    from selattn.models.llama2c import llama2c_files
    from selattn.models.llama2c_tokenizer import sentencepiece_from_llama2c
    from selattn.models.sentencepiece import from_sentencepiece
    from selattn.models.tokenizer import Tokenizer
    from selattn.utils.folders import folders_for, make_folder

    checkpoint, pieces = llama2c_files(args.source)
    check_new_folder(args.out)
    logging.disable_progress_bar()
    tokenizer = Tokenizer(from_sentencepiece(sentencepiece_from_llama2c(pieces), str(pieces)))

    def fill(part: Path) -> None:
        model = from_llama2c(checkpoint, args.attention, pad_token_id=tokenizer.pad_id)
        if model.config.vocab_size != tokenizer.vocab_size:
            raise SelattnError(
                f"{checkpoint.name} has {model.config.vocab_size} tokens and {pieces.name} {tokenizer.vocab_size}: "
                "they do not belong together"
            )
        tokenizer.save_pretrained(part)
        model.save_pretrained(part)

    with folders_for(args.out.parent):
        make_folder(args.out, fill)
    print(f"{checkpoint} is now the model {args.out}")
    return 0

"""`selattn convert`: a checkpoint of another program as a model folder that every command takes.

So far these are checkpoints of llama2.c: a folder with one model `.bin` and its tokenizer `tok*.bin`.
"""

import argparse
from pathlib import Path
from typing import Any

from selattn.cli import _options
from selattn.errors import SelattnError


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = subparsers.add_parser("convert", help="take over a llama2.c checkpoint", description=__doc__)
    parser.add_argument("source", type=_options.path, metavar="FOLDER", help="with the checkpoint and its tok*.bin")
    parser.add_argument("out", type=_options.path, metavar="OUT", help="the model folder to make")
    parser.add_argument(
        "--attention", default="standard", help="kind of attention (default: standard, what was trained)"
    )


def run(args: argparse.Namespace) -> int:
    """Convert."""
    from selattn.utils.records import check_new_folder

    checkpoint, pieces = find_files(args.source)
    check_new_folder(args.out)

    from transformers.utils import logging

    from selattn.models import from_llama2c
    from selattn.models.llama2c_tokenizer import sentencepiece_from_llama2c
    from selattn.models.sentencepiece import from_sentencepiece
    from selattn.models.tokenizer import Tokenizer
    from selattn.utils.folders import folders_for, make_folder

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


def find_files(folder: Path) -> tuple[Path, Path]:
    """The checkpoint and the tokenizer."""
    if not folder.is_dir():
        raise SelattnError(f"there is no folder {folder}: give the one with the checkpoint")
    files = sorted(folder.glob("*.bin"))
    tokens = [file for file in files if file.name.startswith("tok")]
    models = [file for file in files if file not in tokens]
    if len(tokens) != 1 or len(models) != 1:
        raise SelattnError(
            f"{folder} has {len(models)} model .bin and {len(tokens)} tok*.bin: a llama2.c checkpoint is one of each"
        )
    return models[0], tokens[0]

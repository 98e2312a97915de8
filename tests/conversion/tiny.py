"""A conversion that takes a second or two: a tiny stock Llama with random weights, and a text of its words."""

import functools

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from selattn.cli.settings import parsed
from selattn.conversion import conversion_run, convert
from selattn.data import Tokenizer
from selattn.data.tokenizer import from_sentencepiece
from selattn.training.config import TextData
from tests.evaluation.folders import pieces, text_file

CONTEXT = 24
SHORT = (
    *("schedule.steps=8", "batch.size=4", "batch.micro=2", "evaluation.rows=6", "evaluation.every=4"),
    *("evaluation.batch=3", "checkpoints.every=3", "log_every=2", "conversion.freeze_first=2"),
)


@functools.cache
def tokenizer(size=300):
    return Tokenizer(from_sentencepiece(pieces(size), "the pieces"))


def llama_folder(path, seed=0, size=300, **changes):
    """A stock Llama with its tokenizer."""
    torch.manual_seed(seed)
    tokens = tokenizer(size)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(
        vocab_size=tokens.vocab_size,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        pad_token_id=tokens.pad_id,
        bos_token_id=tokens.bos_id,
        eos_token_id=tokens.eos_id,
        **{**sizes, **changes},
    )
    LlamaForCausalLM(config).save_pretrained(path)
    tokens.save_pretrained(path)
    return path


def text_of(folder, **how):
    """What it learns from, half of it held out."""
    source = folder / "text.txt"
    if not source.exists():
        text_file(source, documents=40, words=30)
    return TextData(source=str(source), validation=0.5, **{"context": CONTEXT, **how})


def settings_of(*texts):
    """As the command line has them."""
    return parsed(conversion_run("model", "text", CONTEXT), (*SHORT, *texts))


def go(folder, out, *settings, **how):
    """Convert `folder/llama` into `folder/out`."""
    return convert(folder / "llama", text_of(folder), folder / out, settings=settings_of(*settings), **how)

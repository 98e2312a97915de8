"""Model folders with a tokenizer, and a text for them, made once."""

import functools

import torch

from selattn.data import Tokenizer
from selattn.data.tokenizer import from_sentencepiece
from selattn.data.vocabulary import train_vocabulary
from tests.models.tiny import tiny

SENTENCE = "the cat sat on a mat and then saw one dog run far from home while rain fell over old stone walls"
WORDS = SENTENCE.split(" ")


def text(documents=40, words=60, seed=0):
    """Documents of random words, separated by blank lines."""
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(WORDS), (documents, words), generator=draw).tolist()
    lines = (" ".join(WORDS[i] for i in line) for line in chosen)
    return "\n\n".join(lines) + "\n"


@functools.cache
def pieces(size=300):
    return train_vocabulary(text(400).split("\n\n"), size)


def model_folder(path, size=300, **changes):
    """A tiny model with random weights and a tokenizer of `size` tokens."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(from_sentencepiece(pieces(size), "the pieces"))
    ids = {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    model = tiny(torch.float32, vocab_size=tokenizer.vocab_size, **ids, **{"max_position_embeddings": 32, **changes})
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def text_file(path, **how):
    path.write_text(text(**how))
    return path

"""A vocabulary that is made once: as SentencePiece splits a text with it, and as a tokenizer of transformers."""

import functools

import sentencepiece

from selattn.data.vocabulary import train_vocabulary


@functools.cache
def topics():
    from pydoc_data.topics import topics

    return [text for _, text in sorted(topics.items())][:20]


@functools.cache
def pieces(size=500):
    """The file that SentencePiece made."""
    return train_vocabulary(topics(), size)


@functools.cache
def processor():
    """SentencePiece itself."""
    return sentencepiece.SentencePieceProcessor(model_proto=pieces())


def train(path, **settings):
    """A model file that is not made as ours are."""
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter("".join(topics()).split("\n")), model_writer=file, minloglevel=2, **settings
        )
    return path

"""Vocabularies are made by SentencePiece: deterministic, stopped at once, and clear about what cannot be."""

import io
import os
import random
import signal
import string
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sentencepiece

from selattn.data import vocabulary
from selattn.data.vocabulary import train_vocabulary
from selattn.errors import SelattnError


def test_the_pieces_are_those_of_a_training_in_this_process(topics):
    """Where it is trained must not matter: models that exist depend on the ids."""
    model = io.BytesIO()
    lines = [line for text in topics[:4] for line in text.split("\n") if line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=350, **vocabulary._SETTINGS
    )
    assert train_vocabulary(topics[:4], 350) == model.getvalue()


# A shell lets what it runs in the background ignore Ctrl-C, and that is inherited.
CHILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from selattn.data import tokenizer_for
print("begun", flush=True)
tokenizer_for(sys.argv[1], 4000)
"""


def test_ctrl_c_is_heard_at_once_and_leaves_nothing(tmp_path):
    """In the middle of SentencePiece, with a text on which it would work for a long time."""
    draw = random.Random(0)
    words = ["".join(draw.choices(string.ascii_lowercase, k=draw.randint(3, 12))) for _ in range(60_000)]
    (tmp_path / "text.txt").write_text("\n\n".join(" ".join(draw.choices(words, k=200)) for _ in range(3000)))
    environment = {**os.environ, "SELATTN_CACHE": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, tmp_path / "text.txt"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "begun\n"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not (child := children.read_text().split()):
        time.sleep(0.01)
    while float(Path(f"/proc/{child[0]}/stat").read_text().split()[13]) < 50:  # hundredths of a second of work
        time.sleep(0.01)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert time.monotonic() - begun < 25  # it would have taken longer, and on a busy machine so does this
    assert error.strip().endswith("KeyboardInterrupt")
    assert not Path(f"/proc/{child[0]}").exists()
    assert [path.name for path in (tmp_path / "cache").rglob("*")] == ["tokenizers"]


def test_a_trainer_that_dies_is_one_line(monkeypatch, tmp_path):
    (tmp_path / "program.py").write_text("import sys\nsys.stderr.write('a\\nno memory\\n')\nsys.exit(9)\n")
    monkeypatch.setattr(vocabulary.pieces, "__file__", str(tmp_path / "program.py"))
    with pytest.raises(SelattnError, match="SentencePiece ended with code 9 while it trained: no memory"):
        train_vocabulary(["some text"], 300)


def test_training_stops_after_enough_characters(topics):
    def endless():
        yield from topics[:2]
        raise AssertionError("read further than asked")

    train_vocabulary(endless(), 350, characters=len(topics[0]) + 1)


def test_long_lines_are_not_left_out(topics):
    """SentencePiece itself skips them, and would find no text here."""
    assert train_vocabulary(["".join(topics).replace("\n", " ")], 400)


@pytest.mark.parametrize(
    ("texts", "size", "message"),
    [
        (["hello world"], 8000, r"the text is too small for 8000 tokens: at most \d+"),
        (["".join(map(chr, range(0x4E00, 0x5200)))], 400, r"400 tokens are too few for the characters of the text"),
        (["hello world"], 100, "a vocabulary needs more than 260 tokens"),
        ([], 300, "there is no text to train a tokenizer on"),
    ],
)
def test_what_cannot_be_trained(texts, size, message):
    with pytest.raises(SelattnError, match=message):
        train_vocabulary(texts, size)

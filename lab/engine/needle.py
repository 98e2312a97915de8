"""A rare name that has to be copied from far back: does what is kept still hold it?

A row is a held-out document into which a sentence with a made-up name is put, `distance` tokens before the row's end,
where the first half of the name stands once more. The model is to go on with the second half. Beside it stands a
control, the same row with another name in the sentence: what is gained over it was read from the sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from selattn.cache import Budgets, import_policy
from selattn.data import Tokenizer
from selattn.data.draws import Draw
from selattn.errors import SelattnError
from selattn.models.seam import LanguageModel

_FIRST = (
    "Bel",
    "Dor",
    "Fen",
    "Gar",
    "Hal",
    "Jor",
    "Kel",
    "Lor",
    "Mar",
    "Nel",
    "Quin",
    "Ros",
    "Tam",
    "Ul",
    "Ves",
    "Zan",
)
_SECOND = (
    "adic",
    "bert",
    "dane",
    "eron",
    "fred",
    "gast",
    "imir",
    "land",
    "mond",
    "neth",
    "oric",
    "stan",
    "tova",
    "wick",
)
SENTENCE, CUE = "was a painter .", "The painter was"  # after the name, and before it is to be said once more
_BATCH = 16


@dataclass(frozen=True)
class Needles:
    """Rows with a name in them, and without.

    Attributes:
        ids: [R, N] with the name.
        control: [R, N] with another name in its place.
        answer: [R, N] the tokens of the second half of the name, where they stand, and -100 elsewhere.
    """

    ids: Tensor
    control: Tensor
    answer: Tensor


@dataclass(frozen=True)
class NeedleScore:
    """How well the names were copied.

    Attributes:
        gain: nats for each token of an answer that the sentence was worth: the control's loss less its own.
        loss: nats for each token of an answer.
        right: the share of names whose every token was the likeliest.
    """

    gain: float
    loss: float
    right: float


def hide(rows: Sequence[Sequence[int]], tokenizer: Tokenizer, context: int, distance: int, seed: int = 0) -> Needles:
    """Put a name into each of these documents, given as token ids with <BOS> in front.

    Args:
        rows: at least as long as the context.
        tokenizer: of the model.
        context: N.
        distance: tokens between the sentence's end and the row's.
        seed: of the names.
    """
    draw = Draw(seed, range(len(rows)))
    heads, tails = draw.below(len(_FIRST), 3), draw.below(len(_SECOND), 3)
    about, cue = tokenizer.encode(SENTENCE), tokenizer.encode(CUE)
    found: dict[str, list[list[int]]] = {"ids": [], "control": [], "answer": []}
    for row, head, tail in zip(rows, heads, tails, strict=True):
        first, second, other = (tokenizer.encode(_FIRST[i] + _SECOND[j]) for i, j in zip(head, tail, strict=True))
        if other == second:
            other = tokenizer.encode(_FIRST[head[1] - 1] + _SECOND[tail[1] - 1])
        ends = [*cue, *first, *second]
        between = distance - len(ends)
        for name, half in (("ids", second), ("control", other)):
            sentence = [*first, *half, *about]
            before = context - distance - len(sentence)
            if before < 1 or between < 1:
                raise SelattnError(f"a context of {context} tokens has no room for a name {distance} tokens back")
            if len(row) < before + between:
                raise SelattnError(f"a document of {len(row)} tokens is too short to hide a name in {context}")
            found[name].append([*row[:before], *sentence, *row[before : before + between], *ends])
        found["answer"].append([-100] * (context - len(second)) + second)
    return Needles(*(torch.tensor(found[name]) for name in ("ids", "control", "answer")))


def score(
    model: LanguageModel, needles: Needles, budgets: Sequence[int] | int | None = None, policy: str | None = None
) -> NeedleScore:
    """How well a model copies the names with these budgets in force."""
    kept = None if budgets is None else Budgets(budgets if isinstance(budgets, int) else tuple(budgets))
    chosen = None if policy is None else import_policy(policy)
    sums = {"own": 0.0, "control": 0.0, "tokens": 0.0, "right": 0.0}
    with torch.inference_mode():
        for start in range(0, len(needles.ids), _BATCH):
            part = slice(start, start + _BATCH)
            wanted = needles.answer[part, 1:]
            for name, ids in (("own", needles.ids), ("control", needles.control)):
                given = ids[part].to(model.device)
                logits = model(given, use_cache=False, cache_budgets=kept, cache_policy=chosen).logits[:, :-1].cpu()
                losses = nn.functional.cross_entropy(logits.transpose(1, 2).float(), wanted, reduction="sum")
                sums[name] += float(losses)
                if name == "own":
                    right = (logits.argmax(-1) == wanted) | (wanted == -100)
                    sums["right"] += float(right.all(-1).sum())
                    sums["tokens"] += float((wanted != -100).sum())
    own, control = sums["own"] / sums["tokens"], sums["control"] / sums["tokens"]
    return NeedleScore(control - own, own, sums["right"] / len(needles.ids))

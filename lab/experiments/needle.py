"""Does a pruned model still copy a rare name from far back? Retrieval under budgets, which the paper does not test.

A row is a held-out document into which a sentence with a made-up name is put, `distance` tokens before the row's end,
where the first half of the name stands once more. The model is to say the second half. Beside it stands a control, the
same row with another name in the sentence: its loss, less the loss, was read from the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from lab.engine.experiment import TITLES, WHO, Experiment, trio
from lab.engine.lab import Lab
from lab.engine.pruning import POLICIES, search
from lab.engine.records import Cell, Claim, Measured, Reproduction, Values, differences
from lab.scales import KINDS
from selattn.cache import Budgets, import_policy
from selattn.data import Tokenizer
from selattn.data.draws import Draw
from selattn.errors import SelattnError
from selattn.evaluation.tradeoff import nearest
from selattn.models.loading import Loaded, load
from selattn.models.protocols import LanguageModel
from selattn.pruning.folder import read_path

_READS = 0.1  # nats a token: what a sentence must be worth before anybody speaks of reading it
_WORTH, _COPIED = "nats a token that the sentence is worth", "names copied"  # columns
_SIZE = re.compile(r"(\d+) tokens a layer")
_FIRST = (
    *("Bel", "Dor", "Fen", "Gar", "Hal", "Jor", "Kel", "Lor"),
    *("Mar", "Nel", "Quin", "Ros", "Tam", "Ul", "Ves", "Zan"),
)
_SECOND = (
    *("adic", "bert", "dane", "eron", "fred", "gast", "imir"),
    *("land", "mond", "neth", "oric", "stan", "tova", "wick"),
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
    made: dict[str, list[list[int]]] = {"ids": [], "control": [], "answer": []}
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
            made[name].append([*row[:before], *sentence, *row[before : before + between], *ends])
        made["answer"].append([-100] * (context - len(second)) + second)
    return Needles(*(torch.tensor(made[name]) for name in ("ids", "control", "answer")))


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


def evaluate(lab: Lab) -> Measured:
    """Names hidden far back, with whole caches and with smaller and smaller ones."""
    context = lab.scale.context
    distance = 400 if context == 512 else context * 9 // 16
    sizes = [context, *(size for size in (context // 4, context // 8, context // 16) if size >= 4)]
    scores: dict[tuple[str, int], list[NeedleScore]] = {}
    for seed in lab.seeds:
        needles: Needles | None = None
        for kind in KINDS:
            trained = lab.trained(kind, seed)
            loaded = load(trained.model)
            if needles is None:
                needles = hide(_documents(lab, loaded, context), loaded.tokenizer, context, distance)
            if kind == "standard":
                for name, policy in POLICIES.items():
                    for size in sizes[1:]:
                        part = _score(lab, loaded, needles, distance, (size,) * loaded.description.layers, policy)
                        scores.setdefault((f"standard, {name}", size), []).append(part)
                scores.setdefault(("standard", context), []).append(_score(lab, loaded, needles, distance))
                continue
            path = [step.budgets for step in read_path(search(lab, trained))]
            for size in sizes:
                budgets = None if size == context else nearest(path, [size])[0]
                part = _score(lab, loaded, needles, distance, budgets)
                scores.setdefault((TITLES[kind], size), []).append(part)
    lab.settings |= {"needles": lab.scale.needles, "distance": distance}
    cells = []
    for (name, size), by_seed in scores.items():
        row = f"{name}, {'whole cache' if size == context else f'{size} tokens a layer'}"
        cells += [
            Cell(row, _WORTH, tuple(each.gain for each in by_seed)),
            Cell(row, "loss on the name", tuple(each.loss for each in by_seed)),
            Cell(row, _COPIED, tuple(each.right for each in by_seed), digits=1, percent=True),
        ]
    return Measured(tuple(cells), notes=_notes(distance))


def _score(
    lab: Lab,
    loaded: Loaded,
    needles: Needles,
    distance: int,
    budgets: tuple[int, ...] | None = None,
    policy: str | None = None,
) -> NeedleScore:
    key = {"part": "needle", "model": loaded.fingerprint, "distance": distance, "count": len(needles.ids)}
    key |= {"budgets": budgets and list(budgets), "policy": policy, "text": lab.tokens(loaded)}
    return lab.part(key, NeedleScore, lambda: score(loaded.model, needles, budgets, policy))


def _documents(lab: Lab, loaded: Loaded, context: int) -> list[list[int]]:
    """Held-out documents that fill the context, again from the first if there are too few: names differ anyway."""
    rows = lab.text(long=False).rows(loaded.tokenizer, context).take(None, lab.scale.search_rows)
    full = [
        row["input_ids"].tolist() for row in rows if "attention_mask" not in row or bool(row["attention_mask"].all())
    ]
    if not full:
        raise SelattnError(f"{lab.scale.data.source} has no held-out document of {context} tokens: give longer ones")
    return [full[number % len(full)] for number in range(lab.scale.needles)]


def conclude(record: Reproduction) -> Reproduction:
    """Who reads a name from far back, who copies it whole, and what of that is left with smaller caches."""
    sizes = sorted({int(size) for cell in record.cells for size in _SIZE.findall(cell.row)}, reverse=True)
    context = int(record.models[0].run["data"]["context"])

    def gains(name: str, size: int | None = None) -> tuple[float, ...]:
        cell = record.cell(f"{name}, {'whole cache' if size is None else f'{size} tokens a layer'}", _WORTH)
        return tuple(value for value in cell.values if value is not None)

    whole = {kind: gains(TITLES[kind]) for kind in KINDS}
    reads = [
        Claim(
            f"{WHO[kind]} reads a name from far back: its loss falls by {_READS} nats a token or more.",
            whole[kind],
            f"{_WORTH}, whole cache",
            than=_READS,
        )
        for kind in KINDS
    ]
    copies = [
        Claim(
            f"{WHO[kind]} copies most names whole.",
            record.cell(f"{TITLES[kind]}, whole cache", _COPIED).values,
            "share of the names of which every token was the likeliest, whole cache",
            than=0.5,
            digits=2,
        )
        for kind in KINDS
    ]
    keeps = [
        Claim(
            f"{WHO[kind]} still reads it, pruned {context // size} times.",
            _share(gains(TITLES[kind], size), whole[kind]),
            f"share of the worth that is left, {size} tokens a layer",
            than=0.5,
            digits=2,
            caveat=_nothing(whole[kind]),
        )
        for kind in ("selective", "memory")
        for size in sizes
    ]
    beside = [
        Claim(
            f"{name} keeps less of what the standard model reads.",
            differences(
                _share(gains(TITLES["selective"], size), whole["selective"]),
                _share(gains(f"standard, {name}", size), whole["standard"]),
            ),
            f"share that selective attention keeps less that of {name}, {size} tokens a layer",
            digits=2,
            caveat=_nothing(whole["standard"]),
        )
        for name in POLICIES
        for size in sizes[:1]
    ]
    return replace(record, claims=(*reads, *copies, *keeps, *beside))


def _nothing(whole: Sequence[float]) -> str:
    """The caveat of a model that reads nothing."""
    return "" if any(worth > _READS for worth in whole) else "for it reads none with a whole cache"


def _share(left: Sequence[float], whole: Sequence[float]) -> Values:
    """The share of a worth that is left, seed by seed; None where a model reads nothing in the first place."""
    return tuple(a / b if b > _READS else None for a, b in zip(left, whole, strict=True))


def _notes(distance: int) -> tuple[str, ...]:
    return (
        f"A made-up name stands in a sentence {distance} tokens before its first half is repeated; the second half is "
        "to be predicted. The control is the same text with another second half in the sentence: what the sentence is "
        "worth is the control's loss less the loss.",
        "Budgets of selective models are those of the search whose mean is nearest to the size; others have the same "
        "budget in every layer.",
    )


EXPERIMENTS = (
    Experiment(
        "needle",
        "open: retrieval under budgets",
        "whether a pruned model still copies a rare name from far back",
        trio,
        evaluate,
        conclude=conclude,
    ),
)

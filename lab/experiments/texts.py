"""Texts by models by policies: losses on each text of the mixture, with everything kept and pruned, and recall.

Every model is measured under every policy, with the same K in every layer and with budgets searched for that policy on
the mixture's search part. All models read the same rows, so differences are paired by row. A row is a piece of one
document, as long as the context; a text with too few of these has its documents joined first.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lab.engine.experiment import TITLES, Experiment, Need, with_seeds
from lab.engine.lab import Lab
from lab.engine.pruning import GAIN
from lab.engine.records import Cell, Measured
from lab.experiments.needle import NeedleScore, hide, score
from lab.experiments.texts_claims import (
    AT_OWN,
    AT_STANDARD,
    KEPT,
    MEAN,
    OVER_ROWS,
    WINDOW,
    Setting,
    conclude,
    same,
    searched,
)
from lab.experiments.training import LATE, ON_STANDARD, memory_late_needs
from lab.scales import KINDS, MEMORY, SELECTIVE, STANDARD, Scale
from selattn.cache import Budgets, import_policy
from selattn.data import Reading
from selattn.data.draws import Draw
from selattn.errors import SelattnError
from selattn.evaluation.losses import make_batches
from selattn.evaluation.text import Text
from selattn.evaluation.tradeoff import nearest, size_at
from selattn.models.loading import Loaded, load
from selattn.models.protocols import LanguageModel
from selattn.pruning import Procedure, Until, search_rows

T = TypeVar("T")
Policies = Mapping[str, Sequence[str]]  # that each kind of model is pruned by
POLICIES = {"F": "selective", "H2O": "h2o", "TOVA": "tova", "Window+4": "window+4"}
ROWS, SEARCH_ROWS, RECALL_ROWS = 24, 16, 32  # of each text, of the search part, and for each measure of recall
TIMES = 16  # how many times smaller the caches of the table are
SEARCH = "search"
_BATCH = 4  # rows
_FAR = (1 / 8, 1 / 4, 1 / 2, 7 / 8)  # of the context: distances of pairs


@dataclass(frozen=True)
class RowLosses:
    """The mean loss of each row, in nats per token, by the name of its text."""

    losses: dict[str, tuple[float, ...]]

    def mean(self, text: str) -> float:
        """Of a text, or of all of them with the same weight."""
        if text == MEAN:
            return statistics.fmean(map(self.mean, self.losses))
        return statistics.fmean(self.losses[text])

    def less(self, other: RowLosses, text: str) -> tuple[float, float]:
        """How much larger it is than another, paired by row, and the standard error of that."""
        if text == MEAN:
            parts = [self.less(other, each) for each in self.losses]
            return statistics.fmean(d for d, _ in parts), math.hypot(*(e for _, e in parts)) / len(parts)
        found = [a - b for a, b in zip(self.losses[text], other.losses[text], strict=True)]
        return statistics.fmean(found), statistics.stdev(found) / math.sqrt(len(found))


class MeasuredSeed:
    """All that is measured of one seed's models: row losses and recall of each setting."""

    def __init__(self, lab: Lab, policies: Policies, seed: int) -> None:
        self._lab, self.context = lab, lab.scale.context
        self._rows: dict[str, list[list[int]]] = {}
        self.checksums: dict[str, str] = {}
        self.joined: list[str] = []
        self.found: dict[Setting, RowLosses] = {}
        self.recall: dict[Setting, dict[str, NeedleScore]] = {}
        self.texts: list[str] = []  # the search part is none of them
        self.sizes = [self.context // 2**k for k in range(1, 7) if self.context // 2**k >= 8]
        self.at = min(self.sizes, key=lambda size: abs(size - self.context // TIMES))  # tokens a layer, in the table
        for kind in policies:
            loaded = load(lab.trained(kind, seed).model)
            self._read(loaded)
            lab.overview.say(f"measuring {TITLES.get(kind, kind)}, seed {seed}, on {len(self.texts)} texts")
            for setting in self._settings(kind, loaded, policies[kind]):
                self.found[setting] = self._losses(loaded, setting)
                if setting.how in (KEPT, same(self.at), searched(self.at)):
                    self.recall[setting] = self._recall(loaded, setting)

    def factor(self, kind: str, policy: str, text: str, loss: float) -> float | None:
        """Times less memory at which a model with searched budgets reaches a loss; None above it with everything."""
        points = [(float(self.context), self.found[Setting(kind)].mean(text))]
        points += [(size, self.found[Setting(kind, policy, searched(size))].mean(text)) for size in self.sizes]
        reached = size_at(points, loss)
        return None if reached is None else self.context / reached.size

    def _read(self, loaded: Loaded) -> None:
        """The rows of all texts, once: the models of a table read with one tokenizer."""
        for name, text in texts_of(self._lab.scale).items() if not self._rows else ():
            store, count = text.store(loaded.tokenizer), SEARCH_ROWS if name == SEARCH else ROWS
            documents = [np.asarray(store[d], np.int64)[1:] for d in range(len(store))]  # without <BOS>
            rows, joined = pieces(documents, self.context - 1, count)
            if len(rows) < count:
                raise SelattnError(f"{store.name} has {len(rows)} rows of {self.context} tokens: {count} are wanted")
            self._rows[name] = [[loaded.tokenizer.bos_id, *row.tolist()] for row in rows]
            self.checksums[name] = store.checksum
            self.texts += [name] if name != SEARCH else []
            self.joined += [name] if joined else []

    def _settings(self, kind: str, loaded: Loaded, policies: Sequence[str]) -> Iterator[Setting]:
        yield Setting(kind)
        paths = {name: self._search(loaded, name) for name in policies}
        small = [size for size in (self.at, self.at // 2) if size in self.sizes]
        for name, path in paths.items():
            for size in self.sizes:
                yield Setting(kind, name, searched(size), nearest(path, [size])[0])
            for size in small:
                yield Setting(kind, name, same(size), (size,) * loaded.description.layers)
        for name, other in (("F", WINDOW), (WINDOW, "F")) if {"F", WINDOW} <= set(paths) else ():
            for size in small:
                yield Setting(kind, name, searched(size, other), nearest(paths[other], [size])[0])

    def _part(self, part: str, loaded: Loaded, setting: Setting, measure: Callable[[], T], kind: type[T]) -> T:
        """What was measured of a setting before, or is now; the key has what it depends on."""
        key: dict[str, object] = {"part": f"texts: {part}", "model": loaded.fingerprint, "texts": self.checksums}
        key |= {"budgets": setting.budgets and list(setting.budgets), "policy": POLICIES.get(setting.policy)}
        key["rows"] = [ROWS, SEARCH_ROWS, RECALL_ROWS, self._lab.scale.search_step]
        return self._lab.part(key, kind, measure)

    def _search(self, loaded: Loaded, policy: str) -> list[tuple[int, ...]]:
        """The budgets along a search down to the smallest size: one procedure for every model and policy."""

        def measure() -> list[tuple[int, ...]]:
            rows = [torch.tensor(row) for row in self._rows[SEARCH]]
            batches = make_batches([{"input_ids": row, "labels": row} for row in rows], _BATCH)
            procedure = Procedure(self.context, step=self._lab.scale.search_step, floor=2, lazy=True)
            until = Until(tokens=loaded.description.layers * self.sizes[-1])
            path = search_rows(loaded.model, batches, until, procedure, policy=POLICIES[policy])[1]
            return [each.budgets for each in path]

        return self._part("search", loaded, Setting("", policy), measure, list[tuple[int, ...]])

    def _losses(self, loaded: Loaded, setting: Setting) -> RowLosses:
        def measure() -> RowLosses:
            ids = torch.tensor([row for name in self.texts for row in self._rows[name]])
            found = row_losses(loaded.model, ids, setting)
            parts = (tuple(found[start : start + ROWS]) for start in range(0, len(found), ROWS))
            return RowLosses(dict(zip(self.texts, parts, strict=True)))

        return self._part("losses", loaded, setting, measure, RowLosses)

    def _recall(self, loaded: Loaded, setting: Setting) -> dict[str, NeedleScore]:
        def measure() -> dict[str, NeedleScore]:
            rows = [row for name in self.texts for row in self._rows[name]]
            rows = [rows[i * len(rows) // RECALL_ROWS] for i in range(RECALL_ROWS)]
            distance = self.context * 9 // 16
            needles = hide(rows, loaded.tokenizer, self.context, distance)
            name = score(loaded.model, needles, setting.budgets, POLICIES.get(setting.policy))
            return {f"a name, {distance} back": name, **recall(loaded.model, torch.tensor(rows), setting)}

        return self._part("recall", loaded, setting, measure, dict[str, NeedleScore])


def texts_of(scale: Scale) -> dict[str, Text]:
    """The test part of each source of the mixture, the sources that nothing was trained on, and the search part."""
    if scale.name == "smoke":
        text = Text(scale.data.source, reading=scale.data.reading())
        return {"held-out documents": text, SEARCH: text}
    folder = Path(scale.data.source).resolve().parent
    if not (folder / "counts.json").is_file():
        raise SelattnError("texts are those that 'python -m lab mixture' writes: give --source FOLDER/mixture")
    files = {file.name.split(".")[0]: file for file in sorted((folder / "parts").glob("*.test.jsonl.gz"))}
    files |= {f"{file.name.split('.')[0]} (unseen)": file for file in sorted((folder / "unseen").glob("*.jsonl.gz"))}
    files[SEARCH] = folder / "search.jsonl.gz"
    return {name: Text(str(file), eos=False, reading=Reading(validation=1.0)) for name, file in files.items()}


def pieces(documents: Sequence[NDArray[np.int64]], length: int, count: int) -> tuple[list[NDArray[np.int64]], bool]:
    """So many pieces of single documents, evenly spread, or if there are too few of the documents joined; and which."""
    found = [each[at : at + length] for each in documents for at in range(0, len(each) - length + 1, length)]
    if joined := len(found) < count:
        whole = np.concatenate(documents)
        found = [whole[at : at + length] for at in range(0, len(whole) - length + 1, length)]
    return [found[i * len(found) // count] for i in range(min(count, len(found)))], joined


def _logits(model: LanguageModel, ids: Tensor, setting: Setting) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows and their logits on the CPU, batch by batch, with the budgets of a setting in force."""
    budgets = None if setting.budgets is None else Budgets(setting.budgets)
    policy = import_policy(POLICIES[setting.policy]) if setting.policy else None
    with torch.inference_mode():
        for part in ids.split(_BATCH):
            given = part.to(model.device)
            found = model(given, use_cache=False, cache_budgets=budgets, cache_policy=policy).logits
            yield part, found.float().cpu()


def row_losses(model: LanguageModel, ids: Tensor, setting: Setting) -> list[float]:
    """The mean loss of each row of [R, N] in nats per token, the first token left out."""
    return [
        float(nn.functional.cross_entropy(of_row[:-1], row[1:], reduction="none").double().mean())
        for part, logits in _logits(model, ids, setting)
        for row, of_row in zip(part, logits, strict=True)
    ]


def recall(model: LanguageModel, rows: Tensor, setting: Setting) -> dict[str, NeedleScore]:
    """Recall of random pairs, a key of two tokens and a value of two, put into rows [R, N] at several distances.

    The keys stand once more at the end of the row, each followed by its value, which is to be predicted. In the control
    another value stands in the first place. Tokens are of the rarer half of the vocabulary.
    """
    context, half = rows.shape[1], model.description.vocab_size // 2
    distances = [int(context * far) for far in _FAR]
    tokens = torch.as_tensor(Draw(0, range(len(rows))).below(half, 6 * len(distances))) + half
    own, control, asked = rows.clone(), rows.clone(), []
    for number, distance in enumerate(distances):
        at = context - 4 * (len(distances) - number)  # of the question
        key, value, other = tokens[:, 6 * number : 6 * number + 6].split(2, -1)
        own[:, at - distance : at - distance + 4] = torch.cat([key, value], -1)
        control[:, at - distance : at - distance + 4] = torch.cat([key, other], -1)
        own[:, at : at + 4] = control[:, at : at + 4] = torch.cat([key, value], -1)
        asked += [at + 2, at + 3]
    wanted, before = own[:, asked], [at - 1 for at in asked]
    logits = [torch.cat([found[:, before] for _, found in _logits(model, x, setting)]) for x in (own, control)]
    means = [nn.functional.cross_entropy(x.transpose(1, 2), wanted, reduction="none").mean(0) for x in logits]
    loss, without = (each.reshape(-1, 2).mean(-1).tolist() for each in means)
    right = (logits[0].argmax(-1) == wanted).reshape(len(rows), -1, 2).all(-1).float().mean(0).tolist()
    scores = [NeedleScore(b - a, a, share) for a, b, share in zip(loss, without, right, strict=True)]
    return {f"a pair, {distance} back": each for distance, each in zip(distances, scores, strict=True)}


def _beside(ours: Setting) -> Setting:
    """Window+4 with the budgets of a setting with the order by F, on the same model."""
    of_window, alike = f" for {WINDOW}", ours.how.endswith("every layer")
    how = ours.how if alike else ours.how.removesuffix(of_window) if of_window in ours.how else f"{ours.how} for F"
    return replace(ours, policy=WINDOW, how=how)


def cells_of(seed: MeasuredSeed, policies: Policies, missing: dict[str, str]) -> Iterator[Cell]:
    """The table: losses, differences, what F adds, factors, recall; and rows of what was not run, with the reason."""
    base = next(iter(policies))  # the model that the others are held against
    columns = (*seed.texts, MEAN)
    shown = [each for each in seed.found if each.how in (KEPT, same(seed.at), searched(seed.at))]
    for setting, text in product(shown, columns):
        yield Cell(setting.row, text, (seed.found[setting].mean(text),))
    for (what, reason), text in product(missing.items(), columns):
        yield Cell(f"{what}: not run ({reason})", text, (None,))
    pairs = [(each, Setting(base), f"less {Setting(base).row}") for each in shown if each != Setting(base)]
    pairs += [(each, _beside(each), f"less {WINDOW}") for each in seed.found if each.policy == "F"]
    for (these, those, less), text in product(pairs, columns):
        if those in seed.found:
            difference, error = seed.found[these].less(seed.found[those], text)
            yield Cell(f"{these.row}, {less}", text, (difference,))
            yield Cell(f"{these.row}, {less}{OVER_ROWS}", text, (error,), digits=4)
    limits = ((AT_STANDARD, base, 0.0), (AT_OWN, "", GAIN))
    for kind, (what, whose, more), text in product(policies, limits, columns):
        for name in policies[kind]:
            factor = seed.factor(kind, name, text, seed.found[Setting(whose or kind)].mean(text) + more)
            yield Cell(f"{Setting(kind, name, '').row}, {what}", text, (factor,), digits=1)
    for setting, scores in seed.recall.items():
        for place, each in scores.items():
            yield Cell(f"{setting.row}, nats a token read", place, (each.gain,))
            yield Cell(f"{setting.row}, recalled", place, (each.right,), percent=True, digits=1)


def _missing(policies: Policies) -> dict[str, str]:
    """What a reader would look for and does not find, and why."""
    elsewhere = "see the experiment 'texts'" if any(policies.values()) else "see the experiment 'texts-pair'"
    found = {Setting(kind, how="").row: "see the experiment 'texts'" for kind in KINDS if kind not in policies}
    for kind, name in ((kind, name) for kind, names in policies.items() for name in POLICIES if name not in names):
        no_f = name == "F" and kind in (STANDARD, ON_STANDARD)
        found[Setting(kind, name, "").row] = "it has no F" if no_f else elsewhere
    return found


@dataclass(frozen=True)
class Grid:
    """An experiment: by which policies each kind of model is pruned, the first kind being what others are held against.

    `longer` is the tokens of its models, as times those of a long run; `positions` and `d` are the scale's if None.
    """

    policies: Policies
    longer: int = 1
    positions: str | None = None
    d: int | None = None

    def needs(self, scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
        """Models of one seed have the same initial weights and order of data."""
        if LATE in self.policies:
            late = memory_late_needs(scale, seeds)
            return {name: need for name, need in late.items() if name.rpartition(", ")[0] in self.policies}
        if Path(scale.data.source).exists():  # else nothing can be trained on it
            texts_of(scale)  # is refused before hours of training
        steps = scale.long_steps * self.longer
        runs = {kind: scale.run(kind, d=self.d, positions=self.positions, steps=steps) for kind in self.policies}
        return with_seeds(runs, seeds)

    def evaluate(self, lab: Lab) -> Measured:
        (number,) = lab.seeds
        seed = MeasuredSeed(lab, self.policies, number)
        lab.settings |= {"rows": ROWS, "search_rows": SEARCH_ROWS, "recall_rows": RECALL_ROWS}
        lab.settings |= {"tokens": seed.checksums, "joined": seed.joined}
        details = {
            "policies": {kind: list(names) for kind, names in self.policies.items()},
            "at": seed.at,
            "losses": [{s.row: {t: round(x.mean(t), 5) for t in seed.texts} for s, x in seed.found.items()}],
            "budgets": [{s.row: list(s.budgets) for s in seed.found if s.budgets is not None}],
        }
        return Measured(tuple(cells_of(seed, self.policies, _missing(self.policies))), details=details)


_ALL = tuple(POLICIES)
_PAIR = Grid({STANDARD: _ALL[1:], SELECTIVE: ("F", WINDOW)})
_TEXTS = Grid({STANDARD: _ALL[1:], SELECTIVE: _ALL, MEMORY: _ALL})
_LATE = Grid({ON_STANDARD: (), LATE: ("F", WINDOW)})
_WHOLE = Grid({STANDARD: (), SELECTIVE: ()})
EXPERIMENTS = tuple(
    Experiment(name, "open: other texts", sentence, grid.needs, grid.evaluate, conclude=conclude, by_seed=True)
    for name, grid, sentence in (
        ("texts-pair", _PAIR, "losses and recall on many texts, of standard and selective models under every policy"),
        ("texts", _TEXTS, "the same with every policy for every kind, and the memory loss"),
        ("texts-whole", _WHOLE, "losses on many texts, of standard and selective models with everything kept"),
        ("texts-learned", replace(_WHOLE, positions="learned"), "losses on many texts with learned positions"),
        ("texts-long", replace(_WHOLE, longer=2), "losses on many texts after twice as many tokens"),
        ("texts-large", replace(_WHOLE, longer=2, d=6), "losses on many texts, of models of twice the size"),
        ("texts-late", _LATE, "the memory loss at the end of training, on many texts"),
    )
)

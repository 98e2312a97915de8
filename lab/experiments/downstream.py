"""Table 1: accuracy on ARC, HellaSwag, PIQA, CommonsenseQA and OpenBookQA."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.engine.experiment import Experiment, Need, with_seeds
from lab.engine.lab import Lab
from lab.engine.records import Cell, Claim, Measured, Reproduction, differences
from lab.scales import PAIR, SELECTIVE, STANDARD, Scale, scale_of
from selattn.evaluation.compare import Comparison
from selattn.evaluation.compare import evaluate as compare
from selattn.models.loading import load
from selattn.utils.files import write_text

TASKS = ("arc_easy", "arc_challenge", "hellaswag", "commonsense_qa", "openbookqa", "piqa")
# d: base and selective of each task, in their order, %.
_PAPER = {
    16: ((38.46, 39.33), (23.24, 23.24), (38.83, 40.01), (25.44, 25.82), (34.26, 34.33), (68.07, 68.49)),
    18: ((40.48, 41.10), (24.67, 24.86), (41.77, 42.60), (26.45, 26.69), (35.32, 35.42), (69.05, 69.88)),
    20: ((41.33, 41.85), (25.14, 25.52), (43.97, 45.08), (26.30, 26.63), (35.42, 35.27), (69.82, 70.49)),
    22: ((42.43, 42.70), (25.83, 26.41), (46.04, 47.71), (26.56, 27.10), (35.96, 36.88), (70.55, 71.43)),
    24: ((43.83, 44.47), (26.64, 26.76), (48.70, 50.32), (27.49, 27.49), (36.36, 37.13), (71.34, 71.95)),
    26: ((44.70, 45.58), (26.37, 26.95), (51.02, 52.25), (27.70, 27.78), (37.64, 37.52), (71.89, 72.47)),
    28: ((45.64, 46.95), (26.76, 27.37), (53.50, 53.76), (27.86, 28.51), (37.33, 37.54), (72.32, 72.85)),
}


def _sizes(scale: Scale) -> tuple[int, ...]:
    return tuple(_PAPER) if scale.name == "paper" else (scale.d,)


def needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """Both kinds at every size."""
    steps = scale.long_steps
    return with_seeds(
        {f"{kind}, d={d}": scale.run(kind, d=d, steps=steps) for d in _sizes(scale) for kind in PAIR}, seeds
    )


def evaluate(lab: Lab) -> Measured:
    """Accuracy of each task; the paper does not say whether it is normalised by length, so both are measured."""
    folder = made_up(lab.store.work / "questions") if lab.scale.name == "smoke" else lab.questions
    cells = []
    for d in _sizes(lab.scale):
        for kind in PAIR:
            results = [_asked(lab, f"{kind}, d={d}", seed, folder) for seed in lab.seeds]
            for number, task in enumerate(TASKS):
                values = tuple(each.models[0].tasks[task].acc for each in results)
                normed = tuple(each.models[0].tasks[task].acc_norm for each in results)
                paper = _PAPER[d][number][PAIR.index(kind)] / 100 if d in _PAPER else None
                cells.append(Cell(f"{task}, d={d}", kind, values, paper, 1, True))
                cells.append(Cell(f"{task}, d={d}, normalised", kind, normed, None, 1, True))
    asked = (
        "made-up questions" if lab.scale.name == "smoke" else f"{lab.scale.questions or 'all'} questions of each task"
    )
    lab.settings["questions"] = lab.scale.questions
    return Measured(tuple(cells), notes=(f"{asked.capitalize()}, without examples, through lm-eval.",))


def conclude(record: Reproduction) -> Reproduction:
    """Whether more is answered; of few questions with the error of a difference beside it."""
    questions = record.settings["questions"]
    error = None if questions is None else (2 * 0.25 / questions) ** 0.5  # of two accuracies about a half, independent
    claims = tuple(
        Claim(
            f"Selective attention answers more of {task} (d={d}).",
            differences(*(record.cell(f"{task}, d={d}", kind).values for kind in (SELECTIVE, STANDARD))),
            "accuracy of selective less that of standard",
            paper=None if d not in _PAPER else (_PAPER[d][k][1] - _PAPER[d][k][0]) / 100,
            caveat="" if error is None else f"with a standard error of up to {error:.3f}",
        )
        for d in _sizes(scale_of(record.scale, record.settings))
        for k, task in enumerate(TASKS)
    )
    notes = record.notes[:1]
    if error is not None:
        notes += (f"The difference of two accuracies of so few questions has a standard error of up to {error:.3f}.",)
    return replace(record, claims=claims, notes=notes)


def _asked(lab: Lab, name: str, seed: int, folder: Path | None) -> Comparison:
    loaded = load(lab.trained(name, seed).model)
    key = {"part": "tasks", "model": loaded.fingerprint, "questions": lab.scale.questions, "scale": lab.scale.name}

    def measure() -> Comparison:
        lab.overview.say(f"asking {name}, seed {seed}")
        limit = lab.scale.questions
        return compare(loaded, tasks=["all"], data_dir=folder, limit=limit, context=None, team=lab.team)

    return lab.part(key, Comparison, measure)


def made_up(folder: Path) -> Path:
    """Questions about nothing in the schema of the hub, the same every time: what is asked does not matter here."""
    rng = random.Random(0)
    words = ["module", "class", "function", "string", "value", "error", "file", "type", "list", "object"]

    def pick(count: int) -> list[str]:
        return [f"a {each}" for each in rng.sample(words, count)]

    for task in TASKS:
        rows = [_question(task, number, pick) for number in range(2)]
        write_text(folder / f"{task}_validation.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return folder


def _question(task: str, number: int, pick: Any) -> dict[str, Any]:
    stem = f"Which one is question {number} about?"
    if task == "hellaswag":
        endings = pick(4)
        return {
            "ind": number, "activity_label": "Question", "ctx_a": "A question is asked.", "ctx_b": "it is about",
            "ctx": "A question is asked. it is about", "endings": endings, "label": number % 4, "split": "val",
            "split_type": "indomain", "source_id": f"made~{number}",
        }  # fmt: skip
    if task == "piqa":
        one, two = pick(2)
        return {"goal": stem, "sol1": one, "sol2": two, "label": number % 2}
    labels = [*"ABCDE"] if task == "commonsense_qa" else [*"ABCD"]
    row = {
        "id": f"{task}-{number}",
        "choices": {"text": pick(len(labels)), "label": labels},
        "answerKey": labels[number],
    }
    if task == "openbookqa":
        return {**row, "question_stem": stem}
    return (
        {**row, "question": stem, "question_concept": "it"} if task == "commonsense_qa" else {**row, "question": stem}
    )


EXPERIMENTS = (
    Experiment("downstream", "Table 1", "accuracy on six multiple-choice tasks", needs, evaluate, conclude=conclude),
)

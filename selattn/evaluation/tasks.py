"""Multiple choice through lm-eval: its tasks, prompts and metrics, from the hub or from local files.

A pruned model is scored in its ordinary full forward, with its budgets in force. lm-eval pads on the right and gives no
mask; tokens that come later do not change what a token sees, nor what was evicted before it.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selattn.cache import Budgets, Policy, import_policy
from selattn.data.files import read_objects
from selattn.errors import SelattnError, advice, require
from selattn.models.protocols import LanguageModel
from selattn.utils.files import cache_folder

# Our name for a task -> where lm-eval has it. Its own names are the same.
TASKS = {
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "piqa": "piqa/piqa.yaml",
    "commonsense_qa": "commonsense_qa/default.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
}
# The columns of a question, in the hub's schema, that lm-eval reads.
COLUMNS = {
    "arc_easy": ("question", "choices", "answerKey"),
    "arc_challenge": ("question", "choices", "answerKey"),
    "hellaswag": ("activity_label", "ctx_a", "ctx_b", "endings", "label"),
    "piqa": ("goal", "sol1", "sol2", "label"),
    "commonsense_qa": ("question", "choices", "answerKey"),
    "openbookqa": ("question_stem", "choices", "answerKey"),
}
METRICS = ("acc", "acc_norm")
_ENDS = (".jsonl", ".json")


@dataclass(frozen=True)
class TaskResult:
    """The shares of right answers, and their standard errors: None for a single question."""

    questions: int
    acc: float
    acc_stderr: float | None
    acc_norm: float  # likelihoods divided by the length of a choice
    acc_norm_stderr: float | None


def check_tasks(names: Sequence[str]) -> list[str]:
    """The tasks that a user names, `all` for all of them; raises for an unknown one, and if there is no lm-eval."""
    for name in names:
        if name not in (*TASKS, "all"):
            raise SelattnError(f"unknown task {name!r}; {advice(name, ['all', *TASKS])}")
    require("lm_eval")
    return list(TASKS) if "all" in names else list(dict.fromkeys(names))


def find_tasks(names: Sequence[str], folder: str | Path | None = None) -> dict[str, Path | None]:
    """The tasks that a user names, several with commas between them, and the file of each; None for the hub."""
    if not names:
        return {}
    tasks = check_tasks([name for each in names for name in each.split(",")])
    return dict.fromkeys(tasks) if folder is None else dict(find_local(tasks, Path(folder)))


def find_local(names: Sequence[str], folder: Path) -> dict[str, Path]:
    """The file of each task in a folder, by the beginning of its name, `arc_easy_validation.jsonl`; checks its rows.

    Other files in it are ignored.
    """
    if not folder.exists():
        raise SelattnError(f"no such file or folder: {folder}")
    files = sorted(folder.rglob("*")) if folder.is_dir() else [folder]
    files = [file for file in files if file.is_file() and file.name.lower().removesuffix(".gz").endswith(_ENDS)]
    found = {}
    for name in names:
        plain = name.replace("_", "")
        fits = [file for file in files if re.sub(r"[^a-z0-9]", "", file.name.lower()).startswith(plain)]
        if len(fits) != 1:
            what = "no .jsonl file" if not fits else f"{len(fits)} files, {' and '.join(file.name for file in fits)},"
            raise SelattnError(f"{folder} has {what} whose name begins with {name}: there must be one for each task")
        rows = list(read_objects(fits[0]))
        if not rows:
            raise SelattnError(f"{fits[0]} has no questions: give one in each line")
        for where, row in rows:
            if fault := _fault(name, row):
                raise SelattnError(f"{where}: a question of {name} has {fault}")
        found[name] = fits[0]
    return found


def _fault(name: str, row: dict[str, Any]) -> str | None:
    """What is wrong with a question, if anything: lm-eval would fail far from it, or count it as answered wrongly."""
    for column in COLUMNS[name]:
        if column not in row:
            return f"no {column!r}"
        if column not in ("choices", "endings", "label") and not isinstance(row[column], str):
            return f"a {column!r} that is not a string: {row[column]!r}"
    texts: Any
    labels: Any
    if name == "piqa":
        texts, labels, answer = [row["sol1"], row["sol2"]], ["0", "1"], json.dumps(row["label"])  # "1" is not 1 there
    elif name == "hellaswag":
        texts, answer = row["endings"], str(row["label"])
        labels = [str(place) for place in range(len(texts))] if isinstance(texts, list) else []
    else:
        choices = row["choices"] if isinstance(row["choices"], dict) else {}
        texts, labels, answer = choices.get("text"), choices.get("label"), row["answerKey"]
        answer = answer.lstrip() if name == "openbookqa" else answer  # as lm-eval does
    if not (_strings(texts) and _strings(labels) and len(texts) == len(labels)):
        return "choices that are not as many texts as labels, none of them empty"
    if name == "commonsense_qa" and labels != [*"ABCDE"]:
        return f"the choices {', '.join(labels)}: they must be A, B, C, D, E"
    return None if answer in labels else f"the answer {answer!r}, which is not among {', '.join(labels)}"


def _strings(values: Any) -> bool:
    """Whether these are texts, at least one, none of them blank."""
    return isinstance(values, list) and bool(values) and all(isinstance(v, str) and v.strip() for v in values)


def make_scorer(
    model: LanguageModel,
    tokenizer: Any,
    batch: int = 16,
    budgets: Budgets | None = None,
    policy: str | Policy | None = None,
) -> Any:
    """The model that lm-eval asks for likelihoods; lm-eval adds <BOS> if the tokenizer of transformers does."""
    from selattn.evaluation.scorer import Scorer

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    return Scorer(model, tokenizer, batch, budgets, None if policy is None else import_policy(policy))


def run_task(scorer: Any, name: str, file: Path | None = None, limit: int | None = None, seed: int = 0) -> TaskResult:
    """Accuracy, length-normalised accuracy and their standard errors, without examples in the prompt.

    Args:
        scorer: of `make_scorer`.
        name: one of `TASKS`.
        file: questions in the hub's schema; None for the hub and lm-eval's choice of the split.
        limit: the most questions to ask.
        seed: of lm-eval's random numbers, none of which matter here.
    """
    import lm_eval
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory() as made:
        _write_task(Path(made), name, file)
        # Without lm-eval's own thousands of tasks, which take a minute to list.
        manager = TaskManager(include_path=made, include_defaults=False)
        try:
            seeds = {f"{kind}_seed": seed for kind in ("random", "numpy_random", "torch_random", "fewshot_random")}
            found = lm_eval.simple_evaluate(
                scorer, tasks=[name], task_manager=manager, limit=limit, log_samples=False, **seeds
            )
        except (OSError, ConnectionError) as error:
            reason = " ".join(str(error).split())[:200]
            raise SelattnError(f"the tasks cannot be read: {reason}; local files work offline: --data-dir") from error
    assert found is not None
    return _numbers(found["results"][name], found["n-samples"][name]["effective"])


def _write_task(folder: Path, name: str, file: Path | None) -> None:
    """Write a task file that includes lm-eval's own and changes where the questions come from."""
    import lm_eval.tasks

    home = Path(lm_eval.tasks.__file__).parent
    metrics = [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in METRICS]
    task: dict[str, Any] = {"include": str(home / TASKS[name]), "task": name, "metric_list": metrics}
    if file is not None:
        task |= {
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {
                "data_files": {"validation": str(file.resolve())},
                "cache_dir": str(cache_folder() / "questions"),
            },
            "training_split": None,
            "validation_split": "validation",
            "test_split": None,
        }
    (folder / f"{name}.yaml").write_text(json.dumps(task))  # which is YAML, too


def _numbers(result: dict[str, Any], count: int) -> TaskResult:
    found = {metric: float(result[f"{metric},none"]) for metric in METRICS}
    errors = {metric: result[f"{metric}_stderr,none"] for metric in METRICS}
    known = {metric: float(each) if isinstance(each, float) else None for metric, each in errors.items()}
    return TaskResult(count, found["acc"], known["acc"], found["acc_norm"], known["acc_norm"])  # of one question: None

"""Multiple choice: lm-eval's own numbers, and those of the likelihoods computed directly, pruned or not."""

import json
import math
import sys

import pytest
import torch
import yaml
from transformers import AutoTokenizer

from selattn.errors import SelattnError
from selattn.evaluation import subjects, tasks
from selattn.models.loading import load
from tests.evaluation import questions
from tests.evaluation.folders import model_folder

pytestmark = pytest.mark.filterwarnings("ignore")  # what lm-eval and its dependencies warn of is not ours


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("tasks") / "model", max_position_embeddings=160, num_hidden_layers=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return questions.write(tmp_path_factory.mktemp("questions"))


def scores(folder, data, text="", **how):
    found = subjects.Subject.parse(f"{folder}{text}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    scorer = tasks.make_scorer(found.loaded.model, tokenizer, budgets=found.budgets, policy=found.policy)
    files = tasks.find_local(tasks.check_tasks(["all"]), data)
    return {name: tasks.run_task(scorer, name, file, **how) for name, file in files.items()}


def directly(folder, budgets=None):
    """Accuracies from log p(choice | context), one choice after another."""
    model, tokenizer = load(folder).model, AutoTokenizer.from_pretrained(folder)
    found = {}
    for task, rows in questions.ROWS.items():
        plain, normed = [], []
        for row in rows:
            context, choices, right = questions.prompt(task, row)
            begin, likelihoods = len(tokenizer(context.rstrip()).input_ids), []
            for choice in choices:
                ids = torch.tensor([tokenizer(f"{context} {choice}").input_ids])
                with torch.no_grad():
                    logits = model(ids, use_cache=False, cache_budgets=budgets).logits[0, :-1]
                each = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
                likelihoods.append(each[begin - 1 :].sum().item())
            lengths = [len(choice) for choice in choices]
            plain.append(max(range(len(choices)), key=lambda i: likelihoods[i]) == right)
            normed.append(max(range(len(choices)), key=lambda i: likelihoods[i] / lengths[i]) == right)
        found[task] = {"acc": sum(plain) / len(plain), "acc_norm": sum(normed) / len(normed), "questions": len(rows)}
    return found


@pytest.mark.parametrize(("text", "budgets"), [("", None), ("@6", 6), ("@999", None)])
def test_the_numbers_are_those_of_the_likelihoods(folder, data, text, budgets):
    """Also with budgets, and with budgets so large that nothing is dropped."""
    found, want = scores(folder, data, text), directly(folder, budgets)
    for task in questions.ROWS:
        for name, value in want[task].items():
            assert getattr(found[task], name) == pytest.approx(value), (task, name)
        n = want[task]["questions"]
        for metric in ("acc", "acc_norm"):
            p = want[task][metric]
            error = math.sqrt(p * (1 - p) / (n - 1)) if n > 1 else None
            assert getattr(found[task], f"{metric}_stderr") == (error if error is None else pytest.approx(error))


def test_the_numbers_are_lm_evals_own(folder, data, tmp_path):
    """lm-eval with its own `hf` model type on the same checkpoint, and its own tasks pointed at the same files."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    home = __import__("lm_eval.tasks").tasks.__path__[0]
    for name, path in tasks.TASKS.items():
        local = {
            "include": f"{home}/{path}",
            "task": name,
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": {"validation": str(data / f"{name}_validation.jsonl")}},
            "training_split": None,
            "test_split": None,
        }
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(local))
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    arguments = {"pretrained": str(folder), "dtype": "float32"}
    want = lm_eval.simple_evaluate("hf", arguments, tasks=list(tasks.TASKS), task_manager=manager, device="cpu")
    found = scores(folder, data)
    for name in tasks.TASKS:
        for metric in ("acc", "acc_norm"):
            if f"{metric},none" in want["results"][name]:  # CommonsenseQA has accuracy only
                assert getattr(found[name], metric) == want["results"][name][f"{metric},none"]


def test_limit(folder, data):
    assert all(result.questions == 1 for result in scores(folder, data, limit=1).values())


def test_without_lm_eval_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SelattnError, match=r"pip install 'selattn\[eval\]'"):
        tasks.check_tasks(["piqa"])


def test_errors(data, tmp_path):
    with pytest.raises(SelattnError, match="did you mean 'hellaswag'"):
        tasks.check_tasks(["hellaswog"])
    (tmp_path / "piqa_1.jsonl").write_text("{}\n")
    with pytest.raises(SelattnError, match=r"has no .jsonl file whose name begins with arc_easy"):
        tasks.find_local(["arc_easy"], tmp_path)
    for row, says in (
        ("", "piqa_1.jsonl has no questions"),
        ("{", "line 1: not JSON"),
        ('{"goal": "a", "sol1": "b"}', "line 1: .* piqa has no 'sol2'"),
    ):
        (tmp_path / "piqa_1.jsonl").write_text(f"{row}\n")
        with pytest.raises(SelattnError, match=says):
            tasks.find_local(["piqa"], tmp_path)
    (tmp_path / "PIQA-valid.jsonl").write_text("{}\n")
    with pytest.raises(
        SelattnError, match=r"has 2 files, PIQA-valid.jsonl and piqa_1.jsonl, whose name begins with piqa"
    ):
        tasks.find_local(["piqa"], tmp_path)
    assert tasks.find_local(["arc_easy"], data) == {"arc_easy": data / "arc_easy_validation.jsonl"}


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("piqa", {"label": 7}, "the answer '7', which is not among 0, 1"),
        ("piqa", {"label": "1"}, "which is not among 0, 1"),
        ("piqa", {"label": True}, "the answer 'true'"),
        ("piqa", {"sol1": None}, "a 'sol1' that is not a string: None"),
        ("piqa", {"sol2": " "}, "choices that are not as many texts as labels, none of them empty"),
        ("arc_easy", {"answerKey": "Z"}, "the answer 'Z', which is not among A, B, C, D"),
        ("arc_easy", {"choices": "A"}, "choices that are not"),
        ("arc_easy", {"choices": {"text": [], "label": []}}, "choices that are not"),
        ("arc_challenge", {"choices": {"text": ["a", 2], "label": ["A", "B"]}}, "choices that are not"),
        ("openbookqa", {"choices": {"text": ["a"], "label": ["A", "B"]}}, "choices that are not"),
        ("openbookqa", {"question_stem": 3}, "a 'question_stem' that is not a string"),
        ("hellaswag", {"endings": "ran"}, "choices that are not"),
        ("hellaswag", {"label": ""}, "the answer '', which is not among 0, 1, 2, 3"),
        ("commonsense_qa", {"choices": {"text": ["a"], "label": ["A"]}}, "they must be A, B, C, D, E"),
    ],
)
def test_wrong_questions_are_told_by_file_and_line(tmp_path, name, changes, says):
    good = questions.ROWS[name][0]
    file = tmp_path / f"{name}.jsonl"
    file.write_text(f"{json.dumps(good)}\n{json.dumps({**good, **changes})}\n")
    with pytest.raises(SelattnError, match=rf"{name}\.jsonl, line 2: a question of {name} has .*{says}"):
        tasks.find_local([name], tmp_path)


def test_forms_of_an_answer_that_the_hub_has(tmp_path):
    rows = {"hellaswag": {"label": "3", "ctx_b": ""}, "openbookqa": {"answerKey": " A"}}
    for name, changes in rows.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({**questions.ROWS[name][0], **changes}))
    assert list(tasks.find_local([*rows], tmp_path)) == [*rows]

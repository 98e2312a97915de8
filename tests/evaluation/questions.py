"""A few questions of each task in the schema of the hub, and their prompts written out."""

import json

ROWS = {
    "arc_easy": [
        {
            "id": "a1",
            "question": "Which one can run?",
            "choices": {"text": ["a stone", "the dog", "old walls", "rain"], "label": ["A", "B", "C", "D"]},
            "answerKey": "B",
        },
        {
            "id": "a2",
            "question": "What fell over the home?",
            "choices": {"text": ["rain", "one cat", "a mat"], "label": ["1", "2", "3"]},
            "answerKey": "1",
        },
    ],
    "arc_challenge": [
        {
            "id": "c1",
            "question": "Where did the cat sit while the rain fell?",
            "choices": {"text": ["on a mat", "far from home", "over walls", "on stone"], "label": ["A", "B", "C", "D"]},
            "answerKey": "A",
        }
    ],
    "hellaswag": [
        {
            "ind": 24,
            "activity_label": "Old cat",
            "ctx_a": "A cat is on a mat.",
            "ctx_b": "it",
            "ctx": "A cat is on a mat. it",
            "split": "val",
            "split_type": "indomain",
            "label": 3,
            "endings": ["saw one dog.", "sat on [title] walls.", "and then rain.", "ran far from home."],
            "source_id": "activitynet~v_1",
        },
        {
            "ind": 25,
            "activity_label": "Rain",
            "ctx_a": "Rain fell. A dog saw a wall.",
            "ctx_b": "the dog",
            "ctx": "Rain fell. A dog saw a wall. the dog",
            "split": "val",
            "split_type": "zeroshot",
            "label": 0,
            "endings": ["sat.", "is a stone.", "then saw the old cat run.", "fell over home."],
            "source_id": "activitynet~v_2",
        },
    ],
    "piqa": [
        {"goal": "How does one sit on a mat?", "sol1": "Run to the mat, then sit.", "sol2": "Run far.", "label": 0},
        {"goal": "home", "sol1": "walls of rain ", "sol2": "walls of stone ", "label": 1},
    ],
    "commonsense_qa": [
        {
            "id": "q1",
            "question": "Where would one see a cat?",
            "question_concept": "cat",
            "choices": {"label": ["A", "B", "C", "D", "E"], "text": ["home", "rain", "stone", "far", "wall"]},
            "answerKey": "A",
        },
        {
            "id": "q2",
            "question": "What is old? ",
            "question_concept": "old",
            "choices": {"label": ["A", "B", "C", "D", "E"], "text": ["rain", "run", "walls", "one", "then"]},
            "answerKey": "C",
        },
    ],
    "openbookqa": [
        {
            "id": "8-1",
            "question_stem": "The dog ran far from home because the rain",
            "choices": {"text": ["fell", "sat", "saw the cat", "is old"], "label": ["A", "B", "C", "D"]},
            "answerKey": "A",
        }
    ],
}


def write(folder):
    """A file for each task, named as the validation files of the hub are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in ROWS.items():
        (folder / f"{name}_validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def prompt(task, row):
    """Context, choices and the index of the right one, as lm-eval's tasks ask (without examples)."""
    if task.startswith("arc"):
        right = row["choices"]["label"].index(row["answerKey"])
        return f"Question: {row['question']}\nAnswer:", row["choices"]["text"], right
    if task == "hellaswag":
        context = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
        return context, [end.replace(" [title]", ". ").replace("  ", " ") for end in row["endings"]], row["label"]
    if task == "piqa":
        return f"Question: {row['goal']}\nAnswer:", [row["sol1"], row["sol2"]], row["label"]
    if task == "commonsense_qa":
        letters = "ABCDE"
        lines = "".join(f"{a}. {text}\n" for a, text in zip(letters, row["choices"]["text"], strict=True))
        return f"Question: {row['question'].strip()}\n{lines}Answer:", list(letters), letters.index(row["answerKey"])
    right = row["choices"]["label"].index(row["answerKey"])
    return row["question_stem"], row["choices"]["text"], right

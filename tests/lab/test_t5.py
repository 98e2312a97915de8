"""T5 under our trainer: the loss is that of its labels, and a resumed run is the same run."""

import dataclasses

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from lab.t5 import SpanData, T5Run, t5_config
from selattn.errors import SelattnError
from selattn.training import train
from selattn.training.config import Batching, Checkpoints, Evaluation, Optimizer, Schedule, Start
from tests.evaluation.folders import text_file
from tests.training.tiny import log, same_run

MODEL = {"d_model": 16, "d_ff": 24, "d_kv": 4, "num_layers": 1, "num_decoder_layers": 2, "num_heads": 2}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))
    text_file(tmp_path / "text.txt", documents=40)
    return T5Run(
        "t5",
        data=SpanData(str(tmp_path / "text.txt"), vocabulary=290, validation=0.3, context=24),
        model=MODEL | {"memory_epsilon": 0.1, "dropout_rate": 0.1},
        optimizer=Optimizer(kind="adafactor", lr=0.02, weight_decay=0.0),
        schedule=Schedule(steps=8, warmup=2, decay="inverse_sqrt"),
        batch=Batching(size=4, micro=2),
        evaluation=Evaluation(every=4, rows=6, batch=4),
        checkpoints=Checkpoints(every=4),
        log_every=2,
    )


def test_a_run_learns_and_leaves_a_model_with_its_tokenizer(run, tmp_path):
    found = train(run, tmp_path / "run")
    lines = log(tmp_path / "run")
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < losses[0]
    assert all(0 < kept <= 1 for kept in found.evaluation["validation"].kept)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run" / "model")
    assert model.settings.selection is not None
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert tokenizer.convert_tokens_to_ids("<extra_id_0>") == len(tokenizer) - 1 == model.config.vocab_size - 1
    # The evaluation is the mean over the labels of all rows, each counted once.
    rows = [run.maker().prepare(run, False).validation["validation"][i] for i in range(6)]
    total = count = 0.0
    for row in rows:
        with torch.no_grad():
            logits = model(**{name: x[None] for name, x in row.items()}).logits[0].log_softmax(-1)
        total -= float(logits.gather(-1, row["labels"][:, None]).sum())
        count += len(row["labels"])
    assert found.evaluation["validation"].loss == pytest.approx(total / count, rel=1e-5)
    assert found.record.tokens == 8 * 4 * run.data.spans().targets


def test_a_resumed_run_is_the_same_run(run, tmp_path):
    train(run, tmp_path / "whole")
    train(run, tmp_path / "cut")
    for gone in ("model", "checkpoint-8"):
        (tmp_path / "cut" / gone).rename(tmp_path / f"gone-{gone}")
    assert train(run, tmp_path / "cut", resume=True).step == 8
    same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"start": Start(model="zoo:memory")}, "begins with new weights"),
        ({"model": MODEL | {"attention": "standard", "memory_epsilon": 0.1}}, "model.attention=selective"),
        ({"model": MODEL | {"vocab_size": 100}}, "390 tokens, sentinels included, and the model's vocabulary 100"),
        ({"model": MODEL | {"d_ff": 0}}, "model.d_ff must be at least 1"),
        ({"model": {"hidden_size": 8}}, "hidden_size"),
    ],
)
def test_what_makes_no_sense_is_told(run, wrong, why):
    with pytest.raises(SelattnError, match=why):
        t5_config(dataclasses.replace(run, **wrong), None)

"""Every shipped run builds, is what the paper says, and takes a step when it is shrunk."""

import dataclasses
import json
import tracemalloc

import pytest
import torch

from lab.runs import RUNS, find_run
from lab.scales import PAPER
from lab.t5 import SpanData
from lab.tasks import Copy, Parity, VariableAssignment
from selattn.cli.settings import override
from selattn.errors import SelattnError
from selattn.models import SelectiveForCausalLM
from selattn.models.formats import skeleton
from selattn.models.summary import parameters_by_part
from selattn.training import model, train
from selattn.training.config import Machine, TextData
from selattn.training.datasets import Data
from selattn.training.model import model_config

# The paper's table of parameter counts, by d.


T5_PARAMETERS = {"small": 60_506_624, "base": 222_903_552, "large": 737_668_096}  # of the first T5, as published


class Noise(torch.utils.data.Dataset):
    """Rows as a text has them, without a text."""

    def __init__(self, size, context, vocabulary):
        self.size, self.context, self.vocabulary = size, context, vocabulary

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        ids = torch.randint(4, self.vocabulary, (self.context,), generator=torch.Generator().manual_seed(index))
        mask = torch.ones(self.context, dtype=torch.int64)
        mask[self.context - index % 3 :] = 0
        return {"input_ids": ids, "labels": ids.where(mask.bool(), -100), "attention_mask": mask}


class SpanNoise(Noise):
    """Rows as span corruption has them."""

    def __getitem__(self, index):
        row = super().__getitem__(index)
        labels = row["labels"][:5]
        given = {"input_ids": row["input_ids"], "attention_mask": row["attention_mask"]}
        return given | {"labels": labels, "decoder_attention_mask": (labels != -100).long()}


def shrunk(run):
    """The same run with everything made small; what the run is about stays."""
    model = dict(run.model)
    if isinstance(run.data, SpanData):
        sizes = {"d_model": 16, "d_ff": 24, "d_kv": 4, "num_layers": 1, "num_decoder_layers": 2, "num_heads": 2}
        return _shrunk(
            run, model | sizes | {"vocab_size": 160}, dataclasses.replace(run.data, vocabulary=32, context=8)
        )
    heads = 4 if model["num_attention_heads"] > model["num_hidden_layers"] else 2
    model |= {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": heads, "head_dim": 4}
    small = {"variable-assignment": VariableAssignment(2, 3, 2), "copy": Copy(2), "parity": Parity(4)}
    data = (
        dataclasses.replace(run.data, vocabulary=32, context=8)
        if isinstance(run.data, TextData)
        else small[run.data.name]
    )
    return _shrunk(run, model, data)


def _shrunk(run, model, data):
    return dataclasses.replace(
        run,
        name="shrunk",
        model=model,
        data=data,
        batch=dataclasses.replace(run.batch, size=2),
        schedule=dataclasses.replace(run.schedule, steps=1, warmup=int(run.schedule.decay == "inverse_sqrt")),
        evaluation=dataclasses.replace(run.evaluation, every=1, rows=2, batch=2, target=None),
        machine=Machine(precision=run.machine.precision),
        log_every=1,
    )


SHRUNK = {json.dumps(shrunk(find_run(name)).to_dict()): name for name in reversed(RUNS)}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_builds(name):
    run = find_run(name)
    assert run.name == name
    with torch.device("meta"):
        model = run.maker().make(run, None).model
    if not isinstance(run.data, SpanData):
        assert model.config.max_position_embeddings == run.data.context
    json.dumps(run.to_dict())


@pytest.mark.parametrize("name", sorted(SHRUNK.values()))
def test_a_shrunk_run_takes_a_step(name, tmp_path):
    """Runs that are the same when they are shrunk are tried once."""
    run = shrunk(find_run(name))
    data = None
    if isinstance(run.data, TextData):
        noise = (SpanNoise if isinstance(run.data, SpanData) else Noise)(2, run.data.context, run.data.vocabulary)
        data = Data(noise, {"validation": noise})
    finished = train(run, tmp_path / "run", data=data)
    assert finished.step == 1
    assert finished.evaluation["validation"].loss > 0


def test_the_paper_s_settings():
    run = find_run("c4-d12-selective")
    assert (run.optimizer.lr, run.optimizer.beta1, run.optimizer.beta2) == (0.005, 0.9, 0.999)
    assert (run.schedule.steps, run.schedule.warmup, run.schedule.decay) == (524_288, 1_000, "cosine")
    assert (run.batch.size, run.data.context, run.data.vocabulary) == (256, 512, 8000)
    assert run.data.layout == "documents"
    assert find_run("c4-d12-context2048-memory").batch.size == 128
    assert find_run("c4-d12-memory").model["memory_epsilon"] == 0.1
    assert find_run("c4-d10-without-shift").schedule.steps == 65_536
    task = find_run("variable-assignment-selective")
    assert (task.data.variables, task.data.values, task.data.assignments) == (3, 1000, 128)
    assert (task.batch.size, task.schedule.steps, task.model["num_hidden_layers"]) == (2048, 65_536, 3)
    assert find_run("copy-standard").data.context == 3 + 2 * 24
    assert list(PAPER.sizes) == [8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28]


@pytest.mark.parametrize("size", T5_PARAMETERS)
def test_t5_has_its_published_sizes_and_settings(size):
    run = find_run(f"c4-t5-{size}-selective")
    with torch.device("meta"):
        model = run.maker().make(run, None).model
    assert sum(p.numel() for p in model.parameters()) == T5_PARAMETERS[size]
    spans = run.data.spans()
    assert (run.batch.size, run.data.context, spans.targets, run.schedule.steps) == (128, 512, 114, 524_288)
    assert (run.data.noise, run.data.span, run.schedule.warmup) == (0.15, 3.0, 10_000)


def test_the_zoo_fits_into_its_forty_megabytes():
    total = 0
    for name in RUNS:
        if name.startswith("zoo-"):
            with torch.device("meta"):
                model = SelectiveForCausalLM(model_config(find_run(name)))
            total += 2 * sum(p.numel() for p in model.parameters())
    assert total < 39_000_000  # bytes in bf16; tokenizers and records take some more


@pytest.mark.parametrize(
    "settings",
    [
        f"batch.size={10**9}",
        f"evaluation.rows={10**9} evaluation.batch={10**9}",
        f"model.hidden_size={10**9}",
        "model.num_hidden_layers=100000 model.hidden_size=100000",
        f"data.bits={10**12}",
    ],
)
def test_a_run_beyond_all_memory_takes_none(tmp_path, settings):
    run = override(find_run("parity-small-selective"), settings.split())
    tracemalloc.start()
    try:
        with pytest.raises(SelattnError, match=r"this run needs at least .* are free: make the model, batch.micro"):
            train(run, tmp_path / "run")
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["c4-d12-memory", "zoo-memory", "text-small-selective", "copy-standard"])
def test_what_is_counted_is_needed(name, monkeypatch):
    """No more weights than the model has, and not far fewer."""
    run, counted = find_run(name), []
    monkeypatch.setattr(model, "check_memory", lambda run, weights, vocabulary: counted.append(weights))
    run.maker().check(run)
    exact = sum(parameters_by_part(skeleton(model_config(run))).values())
    assert exact / 2 < counted[0] <= exact

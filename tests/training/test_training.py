"""What a run does: losses, the log, evaluation, precision, checkpointing, fine-tuning, targets."""

import dataclasses
import json

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from selattn.data import read_tokenizer
from selattn.errors import SelattnError
from selattn.models import SelectiveForCausalLM
from selattn.training import folder, train
from selattn.training.config import Batching, Evaluation, Machine, Optimizer, Schedule, Start, TextData
from selattn.training.datasets import prepare
from tests.training.tiny import MODEL, log, same_run, tiny, weights


def short(**changes):
    """Four steps without dropout."""
    settings = {"model": MODEL, "schedule": Schedule(steps=4, warmup=1), "log_every": 1} | changes
    return tiny(**settings)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "run"
    train(short(), path)
    return path


def close(one, other, rtol=1e-5):
    theirs = weights(other)
    for name, value in weights(one).items():
        torch.testing.assert_close(value, theirs[name], rtol=rtol, atol=1e-6)
    for ours, record in zip(log(one), log(other), strict=True):
        assert ours["step"] == record["step"]
        if "loss" in ours:
            assert ours["loss"] == pytest.approx(record["loss"], rel=rtol)


def test_the_trainer_takes_the_steps_of_a_plain_loop(plain):
    """AdamW, warm-up and cosine, clipping and the memory term, by hand."""
    run = short()
    torch.manual_seed(run.seed)
    from selattn.training.model import model_config

    model = SelectiveForCausalLM(model_config(run)).train()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.999), eps=1e-8)
    data = prepare(run).train
    rates = [0.0, 3e-3, 3e-3 * 0.75, 3e-3 * 0.25]  # one step of warm-up, then the cosine over three
    for step, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        batch = torch.utils.data.default_collate([data[8 * step + i] for i in range(8)])
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    theirs = weights(plain)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-6)


def test_the_log_says_what_the_loss_is_made_of(plain):
    for record in log(plain):
        if "loss" in record:
            assert record["loss"] == pytest.approx(record["lm_loss"] + record["memory_loss"])
            assert record["memory_loss"] == pytest.approx(0.1 * sum(record["kept"]) / 2, rel=1e-3)
    assert [record["tokens"] for record in log(plain) if "loss" in record] == [72, 144, 216, 288]


def test_a_record_is_the_mean_of_its_steps(plain, tmp_path):
    train(short(log_every=2), tmp_path / "run")
    single = [record["lm_loss"] for record in log(plain) if "loss" in record]
    pairs = [record["lm_loss"] for record in log(tmp_path / "run") if "loss" in record]
    assert pairs == pytest.approx([(single[0] + single[1]) / 2, (single[2] + single[3]) / 2])
    close_weights = weights(plain)
    assert all(value.equal(close_weights[name]) for name, value in weights(tmp_path / "run").items())


def test_tensorboard_has_the_same(plain):
    events = EventAccumulator(str(plain / "tensorboard"))
    events.Reload()
    scalars = [event.value for event in events.Scalars("train/loss")]
    assert scalars == pytest.approx([record["loss"] for record in log(plain) if "loss" in record])
    assert {"train/kept/layer_0", "train/kept/layer_1", "eval/validation_accuracy"} <= set(events.Tags()["scalars"])
    for name in ("learning_rate", "tokens", "lm_loss", "memory_loss", "grad_norm"):
        seen = [(event.step, event.value) for event in events.Scalars(f"train/{name}")]
        records = [record for record in log(plain) if "loss" in record]
        assert [step for step, _ in seen] == [record["step"] for record in records]
        assert [value for _, value in seen] == pytest.approx([record[name] for record in records])
    assert all(event.value > 0 for event in events.Scalars("train/tokens_per_second"))


def test_the_record_says_how_the_model_came_about(plain):
    record = json.loads((plain / "model" / "training_record.json").read_text())
    assert record["run"] == json.loads(json.dumps(short().to_dict())) == json.loads((plain / "run.json").read_text())
    assert record["seed"] == 0
    assert (record["steps"], record["tokens"], record["devices"]) == (4, 288, 1)
    assert record["parameters"] == sum(value.numel() for value in weights(plain).values())
    assert record["evaluation"] == log(plain)[-1]["evaluation"]
    assert {"versions", "machine", "command", "seconds"} <= record.keys()


def test_the_model_can_be_loaded_and_gives_the_recorded_loss(plain):
    model = SelectiveForCausalLM.from_pretrained(plain / "model").eval()
    record = json.loads((plain / "model" / "training_record.json").read_text())
    data = prepare(short())
    for name, rows in data.validation.items():
        batch = torch.utils.data.default_collate([rows[i] for i in range(10)])
        with torch.no_grad():
            outputs = model(**batch, use_cache=False)
        found = record["evaluation"][name]
        assert found["loss"] == pytest.approx(outputs.lm_loss.item(), rel=1e-5)
        assert found["accuracy"] == pytest.approx(data.task.accuracy(outputs.logits, batch["labels"]))
        assert found["kept"] == pytest.approx(outputs.kept.tolist(), rel=1e-5)
        assert model(**batch).past_key_values is not None  # what is saved goes on, like any model


@pytest.mark.parametrize("changes", [{"batch": Batching(size=8)}, {"batch": Batching(size=8, micro=2)}])
def test_micro_batches_do_not_matter(plain, tmp_path, changes):
    train(short(**changes), tmp_path / "run")
    close(plain, tmp_path / "run", rtol=1e-4)


def test_recomputation_does_not_matter(plain, tmp_path):
    train(short(machine=Machine(recompute=True)), tmp_path / "run")
    close(plain, tmp_path / "run")


def test_worker_processes_do_not_matter(plain, tmp_path):
    train(short(batch=Batching(size=8, micro=4, workers=1)), tmp_path / "run")
    close(plain, tmp_path / "run", rtol=0)


def test_bf16_computes_in_bf16_and_keeps_fp32_weights(plain, tmp_path):
    train(short(machine=Machine(precision="bf16")), tmp_path / "run")
    first, other = log(plain)[0]["loss"], log(tmp_path / "run")[0]["loss"]
    assert first != other
    assert first == pytest.approx(other, rel=1e-2)
    assert all(value.dtype == torch.float32 for value in weights(tmp_path / "run").values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit")  # by inductor itself
def test_compilation_does_not_matter(plain, tmp_path):
    train(short(machine=Machine(compile=True)), tmp_path / "run")
    close(plain, tmp_path / "run", rtol=1e-3)


def test_the_target_ends_the_run(tmp_path):
    """And it stays ended: resuming exports, it does not train on."""
    run = tiny(evaluation=Evaluation(every=2, rows=10, batch=4, target=1e-9), schedule=Schedule(steps=60, warmup=0))
    run = dataclasses.replace(run, data=dataclasses.replace(run.data, values=2))
    finished = train(run, tmp_path / "run")
    assert finished.evaluation["validation"].accuracy > 0
    assert finished.step < 60
    assert folder.newest(tmp_path / "run") == finished.step
    folder.shutil.rmtree(tmp_path / "run" / "model")
    assert train(run, tmp_path / "run", resume=True).step == finished.step


def test_a_diverging_run_stops_and_says_so(tmp_path):
    run = tiny(model=MODEL, optimizer=Optimizer(lr=1e38, clip=0), schedule=Schedule(steps=12, warmup=0), log_every=1)
    with pytest.raises(SelattnError, match=r"the run has diverged; lower optimizer\.lr"):
        train(run, tmp_path / "run")


# ---- fine-tuning ----


@pytest.fixture(scope="module")
def standard(tmp_path_factory):
    path = tmp_path_factory.mktemp("standard") / "run"
    train(short(model=MODEL | {"attention": "standard", "memory_epsilon": 0.0}), path)
    return path


def test_a_standard_model_becomes_selective(standard, tmp_path):
    """With strength 0 the selective model is the standard one; the ramp ends at full strength."""
    run = short(model={"attention": "selective"}, start=Start(str(standard), ramp=3), evaluation=Evaluation(1, 10, 4))
    first = dataclasses.replace(run, optimizer=Optimizer(lr=0.0), schedule=Schedule(steps=4, warmup=0))
    train(first, tmp_path / "frozen")
    base = json.loads((standard / "model" / "training_record.json").read_text())["evaluation"]["validation"]["loss"]
    model = SelectiveForCausalLM.from_pretrained(tmp_path / "frozen" / "model").eval()
    rows = prepare(first).validation["validation"]
    batch = torch.utils.data.default_collate([rows[i] for i in range(10)])
    evaluations = [record for record in log(tmp_path / "frozen") if "evaluation" in record]
    for record, strength in zip(evaluations, (1 / 3, 2 / 3, 1.0, 1.0), strict=True):
        with torch.no_grad():
            expected = model(**batch, selection_strength=strength, use_cache=False).lm_loss.item()
        assert record["evaluation"]["validation"]["loss"] == pytest.approx(expected, rel=1e-5)
    with torch.no_grad():
        assert model(**batch, selection_strength=0.0, use_cache=False).lm_loss.item() == pytest.approx(base, rel=1e-5)
    assert model.config.selects
    assert model.config.selection_strength == 1.0


def test_a_ramp_resumes_where_it_was(standard, tmp_path):
    from tests.interrupted import Interrupt

    run = tiny(model={"attention": "selective"}, start=Start(str(standard), ramp=8))
    train(run, tmp_path / "whole")
    assert train(run, tmp_path / "run", progress=Interrupt(6)).interrupted
    train(run, tmp_path / "run", resume=True)
    same_run(tmp_path / "whole", tmp_path / "run")


def test_what_a_fine_tuned_model_has_to_fit(standard, tmp_path):
    start = Start(str(standard))
    wrong = {
        "the data has 108 tokens and the model's vocabulary 8": dataclasses.replace(short().data, values=105),
        "rows have 13 tokens and the model has 9 positions: fine-tuning cannot change that": dataclasses.replace(
            short().data, assignments=5
        ),
    }
    for message, data in wrong.items():
        with pytest.raises(SelattnError, match=message):
            train(short(model={}, start=start, data=data), tmp_path / "run", overwrite=True)
    with pytest.raises(SelattnError, match=r"start\.ramp has nothing to raise"):
        train(short(model={}, start=Start(str(standard), ramp=2)), tmp_path / "run", overwrite=True)
    with pytest.raises(SelattnError, match=r"start\.ramp has nothing to ramp from: set start\.model"):
        train(short(start=Start(ramp=2)), tmp_path / "run", overwrite=True)
    with pytest.raises(SelattnError, match=r"model\.hidden_size is 16 in .* and 32 in the run"):
        train(short(model={"hidden_size": 32}, start=start), tmp_path / "run", overwrite=True)
    with pytest.raises(SelattnError, match="there is no model nowhere"):
        train(short(model={}, start=Start("nowhere")), tmp_path / "run", overwrite=True)


def test_a_model_that_selects_has_nothing_to_ramp_from(plain, standard, tmp_path):
    """Unless a layer of it is to begin to select."""
    with pytest.raises(SelattnError, match=r"nothing to ramp from: the layers of .* that are to select do so already"):
        train(short(model={}, start=Start(str(plain), ramp=2)), tmp_path / "run")
    half = {"attention": ["selective", "standard"]}
    train(short(model=half, start=Start(str(standard), ramp=2)), tmp_path / "half")
    train(short(model={"attention": "selective"}, start=Start(str(tmp_path / "half"), ramp=2)), tmp_path / "run")


# ---- text ----


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    sentence = "the quick brown fox jumps over a lazy dog and then sleeps for hours in warm grass by an old mill"
    words = sentence.split()
    documents = (" ".join(words[(i * j) % len(words)] for j in range(5, 25 + i % 30)) for i in range(200))
    path.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    return path


@pytest.mark.parametrize("layout", ["documents", "packed"])
def test_text_is_trained_on(text, tmp_path, monkeypatch, layout):
    """Both layouts, with a tokenizer that is trained on the way and saved beside the model."""
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))
    data = TextData(source=str(text), vocabulary=300, context=16, layout=layout, validation=0.1)
    finished = train(short(data=data), tmp_path / "run")
    assert finished.evaluation["validation"].loss < 6
    assert read_tokenizer(tmp_path / "run" / "model").vocab_size == 300
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (config["vocab_size"], config["max_position_embeddings"], config["bos_token_id"]) == (300, 16, 3)
    for start in ("run", "run/checkpoint-4"):
        tuned = short(model={}, start=Start(str(tmp_path / start)), data=dataclasses.replace(data, vocabulary=9999))
        train(tuned, tmp_path / "tuned", overwrite=True)  # with the tokenizer of the model that is tuned
        assert (
            read_tokenizer(tmp_path / "tuned" / "model").fingerprint
            == read_tokenizer(tmp_path / "run" / "model").fingerprint
        )

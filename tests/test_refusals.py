"""What would be silently wrong is refused in one line that says what to do: each case was accepted once."""

import math

import pytest
import torch
from transformers import Trainer, TrainingArguments

import selattn
from selattn.cache import make_policy
from selattn.errors import SelattnError
from selattn.models import Engine
from selattn.training import train
from selattn.training.config import Optimizer, Schedule
from selattn.training.trainer import SelectiveTrainer
from selattn.utils.files import write_json
from selattn.utils.records import write_record
from tests.evaluation import questions
from tests.evaluation.folders import model_folder
from tests.models.stock.families import tiny as stock
from tests.models.stock.families import tokens
from tests.models.stock.test_t5 import tiny as t5
from tests.models.tiny import tiny, token_ids
from tests.models.training import CHECKPOINTING, enable_checkpointing
from tests.training.tiny import tiny as tiny_run


def refused(call, says):
    with pytest.raises(SelattnError) as caught:
        call()
    line = str(caught.value)
    assert says in line
    assert "\n" not in line
    assert len(line) < 400


def bidirectional(name, **changes):
    model = t5() if name == "t5" else stock(name)
    for key, value in changes.items():
        setattr(model.config, key, value)
    return selattn.make_selective(model)


def llm2vec():
    """The layers alone are told, as some recipes for embeddings do it."""
    model = stock("llama")
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    return selattn.make_selective(model)


NOT_CAUSAL = {
    "gemma3": lambda: bidirectional("gemma3_text", use_bidirectional_attention=True),
    "gemma2": lambda: bidirectional("gemma2", use_bidirectional_attention=True),
    **{f"{name} by its config": lambda name=name: bidirectional(name, is_causal=False) for name in ("llama", "gpt2")},
    "t5 by its config": lambda: bidirectional("t5", is_causal=False),
    "layers": llm2vec,
    "a config that was changed later": lambda: edited(selattn.make_selective(stock("llama"))),
}


def edited(model):
    model.config.is_causal = False
    return type(model)(model.config)


@pytest.mark.parametrize("name", NOT_CAUSAL)
def test_models_that_look_ahead(name):
    refused(NOT_CAUSAL[name], "attends to later tokens")


REENTRANT = {"use_reentrant": True}


def made(kind, **settings):
    model = t5() if kind == "t5" else stock(kind)
    return selattn.make_selective(model, memory_epsilon=0.1, **settings).train()


def loss_of(model):
    ids = tokens(2, 12)
    return model(input_ids=ids, labels=ids).loss


def before(kind):
    model = t5() if kind == "t5" else stock(kind)
    enable_checkpointing(model, REENTRANT)
    return selattn.make_selective(model)


def inside(kind):
    """The part inside is a class of transformers."""
    model = made(kind)
    enable_checkpointing(model.decoder if kind == "t5" else model.model, REENTRANT)
    loss_of(model).backward()


def trained(kind, folder):
    how = {CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": REENTRANT}
    args = TrainingArguments(str(folder), max_steps=1, report_to="none", use_cpu=True, disable_tqdm=True, **how)
    rows = [{"input_ids": row, "labels": row} for row in tokens(4, 12)]
    Trainer(made(kind), args, train_dataset=rows).train()


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_reentrant_checkpointing(kind, tmp_path):
    for call in (
        lambda: enable_checkpointing(made(kind), REENTRANT),
        lambda: before(kind),
        lambda: inside(kind),
        lambda: trained(kind, tmp_path),
    ):
        refused(call, "reentrant gradient checkpointing can lose gradients")


@pytest.mark.parametrize("kind", ["llama", "gemma2", "t5"])
def test_the_gradient_with_checkpointing_is_the_one_without(kind):
    """That of the memory term alone."""

    def gradients(model):
        ids = tokens(2, 12)
        model(input_ids=ids, labels=ids).loss.backward()
        return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}

    plain, again = made(kind).double(), made(kind).double()
    enable_checkpointing(again, {"use_reentrant": False})
    found, wanted = gradients(again), gradients(plain)
    without = gradients(selattn.make_selective(t5() if kind == "t5" else stock(kind)).train().double())
    assert found.keys() == wanted.keys()
    for name, each in wanted.items():
        torch.testing.assert_close(found[name], each, msg=name)
    assert any(not torch.allclose(without[name], each) for name, each in wanted.items() if name in without)


SETTINGS = {
    "memory_epsilon": [-1, math.nan, math.inf, "a", None, True],
    "memory_tau": [0, -1, math.nan, "a", [1]],
    "strength": [2, -0.1, math.nan, "a", None, True],
    "backend": ["gpu", None],
    "cache_policy": ["slective", None, 3, selattn.Window(8)],
    "cache_budgets": [1, 2.5, "a", []],
}
NAMED = {"backend": "unknown backend", "cache_policy": "policy", "cache_budgets": "budget"}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in SETTINGS.items() for value in values])
def test_settings_of_both_kinds_of_models(name, value):
    says = NAMED.get(name, f"{name} must be a number")
    refused(lambda: selattn.make_selective(stock("llama"), **{name: value}), says)
    own = {"strength": "selection_strength"}.get(name, name)
    refused(lambda: selattn.SelectiveConfig(**{own: value}), says)


def test_settings_that_were_edited_in_a_config():
    model = selattn.make_selective(stock("llama"))
    model.config.selattn["memory_epsilon"] = -1
    refused(lambda: loss_of(model), "memory_epsilon must be a number of at least 0, not -1")


def test_what_policies_and_forms_are_made_of():
    for make in (selattn.H2O, selattn.Threshold):
        refused(lambda make=make: make("a"), "not 'a'")
    for name in ("bias", "deviation"):
        for value in ("a", math.nan):
            refused(lambda name=name, value=value: selattn.NewForm(**{name: value}), "must be a finite number")


class Oldest(selattn.Policy):
    """Does not say that it reads no F."""

    def rank(self, kept):
        return -kept.position.double()


IDS = token_ids(1, 12)
NEEDS_F = ["selective", "selective-per-head", "threshold=1", Oldest()]


def standard(kind, **changes):
    if kind == "stock":
        return selattn.make_selective(stock("llama"), selection=None, **changes)
    return tiny(attention="standard", **changes)


def decoding(model, **limits):
    cache = model.new_cache(**limits)
    model(IDS, past_key_values=cache)


@pytest.mark.parametrize("policy", NEEDS_F, ids=selattn.cache.policy_name)
@pytest.mark.parametrize("kind", ["stock", "ours"])
def test_policies_that_need_f_where_nothing_selects(kind, policy):
    model = standard(kind)
    layers = model.description.layers
    for call in (
        lambda: model(IDS, cache_budgets=4, cache_policy=policy),
        lambda: model(IDS, cache_budgets=4, cache_policy=policy, use_cache=False),
        lambda: model.generate(IDS, max_new_tokens=2, cache_budgets=4, cache_policy=policy),
        lambda: decoding(model, budgets=4, policy=policy),
        lambda: model(IDS, past_key_values=selattn.SelectiveCache(layers, 4, policy)),
        lambda: model.evictions(IDS, selattn.Budgets(4), make_policy(policy)),
    ):
        refused(call, "needs F, and this model selects nothing: choose h2o, tova or window+4")
    other = selattn.Window(1) if isinstance(policy, Oldest) else "h2o"
    model(IDS, cache_budgets=4, cache_policy=other)


@pytest.mark.parametrize("kind", ["stock", "ours"])
def test_the_policy_of_a_config_needs_f_only_once_a_budget_is_in_force(kind):
    model = standard(kind)
    assert model.description.policy == "selective"
    model(IDS)
    model.generate(IDS, max_new_tokens=2)
    refused(lambda: model(IDS, cache_budgets=4), "choose h2o, tova or window+4")
    refused(lambda: standard(kind, cache_budgets=4)(IDS), "choose h2o, tova or window+4")
    standard(kind, cache_budgets=4, cache_policy="window")(IDS)


def test_one_layer_that_selects_is_enough():
    tiny(attention=["standard", "selective"])(IDS, cache_budgets=4)


class NoNumber(selattn.Policy):
    """0 / 0 for the tokens that no query has attended to."""

    needs_f = False

    def rank(self, kept):
        return kept.position.double() * 0 / 0


class NoRank(selattn.Policy):
    pass


def masked(mask):
    return lambda: tiny()(IDS[:, :3], attention_mask=torch.tensor([mask]))


def generated(**limits):
    return lambda: tiny().generate(IDS, max_new_tokens=2, **limits)


NUMBERS = "must hold whole numbers, or true and false"
FLAGS = "attention_mask must be 1 for real tokens and 0 for padding"
WHOLE = selattn.Sequences
CALLS = {
    "a document's number returns": (lambda: WHOLE.from_documents(torch.tensor([[0, 1, 0, 1]])), "must not come again"),
    "the number of padding is one's own": (lambda: WHOLE.from_documents(torch.tensor([[0, 0, 1, 0]])), "by a mask"),
    "padding splits a document": (
        lambda: WHOLE.from_documents(torch.tensor([[1, 0, 1]]), torch.tensor([[1, 0, 1]])),
        "must not come again",
    ),
    "seq_idx returns": (lambda: tiny()(IDS[:, :4], seq_idx=torch.tensor([[0, 1, 0, 1]])), "must not come again"),
    "a mask of fractions": (lambda: WHOLE.from_mask(torch.tensor([[0.0, 1.0]])), NUMBERS),
    "a mask of fractions of documents": (
        lambda: WHOLE.from_documents(torch.tensor([[0, 1]]), torch.tensor([[0.0, 1.0]])),
        NUMBERS,
    ),
    "positions that are fractions": (lambda: WHOLE.from_position_ids(torch.tensor([[0.0, 1.0]])), NUMBERS),
    "a mask to be added": (masked([-math.inf, 0.0, 0.0]), FLAGS),
    "half a mask": (masked([0.5, 1.0, 1.0]), FLAGS),
    "a mask to be added, stock": (
        lambda: selattn.make_selective(stock("llama"))(IDS[:, :2], attention_mask=torch.tensor([[-math.inf, 0.0]])),
        FLAGS,
    ),
    "a window of more tokens than there are": (lambda: make_policy("window+999999999999999999999"), "must be at most"),
    "NaN ranks in decoding": (generated(cache_budgets=4, cache_policy=NoNumber()), "gives a rank that is NaN"),
    "NaN ranks in a forward": (lambda: tiny()(IDS, cache_budgets=4, cache_policy=NoNumber()), "a rank that is NaN"),
    "NaN ranks in an order": (
        lambda: selattn.eviction_order(*torch.randn(2, 1, 2, 9, 4), budget=3, policy=NoNumber()),
        "gives a rank that is NaN",
    ),
    "a policy without budgets": (generated(cache_policy="h2o"), "without cache_budgets nothing is evicted"),
    "a policy without budgets and cache": (generated(cache_policy="h2o", use_cache=False), "nothing is evicted"),
    "the class of all policies": (
        generated(cache_budgets=4, cache_policy=selattn.Policy),
        "the policy Policy has no rank",
    ),
    "a policy without a rank": (generated(cache_budgets=4, cache_policy=NoRank()), "the policy NoRank has no rank"),
    "a class that needs arguments": (generated(cache_budgets=4, cache_policy=selattn.Threshold), "give an object"),
    "a number to be explored": (lambda: selattn.explore("zoo:memory", 5), "the text must be a str, not 5"),
    "a number to be traced": (lambda: selattn.trace("zoo:memory", 5), "the text must be a str, not 5"),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name):
    refused(*CALLS[name])


def test_what_is_close_to_these_and_right():
    WHOLE.from_documents(torch.tensor([[5, 5, 2, 9]]))
    WHOLE.from_documents(torch.tensor([[0, 0, 1, 0]]), torch.tensor([[True, True, True, False]]))
    masked([0.0, 1.0, 1.0])()
    tiny().generate(IDS, max_new_tokens=2, cache_policy="none")
    tiny().generate(IDS, max_new_tokens=2, cache_policy="threshold=1")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have(value, tmp_path):
    body = {"models": [{"loss": 1.0}, {"loss": (2.0, value)}]}
    for write in (
        lambda file: write_json(file, body),
        lambda file: write_record(file, body, None),
        lambda file: selattn.Budgets(4).save(file, found=body),
    ):
        refused(lambda write=write: write(tmp_path / "a.json"), f"models[1].loss[1] is {value}")
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("steps", [2, 3])
def test_a_run_that_diverges_after_its_last_log(steps, tmp_path):
    schedule, optimizer = Schedule(steps=steps, warmup=0), Optimizer(lr=1e30)
    run = tiny_run(optimizer=optimizer, schedule=schedule, log_every=5)
    for resume in (False, True):
        refused(lambda resume=resume: train(run, tmp_path, resume=resume), "the run has diverged; lower optimizer.lr")
        assert not (tmp_path / "model").exists()


def test_weights_that_are_no_numbers_and_were_never_evaluated(tmp_path, monkeypatch):
    """The Trainer evaluates at the end, but for versions that do not."""
    run = tiny_run(optimizer=Optimizer(lr=1e30), schedule=Schedule(steps=3, warmup=0), log_every=5)
    monkeypatch.setattr(SelectiveTrainer, "evaluate", lambda *args, **kwargs: {})
    refused(lambda: train(run, tmp_path), "the run has diverged")


def test_answers_of_a_model_that_gives_no_numbers(tmp_path):
    """lm-eval would choose one of them, and count how often that is right."""
    folder, asked = model_folder(tmp_path / "model"), tmp_path / "questions"
    model = selattn.SelectiveForCausalLM.from_pretrained(folder)
    model.model.layers[0].attention.q_proj.weight.data.fill_(math.nan)
    model.save_pretrained(folder)
    questions.write(asked)
    refused(lambda: selattn.evaluate(folder, tasks=["piqa"], data_dir=asked), "the likelihood of a choice is NaN")


def test_an_engine_looks_at_every_row():
    """A row that joins with a token whose embedding is spoilt; the others could go on."""
    model = tiny()
    model.model.embed_tokens.weight.data[5] = math.nan
    engine = Engine(model, model.new_cache())
    engine.add([1, 2])
    engine.step()
    engine.add([1, 5])
    refused(engine.step, "the logits of the next token are NaN")
    assert engine.rows == (0,)
    assert engine.step().keys() == {0}

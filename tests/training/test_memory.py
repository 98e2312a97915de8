"""Sizes that no memory holds are refused before any of it is taken."""

import dataclasses
import tracemalloc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.runs import RUNS, find_run
from selattn.errors import SelattnError
from selattn.models import SelectiveForCausalLM
from selattn.models.summary import parameters_by_part
from selattn.models.weights import skeleton
from selattn.training import memory, train
from selattn.training.config import Batching, Evaluation, Machine
from selattn.training.memory import check_memory, needs
from selattn.training.model import model_config
from selattn.training.overrides import override
from selattn.utils.memory import available_memory
from tests.training.tiny import MODEL, tiny

HUGE = 10**9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": Batching(HUGE)}, r"1,000,000,000 rows of 9 tokens at once; make batch\.micro"),
        ({"batch": Batching(HUGE, micro=1)}, r"the 1,000,000,000 rows of a step; set a smaller batch\.size"),
        ({"evaluation": Evaluation(5, HUGE, HUGE)}, r"rows of an evaluation at once; set a smaller evaluation\.batch"),
        ({"model": MODEL | {"hidden_size": HUGE}}, "for the model with its gradients and AdamW's moments"),
        ({"model": MODEL | {"num_hidden_layers": 10**5, "hidden_size": 10**5}}, "for the model with its gradients"),
        ({"model": MODEL | {"vocab_size": 10**12}}, "for the model with its gradients"),
    ],
)
def test_what_cannot_fit_takes_no_memory(tmp_path, changes, message):
    tracemalloc.start()
    try:
        with pytest.raises(SelattnError, match=f"this run needs at least .*{message}") as error:
            train(tiny(**changes), tmp_path / "run")
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_tasks_know_their_sizes_without_naming_all_tokens():
    for name in ("copy-small-standard", "variable-assignment-small-standard", "parity-small-standard"):
        run = find_run(name)
        assert run.data.vocab_size == len(run.data.tokens)
    run = override(find_run("copy-small-standard"), [f"data.symbols={10**12}"])
    with pytest.raises(SelattnError, match="this run needs at least"):
        check_memory(run, 1, torch.device("cpu"))


def test_layers_are_counted_before_they_are_made():
    with pytest.raises(SelattnError, match=r"model\.num_hidden_layers must be at most 100,000"):
        override(tiny(), [f"model.num_hidden_layers={HUGE}"])


@pytest.mark.parametrize("name", ["c4-d12-memory", "zoo-memory", "text-small-selective", "copy-standard"])
def test_what_is_counted_is_needed(name):
    """No more parameters than the model has, and not far fewer."""
    run = find_run(name)
    exact = sum(parameters_by_part(skeleton(model_config(run))).values())
    assert exact / 2 < memory._sizes(run).parameters <= exact


def test_a_step_holds_at_least_what_is_counted():
    run = tiny(model=MODEL | {"vocab_size": 500}, batch=Batching(8))
    model = SelectiveForCausalLM(model_config(run))
    held = 0

    def pack(tensor):
        nonlocal held
        held += tensor.nbytes
        return tensor

    ids = torch.randint(0, 500, (8, run.data.context))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(ids, labels=ids, use_cache=False)
    _, _, _, step, _ = needs(run, 1).values()
    assert 0 < step < held


@given(st.integers(1, 64), st.integers(1, 8), st.sampled_from(["fp32", "bf16"]))
def test_devices_and_pieces_need_less_each(size, devices, precision):
    run = tiny(batch=Batching(size * devices), machine=Machine(precision=precision))
    alone, shared = (sum(needs(run, count).values()) for count in (1, devices))
    pieces = sum(needs(dataclasses.replace(run, batch=Batching(size * devices, micro=1)), 1).values())
    assert shared <= alone
    assert pieces <= alone


def test_what_is_free_decides(monkeypatch):
    run = tiny()
    needed = sum(needs(run, 1).values())
    for free, fits in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr("selattn.utils.memory.available_memory", lambda free=free: free)
        if fits:
            check_memory(run, 1, torch.device("cpu"))
        else:
            with pytest.raises(SelattnError, match="this run needs at least"):
                check_memory(run, 1, torch.device("cpu"))
    monkeypatch.setattr("selattn.utils.memory.available_memory", lambda: needed)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # two processes share the memory of the machine
    with pytest.raises(SelattnError, match="this run needs at least"):
        check_memory(run, 1, torch.device("cpu"))


def test_every_shipped_run_is_counted():
    assert all(sum(needs(make(), 1).values()) > 0 for make in RUNS.values())


def test_there_is_memory():
    assert 10**7 < available_memory() < 10**15

"""Rotary scaling as transformers spells it: the angles are Llama's, and what cannot be meant is refused."""

import json

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding

from selattn.errors import SelattnError
from selattn.models import SelectiveConfig, SelectiveForCausalLM
from selattn.models.decoder import rotary_angles
from tests.models.tiny import CONTEXT, padded, tiny, tiny_config, token_ids

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS = {
    "default": {"rope_type": "default"},
    "another base": {"rope_type": "default", "rope_theta": 500.0},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": {**YARN, "rope_theta": 5e5},
    "yarn, all of it": {**YARN, "beta_fast": 16, "beta_slow": 2.0, "attention_factor": 1.3, "truncate": False},
    "yarn, mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9},
    "llama3": {**LLAMA3, "original_max_position_embeddings": 12, "rope_theta": 1000.0},
    "its older spelling": {"type": "linear", "factor": 2},
}


@pytest.fixture(params=SCALINGS.values(), ids=SCALINGS)
def scaling(request):
    return dict(request.param)


def rotary(**changes):
    return tiny_config(positions="rotary", **changes)


def llama(scaling):
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": CONTEXT}
    return LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters=dict(scaling)))


@pytest.mark.parametrize("last", [CONTEXT - 5, CONTEXT - 1, 3 * CONTEXT])
def test_the_angles_are_llamas(scaling, last):
    positions = torch.stack([torch.arange(last - 9, last + 1), torch.arange(10)])
    wanted = llama(scaling)(torch.zeros(1), positions)
    for config in (rotary(rope_parameters=scaling), rotary(rope_scaling=scaling)):
        for ours, theirs in zip(rotary_angles(config, positions), wanted, strict=True):
            torch.testing.assert_close(ours[:, 0], theirs, rtol=0, atol=1e-5)


def test_the_base_may_stand_outside(scaling):
    """As in files of older models."""
    base = scaling.pop("rope_theta", 700.0)
    inside, outside = (
        rotary(rope_parameters={**scaling, "rope_theta": base}),
        rotary(rope_scaling=scaling, rope_theta=base),
    )
    assert inside.to_dict() == outside.to_dict()
    assert inside.rope_theta == base


def test_what_is_given_stays_as_it_is(scaling):
    before = dict(scaling)
    rotary(rope_parameters=scaling)
    assert scaling == before


def test_saved_and_loaded(scaling, tmp_path):
    model, ids = tiny(torch.float32, positions="rotary", rope_parameters=scaling), token_ids(2, 2 * CONTEXT)
    model.save_pretrained(tmp_path)
    again = SelectiveForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert again.config.rope_parameters == model.config.rope_parameters
    plain = tiny(torch.float32, positions="rotary")
    assert torch.equal(plain(ids).logits, model(ids).logits) == (scaling == SCALINGS["default"])
    plain.save_pretrained(tmp_path)
    later = SelectiveForCausalLM.from_pretrained(tmp_path, rope_scaling=scaling)
    assert torch.equal(later(ids).logits, model(ids).logits)


def test_changed_on_the_way(tmp_path):
    """What is given beside the name of a folder takes the place of what the folder says."""
    rotary(rope_parameters=SCALINGS["yarn"]).save_pretrained(tmp_path)
    linear = {"rope_type": "linear", "factor": 2.0}

    def loaded(**changes):
        config = SelectiveConfig.from_pretrained(tmp_path, **changes)
        return config.rope_theta, config.rope_parameters

    assert loaded() == (5e5, {**YARN, "rope_theta": 5e5})
    assert loaded(rope_theta=10000.0) == (10000.0, {**YARN, "rope_theta": 10000.0})
    assert loaded(rope_parameters=linear) == (5e5, {**linear, "rope_theta": 5e5})
    assert loaded(rope_scaling={**linear, "rope_theta": 3.0}) == (3.0, {**linear, "rope_theta": 3.0})
    assert loaded(rope_parameters=None) == (5e5, {"rope_type": "default", "rope_theta": 5e5})


def test_learned_positions_have_none():
    config = tiny_config(rope_theta=3.0)
    assert (config.rope_theta, config.rope_parameters) == (3.0, None)
    assert tiny_config(rope_parameters={"rope_type": "default"}).rope_parameters is None


def test_files_that_know_of_no_scaling(tmp_path):
    rotary(rope_theta=500.0).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved.pop("rope_parameters") == {"rope_type": "default", "rope_theta": 500.0}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    config = SelectiveConfig.from_pretrained(tmp_path)
    assert (config.rope_theta, config.rope_parameters) == (500.0, {"rope_type": "default", "rope_theta": 500.0})
    assert SelectiveConfig.from_pretrained(tmp_path, rope_theta=9.0).rope_theta == 9.0
    del saved["rope_theta"]
    (tmp_path / "config.json").write_text(json.dumps(saved))
    assert SelectiveConfig.from_pretrained(tmp_path).rope_theta == 10000.0


def test_padded_compiled_and_step_by_step(scaling):
    """Longer than the context where the scaling does not follow the length; else within it."""
    model = tiny(positions="rotary", rope_parameters=scaling, selection_source="separate")
    length = CONTEXT if scaling.get("rope_type") == "dynamic" else 2 * CONTEXT
    rows = [token_ids(length, seed=0), token_ids(5, seed=1)]
    alone = [model(row[None]).logits[0] for row in rows]
    ids, mask = padded(rows, "left")
    found = model(ids, attention_mask=mask).logits
    for logits, real, wanted in zip(found, mask.bool(), alone, strict=True):
        torch.testing.assert_close(logits[real], wanted, rtol=0, atol=1e-9)
    with torch.no_grad():
        cache = model.model.new_cache()
        steps = [model(token[None, None], past_key_values=cache, use_cache=True).logits[0, 0] for token in rows[0]]
    torch.testing.assert_close(torch.stack(steps), alone[0], rtol=0, atol=1e-9)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(rows[0][None], use_cache=False).logits[0], alone[0], rtol=0, atol=1e-9)
    torch.compiler.reset()


WRONG = {
    "unknown rope_type 'su' in rope_parameters: choose default, linear": {"rope_type": "su", "factor": 2.0},
    "unknown rope_type 'longrope'": {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 4},
    "of the type 'linear' need 'factor'": {"rope_type": "linear"},
    "of the type 'llama3' need 'low_freq_factor'": {"rope_type": "llama3", "factor": 2.0, "high_freq_factor": 4.0},
    "of the type 'linear' have no 'beta_fast'": {"rope_type": "linear", "factor": 2.0, "beta_fast": 32},
    "of the type 'default' have no 'factor'": {"factor": 2.0},
    "have no 'partial_rotary_factor'": {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
    "factor in rope_parameters must be a number of at least 1.0, not 0.5": {"rope_type": "linear", "factor": 0.5},
    "of at least 1.0, not 'x'": {"rope_type": "dynamic", "factor": "x"},
    "of at least 1.0, not None": {"rope_type": "dynamic", "factor": None},
    "of at least 1.0, not nan": {"rope_type": "yarn", "factor": float("nan")},
    "of at least 1.0, not True": {"rope_type": "yarn", "factor": True},
    "beta_slow must be below beta_fast": {**YARN, "beta_slow": 40},
    "truncate in rope_parameters must be true or false, not 1": {**YARN, "truncate": 1},
    "attention_factor in rope_parameters must be a number above 0, not -1": {**YARN, "attention_factor": -1},
    "low_freq_factor must be below high_freq_factor": {**LLAMA3, "low_freq_factor": 4.0},
    "rope_theta must be a number above 0, not -1": {"rope_type": "linear", "factor": 2.0, "rope_theta": -1},
    "rope_parameters must be a dict as in transformers, not 4": 4,
}


@pytest.mark.parametrize(("line", "parameters"), WRONG.items(), ids=WRONG)
@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_what_cannot_be_meant(line, parameters, name):
    with pytest.raises(SelattnError) as error:
        rotary(**{name: parameters})
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_what_does_not_go_together():
    linear = {"rope_type": "linear", "factor": 2.0}
    with pytest.raises(SelattnError, match=r"rope_theta is 3.0, and 500.0 in rope_parameters: give it once"):
        rotary(rope_theta=3.0, rope_parameters={**linear, "rope_theta": 500.0})
    with pytest.raises(SelattnError, match="the older name of rope_parameters"):
        rotary(rope_parameters=linear, rope_scaling={**linear, "factor": 3.0})
    with pytest.raises(SelattnError, match="and these are learned"):
        tiny_config(rope_parameters=linear)
    with pytest.raises(SelattnError, match="dynamic scaling needs a head_dim of at least 4, not 2"):
        rotary(head_dim=2, rope_parameters={"rope_type": "dynamic", "factor": 2.0})
    config = rotary(rope_parameters=linear)
    config.rope_theta = 7.0  # changed after it was made
    with pytest.raises(SelattnError, match="give it once"):
        SelectiveForCausalLM(config)

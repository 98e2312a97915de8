"""What the model gives back, and that its ways of running give the same."""

import copy

import pytest
import torch

from selattn.errors import SelattnError
from tests.models.tiny import VARIANTS, gradients, padded, tiny, token_ids
from tests.models.training import CHECKPOINTING, enable_checkpointing, trainer


def run(model, **kwargs):
    """Loss, logits and gradients of a padded batch."""
    ids, mask = padded([token_ids(9), token_ids(5, seed=1)], "left")
    model.zero_grad()
    found = model(ids, attention_mask=mask, labels=ids, **kwargs)
    found.loss.backward()
    return found, gradients(model)


def assert_same(one, other, atol=1e-10):
    (found, grads), (wanted, true) = one, other
    torch.testing.assert_close(found.logits, wanted.logits, rtol=0, atol=atol)
    torch.testing.assert_close(found.loss, wanted.loss)
    assert grads.keys() == true.keys()
    for name, gradient in grads.items():
        torch.testing.assert_close(gradient, true[name], rtol=0, atol=max(atol, 1e-7), msg=name)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_runs_and_every_weight_has_a_gradient(changes):
    found, grads = run(tiny(**changes, memory_epsilon=0.1).train())
    assert found.loss.isfinite()
    assert all(gradient.isfinite().all() and gradient.any() for gradient in grads.values())


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_backends_agree(changes):
    """`auto` is what is fast, `reference` what is plain."""
    both = [run(tiny(**changes, memory_epsilon=0.1, backend=backend).train()) for backend in ("auto", "reference")]
    assert_same(*both)


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_gradient_checkpointing_is_exact(changes):
    plain = run(tiny(**changes, memory_epsilon=0.1).train())
    model = tiny(**changes, memory_epsilon=0.1).train()
    enable_checkpointing(model)
    assert_same(run(model), plain)
    enable_checkpointing(model, every_n_layers=2)
    assert_same(run(model), plain)


def test_checkpointing_recomputes():
    """A test of the test before: the layers do run twice."""
    model, calls = tiny().train(), []
    model.model.layers[0].attention.register_forward_hook(lambda *_: calls.append(1))
    enable_checkpointing(model)
    run(model)
    assert len(calls) == 2


def test_reentrant_checkpointing_is_refused(tmp_path):
    line = "reentrant gradient checkpointing can lose gradients in silence"
    with pytest.raises(SelattnError, match=line):
        enable_checkpointing(tiny(), {"use_reentrant": True})
    with pytest.raises(SelattnError, match=line):
        trainer(
            tiny(torch.float32),
            tmp_path,
            **{CHECKPOINTING: True, f"{CHECKPOINTING}_kwargs": {"use_reentrant": True}},
        ).train()


def test_a_cache_and_checkpointing_exclude_each_other():
    model = tiny().train()
    enable_checkpointing(model)
    with pytest.raises(SelattnError, match="would fill a cache twice"):
        model(token_ids(1, 4), use_cache=True)
    assert model(token_ids(1, 4)).past_key_values is None


@pytest.mark.parametrize("name", ["paper", "separate rotary", "all kinds"])
def test_compiled_to_one_graph_it_is_the_same(name):
    model = tiny(**VARIANTS[name], memory_epsilon=0.1).train()
    plain = run(model)
    compiled = torch.compile(copy.deepcopy(model), fullgraph=True, backend="aot_eager")
    found, grads = run(compiled)
    assert_same((found, {key.removeprefix("_orig_mod."): value for key, value in grads.items()}), plain)
    torch.testing.assert_close(found.kept, plain[0].kept, equal_nan=True)
    torch.compiler.reset()


def test_compiled_in_evaluation_and_packed():
    model, ids = tiny(), token_ids(1, 12)
    positions = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3, 4]])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for arguments in ({"position_ids": positions}, {"cu_seq_lens_q": torch.tensor([0, 5, 7, 12])}, {}):
        found = compiled(ids, use_cache=False, **arguments).logits
        torch.testing.assert_close(found, model(ids, **arguments).logits, rtol=0, atol=1e-10)
    with pytest.raises(RuntimeError, match="learned positions"):
        compiled(ids, use_cache=False, position_ids=positions + 20)
    torch.compiler.reset()


def test_a_ramp_of_the_strength_does_not_recompile():
    model, ids = tiny(), token_ids(1, 9)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.compiler.set_stance("default"):
        compiled(ids, use_cache=False, selection_strength=torch.tensor(0.1))
    with torch.compiler.set_stance("fail_on_recompile"):
        found = compiled(ids, use_cache=False, selection_strength=torch.tensor(0.7)).logits
    torch.testing.assert_close(found, tiny(selection_strength=0.7)(ids).logits, rtol=0, atol=1e-7)
    torch.compiler.reset()


@pytest.mark.parametrize("name", ["paper", "rotary", "separate", "gpt2", "all kinds"])
def test_half_precision_errs_no_more_than_the_plain_backend(name):
    """Autocast and pure bf16 of `auto`, each beside the same precision with `reference`, both against fp64."""
    changes = {**VARIANTS[name], "memory_epsilon": 0.1}
    exact = run(tiny(**changes).train())
    errors = {}
    for backend in ("auto", "reference"):
        model = tiny(torch.float32, **changes, backend=backend).train()
        with torch.autocast("cpu", torch.bfloat16):
            found = run(model)
        assert found[0].loss.dtype == torch.float32
        errors["autocast", backend] = error(found, exact)
        assert all(gradient.dtype == torch.float32 for gradient in found[1].values())
        errors["bf16", backend] = error(run(tiny(torch.bfloat16, **changes, backend=backend).train()), exact)
    for kind in ("autocast", "bf16"):
        assert errors[kind, "auto"] < 2 * errors[kind, "reference"] + 1e-3
        assert errors[kind, "auto"] < 0.5


def error(found, exact):
    """The relative error of all gradients together."""
    off = sum((found[1][name].double() - true).square().sum() for name, true in exact[1].items())
    return (off / sum(true.square().sum() for true in exact[1].values())).sqrt().item()


def test_attention_weights_and_f_when_asked():
    model, ids = tiny(attention=["selective", "standard"]), token_ids(2, 9)
    plain = model(ids)
    assert plain.attentions is None
    assert plain.f is None
    found = model(ids, output_attentions=True, output_f=True, output_hidden_states=True)
    torch.testing.assert_close(found.logits, plain.logits)
    assert [weights.shape for weights in found.attentions] == [(2, 2, 9, 9)] * 2
    torch.testing.assert_close(found.attentions[0].sum(-1), torch.ones(2, 2, 9).double())
    assert not found.attentions[0].triu(1).any()
    F, none = found.f
    assert F.shape == (2, 1, 9, 9)
    assert none is None
    assert F.any()
    assert not F[..., 0].any()  # the first token is never masked
    assert not F[..., :2, :].any()  # and the first two rows have no query between them and a token
    assert len(found.hidden_states) == 3
    torch.testing.assert_close(model.lm_head(found.hidden_states[-1]), found.logits)
    model.config.output_attentions = True
    assert len(model(ids).attentions) == 2


def test_kept_fractions_without_labels():
    model, ids = tiny(), token_ids(2, 9)
    torch.testing.assert_close(model(ids, output_kept=True).kept, model(ids, labels=ids).kept)
    assert model(ids).kept is None


def test_labels_and_shifted_labels():
    model, ids = tiny(memory_epsilon=0.1), token_ids(2, 9)
    shifted = torch.cat([ids[:, 1:], torch.full((2, 1), -100)], 1)
    torch.testing.assert_close(model(ids, shift_labels=shifted).loss, model(ids, labels=ids).loss)
    logits = model(ids).logits
    wanted = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
    torch.testing.assert_close(model(ids, labels=ids).lm_loss, wanted)


def test_the_strength_can_be_given():
    model, ids = tiny(), token_ids(2, 9)
    torch.testing.assert_close(
        model(ids, selection_strength=0.0).logits, tiny(attention="standard")(ids).logits, rtol=0, atol=1e-10
    )
    torch.testing.assert_close(
        model(ids, selection_strength=torch.tensor(0.5)).logits, tiny(selection_strength=0.5)(ids).logits
    )
    with pytest.raises(SelattnError, match=r"strength must be in \[0, 1\]"):
        model(ids, selection_strength=2.0)


def test_dropout():
    model, ids = tiny(hidden_dropout=0.5, attention_dropout=0.5), token_ids(2, 9)
    torch.testing.assert_close(model(ids).logits, tiny()(ids).logits)  # evaluation has none
    model.train()
    assert (model(ids).logits - model(ids).logits).abs().max() > 0.01

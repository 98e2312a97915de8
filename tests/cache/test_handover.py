"""A stock model, with an attention function of ours in the place of its own, decodes through the same cache."""

import pytest
import torch
from torch.testing import assert_close
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM

from selattn.cache import POLICIES, SelectiveCache, attend, evictions, handed_over, in_force, make_policy
from selattn.errors import SelattnError
from selattn.models import Engine
from selattn.ops import Selection, Sequences
from selattn.ops.attention import attend_whole
from selattn.ops.request import NOTHING, Tokens
from selattn.ops.rules import Rules

LAYERS, VOCABULARY = 2, 31
pruning = {"budgets": (None,) * LAYERS, "policy": make_policy("selective")}  # of a forward without a cache


def ours(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """What a stock model's attention function has to do."""
    layer, key, value = handed_over(key, value)
    rules, count = Rules(Selection(), scale=scaling), query.shape[2]
    if layer is not None:
        real = None if attention_mask is None else attention_mask[:, -count:]
        result = attend(layer, Tokens(query, key, value, real), rules)
    else:
        assert key.shape[2] == count
        tokens, sequences = Tokens(query, key, value), attention_mask
        sequences = None if attention_mask is None else Sequences.from_mask(attention_mask)
        budget, policy, order = pruning["budgets"][module.layer_idx], pruning["policy"], None
        if in_force(budget, policy):
            order = evictions(tokens, sequences, rules, budget, policy)
        result = attend_whole(tokens, sequences, rules, NOTHING, "auto", order)
    return result.output.transpose(1, 2), None


def mask_of_tokens(batch_size, q_length, kv_length, attention_mask=None, **kwargs):
    """The two-dimensional mask as it was given: the cache knows the rest."""
    return attention_mask


@pytest.fixture(scope="module")
def model():
    AttentionInterface.register("selattn_test", ours)
    AttentionMaskInterface.register("selattn_test", mask_of_tokens)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.4,
        eos_token_id=None,
        pad_token_id=0,
        attn_implementation="selattn_test",
    )
    return LlamaForCausalLM(config).double().eval()


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def ids(*shape, seed=0):
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(seed))


def whole(model, text, mask=None, budgets=None, policy="selective", **more):
    """The logits of a full forward, pruned without a cache."""
    pruning.update(budgets=budgets or (None,) * LAYERS, policy=make_policy(policy))
    return model(text, attention_mask=mask, use_cache=False, **more).logits


@pytest.mark.parametrize("policy", [*POLICIES, "threshold=1"])
@pytest.mark.parametrize("budgets", [None, (4, 7)])
def test_decoding_is_the_full_forward(model, policy, budgets):
    text, cache = ids(2, 14), SelectiveCache(LAYERS, budgets, policy)
    parts = [
        model(text[:, a:b], past_key_values=cache).logits
        for a, b in ((0, 6), (6, 9), *((i, i + 1) for i in range(9, 14)))
    ]
    assert_close(torch.cat(parts, 1), whole(model, text, budgets=budgets, policy=policy), rtol=0, atol=1e-9)
    assert cache.get_seq_length() == 14
    if budgets is not None:
        assert not torch.allclose(torch.cat(parts, 1), whole(model, text))


def test_the_engine_runs_it(model):
    prompts = [ids(n, seed=n) for n in (6, 3, 8)]
    engine, want = Engine(model, SelectiveCache(LAYERS, (4, 6))), []
    for prompt in prompts:
        cache = SelectiveCache(LAYERS, (4, 6))
        text = model.generate(prompt[None], past_key_values=cache, max_new_tokens=10, do_sample=False)
        want.append(text[0, len(prompt) :].tolist())
    rows, texts = {}, {}
    for at, prompt in enumerate(prompts):
        rows[engine.add(prompt)] = at
        for row, token in engine.step().items():
            texts.setdefault(row, []).append(token)
    for row, tokens in engine.draft({row: want[at][len(texts[row]) :][:2] for row, at in rows.items()}).items():
        texts[row] += tokens
    engine.remove(next(iter(rows)))
    for row, token in engine.step().items():
        texts[row].append(token)
    assert [texts[row] == want[at][: len(texts[row])] for row, at in rows.items()] == [True] * 3
    assert sorted(map(len, texts.values())) == [5, 6, 6]


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_it_compiles(model):
    torch._dynamo.reset()
    text, eager, compiled = ids(1, 10), SelectiveCache(LAYERS, 4), SelectiveCache(LAYERS, 4)
    for cache in (eager, compiled):
        model(text[:, :6], past_key_values=cache)
    attention = torch.compile(model.model.layers[1].self_attn, backend="aot_eager", fullgraph=True)
    hidden = torch.randn(1, 1, 16, dtype=torch.float64)
    angles = model.model.rotary_emb(hidden, torch.tensor([[6]]))
    given = {"position_embeddings": angles, "attention_mask": None}
    got = attention(hidden, past_key_values=compiled, **given)[0]
    want = model.model.layers[1].self_attn(hidden, past_key_values=eager, **given)[0]
    assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_an_attention_function_that_does_not_know_the_cache_is_refused(model, implementation):
    """Neither silently nor one step later."""
    other = LlamaForCausalLM(model.config).double().eval()
    other.set_attn_implementation(implementation)
    with pytest.raises(SelattnError, match=r"^this cache keeps F, and this attention function does not know it"):
        other(ids(1, 3), past_key_values=SelectiveCache(LAYERS))
    other.set_attn_implementation("selattn_test")


def test_keys_on_their_way_can_be_looked_at():
    x, layer = torch.randn(1, 2, 3, 4, requires_grad=True) * 2, SelectiveCache(1).layers[0]
    key, value = layer.update(x, x + 1)
    assert key.shape == x.shape
    assert (key.dtype, key.device, key.ndim, key.size(-1), len(key)) == (x.dtype, x.device, 4, 4, 1)
    found = handed_over(key, value)
    assert found[0] is layer
    assert found[1] is x
    assert handed_over(x, x) == (None, x, x)
    for use in (lambda: key + 1, lambda: key.transpose(1, 2), lambda: torch.cat([key, key]), lambda: key[0]):
        with pytest.raises(SelattnError, match="does not know it"):
            use()
    with pytest.raises(SelattnError, match="cannot be made in advance"):
        SelectiveCache(1).early_initialization(1, 2, 4, torch.float32, torch.device("cpu"))

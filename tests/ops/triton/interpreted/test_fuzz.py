"""Some of the fuzz in every run, 1,000 examples with the slow tests; and that it finds what is wrong."""

import pytest
import torch

from tests.ops.triton import fuzz

QUICK, ALL, PART = 5, 1_000, 100


@pytest.mark.parametrize("seed", range(QUICK))
def test_fuzz(seed):
    lines = fuzz.check(seed)
    assert not lines, "\n".join(lines)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("start", range(QUICK, ALL, PART))
def test_more_fuzz(start):
    lines = [line for seed in range(start, min(ALL, start + PART)) for line in fuzz.check(seed)]
    assert not lines, "\n".join(lines)


WRONG = {  # times what; and in which share of the examples that has to be seen
    torch.float32: (1.001, 1 / 8),
    torch.float16: (1.05, 1 / 5),
    torch.bfloat16: (1.3, 1 / 5),
}
RESULTS = [(name, torch.float32) for name in ("output", "memory", "d query", "d key", "d value")]
RESULTS += [(name, dtype) for name in ("d query", "d key") for dtype in (torch.float16, torch.bfloat16)]


@pytest.mark.parametrize(("name", "dtype"), RESULTS, ids=str)
def test_the_fuzz_finds_what_is_wrong(name, dtype, monkeypatch):
    """An error in one result, as small as the dtype lets one tell, is seen. (The kernels need not run for that.)

    Where a logit is too near 0, gradients of queries and keys are not compared; others are 0.
    """
    real, (factor, share) = fuzz.run, WRONG[dtype]

    def wrong(inputs, options, upstream, backend):
        found = real(inputs, options, upstream, "reference")
        return found | {name: found[name] * factor} if backend == "triton" and name in found else found

    monkeypatch.setattr(fuzz, "run", wrong)
    drawn = {seed: fuzz.draw(seed)[0] for seed in range(120)}
    seeds = [seed for seed, x in drawn.items() if x.dtype == dtype and x.upstream]
    seeds = [seed for seed in seeds if name != "memory" or "memory" in drawn[seed].options["wanted"]]
    seen = [bool(fuzz.check(seed)) for seed in seeds]
    assert sum(seen) > len(seen) * share


def test_the_fuzz_draws_what_it_should():
    drawn = [fuzz.draw(seed)[0] for seed in range(ALL)]
    assert {example.dtype for example in drawn} == {*fuzz.DTYPES}
    assert {example.inputs["query"].shape[2] for example in drawn} == {*fuzz.LENGTHS}
    for name, least in {"initial_f": 0.2, "selection_query": 0.1, "attn_mask": 0.05}.items():
        assert sum(name in example.inputs for example in drawn) > least * ALL
    assert sum(len(example.options["selection"].heads) > 1 for example in drawn) > 0.1 * ALL
    assert sum("visible_until" in example.options for example in drawn) > 0.2 * ALL
    assert sum(example.options["sequences"] is not None for example in drawn) > 0.5 * ALL
    assert sum(bool(example.upstream) for example in drawn) > 0.7 * ALL

"""Some of the fuzz in every run, 10,000 examples with the slow tests."""

import pytest

from tests.ops import fuzz

QUICK, ALL, PART = 200, 10_000, 500


@pytest.mark.parametrize("start", range(0, QUICK, 50))
def test_fuzz(start):
    lines = [line for seed in range(start, start + 50) for line in fuzz.check(seed)]
    assert not lines, "\n".join(lines)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("start", range(QUICK, ALL, PART))
def test_more_fuzz(start):
    lines = [line for seed in range(start, start + PART) for line in fuzz.check(seed)]
    assert not lines, "\n".join(lines)


def test_the_fuzz_finds_what_is_wrong(monkeypatch):
    """An error of one part in a thousand in one result, in any precision, is seen."""
    real = fuzz.run

    def wrong(inputs, options, upstream, backend):
        found = real(inputs, options, upstream, backend)
        if backend == "cpu":
            found[name] = found[name] * 1.001
        return found

    monkeypatch.setattr(fuzz, "run", wrong)
    exact = [seed for seed in range(36) if fuzz.draw(seed).dtype != fuzz.torch.bfloat16]
    for name in ("output", "memory", "d query", "d key", "d value"):
        seen = [bool(fuzz.check(seed)) for seed in exact if asks(fuzz.draw(seed), name)]
        assert sum(seen) > len(seen) / 4, name  # gradients of a draw may be 0, or its values too rough to tell


def asks(example, name):
    """Whether the example has that result."""
    if name == "memory":
        return "memory" in example.options["wanted"]
    return name == "output" or bool(example.upstream)


def test_the_fuzz_draws_what_it_should():
    """Every kind of numbers, dtype and thread count; rows beyond one block; masks; few examples without gradients."""
    drawn = [fuzz.draw(seed) for seed in range(QUICK)]
    assert {kind for example in drawn for kind in example.kinds} == {*fuzz.VALUES}
    assert {example.dtype for example in drawn} == {*fuzz.DTYPES}
    assert {example.threads for example in drawn} == {1, 2, 3}
    assert sum(example.inputs["query"].shape[2] > 96 for example in drawn) > QUICK / 6
    assert sum(example.inputs["query"].shape[0] >= 8 for example in drawn) > QUICK / 40
    assert sum(bool(example.upstream) for example in drawn) > QUICK / 2
    assert sum("visible_until" in example.options for example in drawn) > QUICK / 5
    assert sum(example.options["sequences"] is not None for example in drawn) > QUICK / 2

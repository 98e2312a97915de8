"""The experiments as data: what they need at every scale, and that it stays the same trainings."""

import hashlib
import json
from pathlib import Path

import pytest

from lab.experiments import EXPERIMENTS
from lab.runs import find_run
from lab.scales import SMOKE, find_scale
from selattn.cli.settings import override
from selattn.training.record import training_key

# A digest of the names and training keys that each needs: whoever changes one on purpose changes the file with it.
KEYS = json.loads(Path(__file__).with_name("training_keys.json").read_text())


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_every_experiment_needs_the_trainings_that_it_always_has(scale):
    size = find_scale(scale)
    found = {}
    for name, each in EXPERIMENTS.items():
        keys = {need: each.key for need, each in each.needs(size, size.seeds).items()}
        found[name] = hashlib.blake2b(json.dumps(keys, sort_keys=True).encode(), digest_size=8).hexdigest()
    assert found == {name: digests[scale] for name, digests in KEYS.items()}
    assert list(EXPERIMENTS) == list(KEYS)


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_every_experiment_says_what_it_needs_at_every_scale(scale):
    size = find_scale(scale)
    for each in EXPERIMENTS.values():
        assert each.sentence
        needs = each.needs(size, size.seeds)
        json.dumps([need.run.to_dict() for need in needs.values()])
        assert all(need.run.seed <= max(size.seeds) + 1 for need in needs.values())


def test_the_laptop_finds_the_zoo_s_runs():
    """What was trained by `selattn train zoo-KIND` with these settings is what the long runs need."""
    laptop = find_scale("laptop", "somewhere/enwik8-clean")
    needs = EXPERIMENTS["efficiency"].needs(laptop, (1,))
    settings = ["data.source=data/enwik8-clean", "model.positions=rotary", "schedule.steps=7320", "seed=1"]
    for kind in ("standard", "selective", "memory"):
        trained = override(find_run(f"zoo-{kind}"), [*settings, "evaluation.every=488", "checkpoints.every=122"])
        assert training_key(trained.to_dict()) == needs[f"{kind}, seed 1"].key


def test_the_paper_s_runs_are_those_of_the_paper_s_scale():
    needs = EXPERIMENTS["model-size"].needs(find_scale("paper"), (0,))
    for d in (8, 28):
        for kind in ("standard", "selective"):
            assert training_key(find_run(f"c4-d{d}-{kind}").to_dict()) == needs[f"d={d} | {kind}, seed 0"].key


def test_a_scale_reads_what_the_user_has_named_for_a_text():
    assert SMOKE.on("wikitext") == SMOKE
    assert find_scale("laptop", texts={"lm1b": "mine.txt"}).on("lm1b").data.source == "mine.txt"
    assert find_scale("laptop").on("lm1b").data.source == "lm1b"

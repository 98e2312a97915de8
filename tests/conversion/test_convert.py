"""A stock model becomes a selective one: what is trained, what is compared, and what is refused."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from selattn.cli.main import main
from selattn.conversion import ConversionRun, convert
from selattn.conversion.trainer import make_student
from selattn.errors import SelattnError
from selattn.evaluation import log_perplexity, make_batches
from selattn.evaluation.text import Text
from selattn.models.loading import load
from selattn.pruning import Until
from selattn.training.config import Start
from tests.conversion.tiny import CONTEXT, go, llama_folder, settings_of, text_of
from tests.evaluation.folders import model_folder

PAIR = ("selective", "selective-per-head")


def read(folder):
    return load_file(folder / "model" / "model.safetensors")


def lines(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def rows_of(world):
    """What is held out."""
    data = text_of(world)
    return Text(data.source, reading=data.reading()).rows(load(world / "llama").tokenizer, CONTEXT)


def test_the_folder_is_a_selective_model(world):
    found = load(world / "whole")
    assert found.description.selects
    assert found.model.settings.strength == 1.0
    assert (found.model.settings.memory_epsilon, found.model.settings.memory_tau) == (0.3, 8.0)
    form = found.model.model.layers[0].self_attn.selecting_form
    assert form.masks == 2  # one for each key-value head
    assert form.context == CONTEXT
    assert (
        main(["generate", str(world / "whole"), "--prompt", "the cat", "--max-new-tokens", "3", "--budgets", "4"]) == 0
    )


def test_the_log_has_the_losses_that_matter(world):
    for line in lines(world / "whole"):
        if "loss" in line:
            want = 0.5 * line["lm_loss"] + 0.5 * line["kl_loss"] + line["memory_loss"]
            assert line["loss"] == pytest.approx(want, rel=1e-9)
            assert line["kl_loss"] >= 0
    strengths = [line["selection_strength"] for line in lines(world / "whole") if "loss" in line]
    assert strengths == [0.25, 0.75, 1.0, 1.0]


def test_only_the_form_learns_at_first(world, tmp_path):
    """With `freeze_first` as long as the run the trunk stays as it was, bit for bit."""
    go(world, tmp_path / "run", "conversion.freeze_first=8")
    frozen, free, before = read(tmp_path / "run"), read(world / "whole"), load_file(world / "llama/model.safetensors")
    assert all(torch.equal(frozen[name], before[name]) for name in before)
    assert not all(torch.equal(free[name], before[name]) for name in before)
    forms = [name for name in frozen if "selecting_form" in name]
    assert any(not torch.equal(frozen[name], read_first(world)[name]) for name in forms)


def read_first(world):
    torch.manual_seed(0)
    run = ConversionRun("x", data=text_of(world), start=Start(str(world / "llama")))
    return make_student(run).state_dict()


def test_the_table_is_what_the_models_have(world):
    record = json.loads((world / "whole" / "conversion.json").read_text())
    original = load(world / "llama")
    rows = rows_of(world).take(6)
    for name, model in (("original", original), ("after", load(world / "whole"))):
        assert record["losses"][name] == pytest.approx(log_perplexity(model.model, make_batches(rows, 3)), rel=1e-6)
    assert record["losses"]["untrained"] != record["losses"]["after"]
    assert record["tokens"] > 0
    assert "control" not in record["losses"]


def test_budgets_and_control_in_one_call(world, tmp_path):
    found = go(world, tmp_path / "run", control=True, prune=Until(factor=1.5), search_rows=8)
    record = found.record
    assert set(record.losses) == {"original", "untrained", "after", "control", "pruned"}
    assert record.budgeted.memory_factor >= 1.5
    saved = load(tmp_path / "run")
    assert saved.description.budgets.to_json() == list(record.budgeted.budgets)
    control = load(tmp_path / "run" / "control")
    assert not control.description.selects
    ids = torch.randint(3, 300, (1, CONTEXT))
    whole, pruned = (saved.model(ids, cache_policy=policy).logits for policy in ("none", None))
    assert not torch.equal(whole, pruned)
    again = go(world, tmp_path / "run", control=True, prune=Until(factor=1.5), search_rows=8, resume=True)
    assert again.record == record


def test_each_key_value_head_with_its_own_tokens(world, tmp_path):
    """Budgets and policy are in the config, and `generate` obeys both."""
    found = go(
        world, tmp_path / "run", "optimizer.lr=0.1", prune=Until(factor=2), search_rows=8, policy="selective-per-head"
    )
    saved = load(tmp_path / "run")
    budgets = found.record.budgeted.budgets
    assert (saved.description.budgets.to_json(), saved.description.policy) == (list(budgets), "selective-per-head")
    ids, more = torch.arange(3, 43)[None], {"max_new_tokens": 20, "do_sample": False, "output_logits": True}
    more |= {"return_dict_in_generate": True, "eos_token_id": None, "pad_token_id": 0}
    own = saved.model.generate(ids, **more)
    assert own.past_key_values.policy.name == "selective-per-head"
    assert [layer.keys.shape[2] for layer in own.past_key_values.layers] == list(budgets)
    told = {policy: saved.model.generate(ids, cache_budgets=budgets, cache_policy=policy, **more) for policy in PAIR}
    logits = {policy: torch.stack(each.logits) for policy, each in told.items()}
    assert torch.equal(torch.stack(own.logits), logits["selective-per-head"])
    assert not torch.equal(torch.stack(own.logits), logits["selective"])
    batches = make_batches(rows_of(world).take(6, skip=8), 3)
    want = log_perplexity(saved.model, batches, saved.description.budgets, "selective-per-head")
    assert found.record.losses["pruned"] == pytest.approx(want, rel=1e-6)


def test_another_search_in_the_same_folder(world, tmp_path):
    """By other conditions or another policy; what was found stays where nothing is asked for."""
    shutil.copytree(world / "whole", tmp_path / "run")
    for how in (
        {"prune": Until(factor=1.2)},
        {"prune": Until(factor=2.0)},
        {"prune": Until(factor=2.0), "policy": "tova"},
    ):
        found = go(world, tmp_path / "run", search_rows=8, resume=True, **how).record
        about = load(tmp_path / "run").description
        assert found.budgeted.until == how["prune"].words()
        assert (about.budgets.to_json(), about.policy) == (
            list(found.budgeted.budgets),
            how.get("policy", "selective"),
        )
    assert go(world, tmp_path / "run", resume=True).record == found
    with pytest.raises(SelattnError, match=r"has budgets: give prune again \(factor=2\.0\)"):
        go(world, tmp_path / "run", resume=True, control=True)
    assert not (tmp_path / "run" / "control").exists()
    with pytest.raises(SelattnError, match="policy would change nothing"):
        go(world, tmp_path / "run", resume=True, policy="tova")


def test_adapters_become_weights(world, tmp_path):
    """LoRA: the trunk's matrices change by a product of the rank, and nothing of the adapters is saved."""
    go(world, tmp_path / "run", "conversion.lora=1", "conversion.freeze_first=0", "optimizer.lr=0.05")
    after, before = read(tmp_path / "run"), load_file(world / "llama/model.safetensors")
    assert set(before) <= set(after)
    assert not any("lora" in name for name in after)
    assert torch.equal(after["model.embed_tokens.weight"], before["model.embed_tokens.weight"])
    name = "model.layers.1.mlp.up_proj.weight"
    change = torch.linalg.svdvals((after[name] - before[name]).double())
    assert change[0] > 1e-3
    assert change[1] < 1e-5
    assert load(tmp_path / "run").description.selects


def test_a_teacher_of_the_same_vocabulary(world, tmp_path):
    llama_folder(tmp_path / "teacher", seed=5)
    found = go(world, tmp_path / "run", f"conversion.teacher={tmp_path / 'teacher'}", "conversion.kl=1")
    ours = [line["kl_loss"] for line in lines(found.folder) if "loss" in line]
    theirs = [line["kl_loss"] for line in lines(world / "whole") if "loss" in line]
    assert min(ours) > max(theirs)  # a stranger to it


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["conversion.tau=0"], "conversion.tau must be a finite number above 0"),
        (["conversion.epsilon=-1"], "conversion.epsilon must be a finite number of at least 0"),
        (["conversion.kl=2"], r"conversion.kl is a share, in \[0, 1\]"),
        (["conversion.masks=0"], "conversion.masks must be at least 1"),
        (["conversion.masks=3"], "3 masks cannot be shared out among 4 heads"),
        (["conversion.kl=0", "conversion.teacher=x"], "conversion.teacher would change nothing"),
        (["conversion.freeze_first=9"], "conversion.freeze_first is longer than the run"),
        (["start.ramp=9"], "start.ramp is longer than the run"),
        (["model.backend=cpu"], "model.backend would change nothing"),
        (["shrink.steps=3"], "shrink would change nothing"),
        (["data.tokenizer=x"], "data.tokenizer would change nothing"),
        (["machine.shard=fsdp"], "machine.shard"),
        (["conversion.epsilom=1"], "did you mean 'conversion.epsilon'?"),
    ],
)
def test_settings_that_are_refused(world, tmp_path, settings, says):
    with pytest.raises(SelattnError, match=says):
        go(world, tmp_path / "run", *settings)
    assert not (tmp_path / "run").exists()


def test_one_of_ours(world, tmp_path):
    """A decoder of ours that does not select gets a form, too; a window stays one."""
    model_folder(tmp_path / "ours", attention=["standard", "local:8"])
    found = convert(
        tmp_path / "ours",
        text_of(world),
        tmp_path / "run",
        settings=settings_of(),
        prune=Until(factor=1.2),
        search_rows=4,
    )
    saved = load(tmp_path / "run")
    assert [kind.text for kind in saved.description.kinds] == ["selective", "selective:8"]
    assert saved.config.selection_source == "new"
    assert saved.description.budgets.to_json() == list(found.record.budgeted.budgets)
    losses = found.record.losses
    assert losses["original"] != losses["after"]
    assert losses["untrained"] == pytest.approx(losses["original"], abs=0.2)
    ids = torch.randint(3, 300, (1, 12))
    with torch.no_grad():
        whole = saved.model(ids, use_cache=False).logits[0, -1]
        cache = saved.model.new_cache()
        for token in ids[0]:
            step = saved.model(token[None, None], past_key_values=cache).logits[0, -1]
    torch.testing.assert_close(whole, step, rtol=1e-4, atol=1e-4)

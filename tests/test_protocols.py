"""A model that is written from the protocol alone is evaluated, searched and generated from like one of ours."""

import inspect

import pytest
import torch

import selattn
from selattn import Budgets, Policy, Window
from selattn.data import Reading
from selattn.data.tokenizer import Tokenizer, from_sentencepiece
from selattn.errors import SelattnError
from selattn.evaluation import log_perplexity, make_batches
from selattn.evaluation.speed import measure_decoding
from selattn.evaluation.subjects import Subject, kv_size
from selattn.evaluation.text import Text
from selattn.models import Engine, protocols
from selattn.models.generation import continued, sampler
from selattn.models.loading import load
from selattn.pruning import Procedure, Until, first_step, steps
from selattn.pruning.trials import WholeTrials, make_trials
from selattn.utils.distributed import Team
from tests.evaluation.folders import pieces, text_file
from tests.models.tiny import tiny
from tests.own_model import Notebook, OwnModel
from tests.pruning.cases import batches, literal, loss, model, rows

LENGTHS, CONTEXT = (24, 17, 9), 24
PROTOCOLS = (protocols.LanguageModel, protocols.LayeredModel, protocols.WatchedModel)


def test_the_decoder_has_all_of_it_and_the_own_model_what_is_needed():
    assert [isinstance(tiny(), each) for each in PROTOCOLS] == [True] * 3
    assert [isinstance(OwnModel(), each) for each in PROTOCOLS] == [True, False, False]
    assert {cls.__module__.partition(".")[0] for cls in OwnModel.__mro__} == {"tests", "torch", "builtins"}


@pytest.mark.parametrize("cls", [tiny().new_cache().__class__, Notebook])
def test_caches_have_what_the_engine_asks_for(cls):
    wanted = {name for name, _ in inspect.getmembers(protocols.KVCache) if not name.startswith("_")}
    assert wanted <= set(dir(cls))


class Newest(Policy):
    def rank(self, kept):
        return kept.position.float()


@pytest.mark.parametrize("policy", [None, "tova", Window(2), Newest()])
@pytest.mark.parametrize("budgets", [None, Budgets(5), Budgets((4, 9))])
def test_evaluated(budgets, policy):
    own = OwnModel()
    limits = (CONTEXT, CONTEXT) if budgets is None else budgets.for_layers(2)
    want = loss(own, rows(LENGTHS), limits, policy or "selective")
    assert log_perplexity(own, batches(LENGTHS, 2), budgets, policy) == pytest.approx(want, rel=1e-12)


def test_costs():
    own = OwnModel()
    assert kv_size(own.description, CONTEXT, Budgets((4, 9))).held == (4, 9)
    found = measure_decoding(own, CONTEXT, steps=4, budgets=Budgets(4))
    assert (found.cache_bytes, found.context) == (8 * CONTEXT, CONTEXT)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("policy", ["selective", "window+4"])
def test_searched(lazy, policy):
    """Iteration by iteration what the paper's procedure finds with the model's own forward."""
    own = OwnModel()
    trials = make_trials(own, batches(LENGTHS, 2), (CONTEXT,) * 2, policy, Team())
    assert isinstance(trials, WholeTrials)
    path = [first_step(trials)]
    path += steps(trials, Procedure(CONTEXT, 4, lazy=lazy), path)
    want = literal(own, rows(LENGTHS), CONTEXT, 4, 4, policy)
    if not lazy:
        assert [step.budgets for step in path] == [budgets for budgets, _, _ in want]
        assert [step.tried for step in path[1:]] == [pytest.approx(tried, rel=1e-12) for _, _, tried in want[1:]]
    for step in path:
        assert step.loss == pytest.approx(loss(own, rows(LENGTHS), step.budgets, policy), rel=1e-12)
    assert path[-1].budgets == want[-1][0]


class Plain:
    """A decoder of ours of which nothing but the protocol is seen."""

    def __init__(self, net):
        self.description, self.device, self.new_cache, self._net = net.description, net.device, net.new_cache, net

    def __call__(self, *args, **kwargs):
        return self._net(*args, **kwargs)


def test_layer_by_layer_a_search_finds_what_it_finds_with_whole_forwards():
    net, found = model(), []
    for each in (net, Plain(net)):
        trials = make_trials(each, batches(LENGTHS, 2), (CONTEXT,) * 3, "selective", Team())
        path = [first_step(trials)]
        found.append(path + list(steps(trials, Procedure(CONTEXT, 8), path)))
    assert [step.budgets for step in found[0]] == [step.budgets for step in found[1]]
    assert [step.loss for step in found[0]] == pytest.approx([step.loss for step in found[1]], rel=1e-12)
    work = [path[-1].work.layer_evaluations for path in found]
    assert work[0] < work[1]


def greedily(own, prompt, count, budgets=None, policy="selective"):
    """A forward over the whole text for each token."""
    text = list(prompt)
    for _ in range(count):
        logits = own(torch.tensor([text]), use_cache=False, cache_budgets=budgets, cache_policy=policy).logits[0, -1]
        text.append(int(logits.argmax()))
        if text[-1] in own.description.ends:
            break
    return text[len(prompt) :]


@pytest.mark.parametrize("budgets", [None, Budgets((3, 6))])
@pytest.mark.parametrize("make", [OwnModel, lambda: tiny(eos_token_id=1)])
def test_generated_from(make, budgets):
    net, prompt = make(), [3, 7, 2, 9]
    want = greedily(net, prompt, 15, budgets)
    assert list(continued(net, prompt, 15, net.new_cache(budgets))) == want
    drawn = [list(continued(net, prompt, 15, choose=sampler(2.0, generator=seeded(n)))) for n in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def seeded(number):
    return torch.Generator().manual_seed(number)


def test_a_text_ends_where_the_model_says():
    own = OwnModel()
    with torch.no_grad():
        own.out.bias[1] += 100
    assert list(continued(own, [3], 15)) == [1]


def test_texts_of_an_own_model_join_and_leave():
    own = OwnModel(seed=3)
    engine, prompts = Engine(own, own.new_cache(Budgets(5))), ([3, 7, 2], [5])
    first = engine.add(prompts[0])
    written = {first: [engine.step()[first] for _ in range(3)]}
    second = engine.add(prompts[1])
    written[second] = []
    for _ in range(4):
        for row, token in engine.step().items():
            written[row].append(token)
    engine.remove(first)
    written[second].append(engine.step()[second])
    for row, prompt in zip((first, second), prompts, strict=True):
        ends = [place for place, token in enumerate(written[row]) if token == 1] or [len(written[row])]
        want = greedily(own, prompt, len(written[row]), Budgets(5))
        assert written[row][: ends[0] + 1] == want


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Text(str(text_file(tmp_path / "text.txt", documents=40)), reading=Reading(validation=0.8))


@pytest.fixture(scope="module")
def tokenizer():
    return from_sentencepiece(pieces(), "the pieces")


def test_evaluated_by_one_call(text, tokenizer):
    """With policies of one's own, too; a record can be made of it, and taken up again."""
    own = load(OwnModel(300, context=32), tokenizer)
    subjects = [own, Subject("pruned", own, Budgets(6)), Subject("newest", own, Budgets(6), Newest())]
    found = selattn.evaluate(subjects, text, rows=6, speed=True, record="record.json")
    batches = make_batches(text.rows(own.tokenizer, 32).take(6), 8)
    for one, (budgets, policy) in zip(found.models, [(None, None), (6, None), (6, Newest())], strict=True):
        want = log_perplexity(own.model, batches, Budgets.of(budgets), policy)
        assert one.text["text.txt"].loss == want
        assert one.parameters == sum(weight.numel() for weight in own.model.parameters())
        assert one.decoding.cache_bytes == 8 * 32
    assert [(one.model, one.policy) for one in found.models] == [
        ("OwnModel", "selective"),
        ("pruned", "selective"),
        ("newest", "Newest"),
    ]
    assert [one.kv.held for one in found.models] == [(32, 32), (6, 6), (6, 6)]


def test_searched_by_one_call(text, tokenizer):
    own = load(OwnModel(300, context=32), tokenizer)
    found = selattn.prune(own, text, Until(factor=2), rows=4, report_rows=5, step=8, out="search", policy=Newest())
    assert found.budgets.memory_factor(2, 32) >= 2
    assert Budgets.load("search/budgets.json") == found.budgets
    assert (
        selattn.prune(own, text, Until(factor=2), rows=4, report_rows=5, step=8, out="search", policy=Newest()) == found
    )
    other = load(OwnModel(300, context=32, seed=1), tokenizer)
    with pytest.raises(SelattnError, match="holds a search of OwnModel with other weights"):
        selattn.prune(other, text, Until(factor=2), rows=4, report_rows=5, step=8, out="search", policy=Newest())
    with pytest.raises(SelattnError, match="a saved config names built-in policies only, not Newest"):
        selattn.prune(own, text, Until(factor=2), policy=Newest(), save_model="copy")
    with pytest.raises(SelattnError, match="OwnModel was given as an object: save it by its own"):
        selattn.prune(own, text, Until(factor=2), rows=4, report_rows=5, out="other", save_model="copy")


def test_it_is_loaded_with_a_tokenizer(tokenizer):
    own = OwnModel(vocabulary=300)
    found = load(own, tokenizer)
    assert load(found) is found
    assert (found.name, found.model, found.description) == ("OwnModel", own, own.description)
    assert found.tokenizer.fingerprint == Tokenizer(tokenizer).fingerprint
    assert found.training_seed is None
    assert found.fingerprint == load(OwnModel(vocabulary=300)).fingerprint != load(OwnModel(300, seed=1)).fingerprint
    with pytest.raises(SelattnError, match="OwnModel has no tokenizer"):
        _ = load(own).tokenizer
    with pytest.raises(SelattnError, match=r"a Linear is no model: see selattn\.models\.protocols"):
        load(torch.nn.Linear(1, 1))
    with pytest.raises(SelattnError, match="models of type Plain cannot be told apart"):
        _ = load(Plain(tiny())).fingerprint
    with pytest.raises(SelattnError, match="zoo:memory has a tokenizer of its own"):
        load("zoo:memory", tokenizer)

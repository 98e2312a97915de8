"""The exact search is the paper's, iteration by iteration; the lazy one is its shortcut; neither depends on how."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selattn.errors import SelattnError
from selattn.pruning import Procedure, Trials, first_step, steps
from tests.models.tiny import CONTEXT
from tests.pruning.cases import batches, brute_force, literal, loss, model, rows

LENGTHS = (24, 24, 9, 24, 17)


def path(net, lazy=False, step=4, lengths=LENGTHS, policy="selective", past=None, size=2, floor=None, **how):
    procedure = Procedure(CONTEXT, step, floor, lazy)
    budgets = past[-1].budgets if past else (CONTEXT,) * net.config.num_hidden_layers
    trials = Trials(net, batches(lengths, size), budgets, policy, **how)
    past = past or [first_step(trials)]
    return [*past, *steps(trials, procedure, past)]


@pytest.mark.parametrize("policy", ["selective", "h2o", "tova", "window+4"])
@pytest.mark.parametrize("memory", [None, 0])
def test_exact_is_the_papers_procedure(policy, memory):
    """Budgets, loss and the loss of every candidate, in every iteration; also where states do not fit into memory."""
    net = model()
    found = path(net, policy=policy, memory=memory)
    want = literal(net, rows(LENGTHS), CONTEXT, 4, 4, policy)
    assert [step.budgets for step in found] == [budgets for budgets, _, _ in want]
    for step, (budgets, loss_then, tried) in zip(found, want, strict=True):
        assert step.loss == pytest.approx(loss_then, rel=1e-12)
        assert step.tried == pytest.approx(tried, rel=1e-12)
        assert step.factor == pytest.approx(3 * CONTEXT / sum(budgets))
    assert len(found) == 1 + 3 * 5
    assert found[-1].budgets == (4, 4, 4)


@pytest.mark.parametrize(("step", "floor", "coarse"), [(8, 5, 8), (5, 2, 9), (5, 6, 9), (4, 4, 4), (1, 20, 20)])
def test_with_a_floor_it_goes_on_one_token_at_a_time(step, floor, coarse):
    """First the paper's path as far as it goes, then the same procedure with C = 1, exactly to the floor."""
    net = model()
    found = path(net, step=step, floor=floor)
    want = literal(net, rows(LENGTHS), CONTEXT, step, max(step, floor))
    assert want[-1][0] == (coarse,) * 3
    want += literal(net, rows(LENGTHS), CONTEXT, 1, floor, start=want[-1][0])[1:]
    assert [step.budgets for step in found] == [budgets for budgets, _, _ in want]
    for now, (_, loss_then, tried) in zip(found, want, strict=True):
        assert now.loss == pytest.approx(loss_then, rel=1e-12)
        assert now.tried == pytest.approx(tried, rel=1e-12)
    assert found[-1].budgets == (floor,) * 3


@given(context=st.integers(3, 40), step=st.integers(1, 12), floor=st.none() | st.integers(2, 30), data=st.data())
def test_the_number_of_iterations_is_known_beforehand(context, step, floor, data):
    """Whoever gives: the sum of budgets after each iteration is the same, and so is the end."""
    try:
        procedure = Procedure(context, step, floor)
    except SelattnError:
        assert context <= (floor or 0) or context - step < max(2, step)
        return
    budgets, sums = [context] * 3, [3 * context]
    while can := procedure.candidates(budgets):
        gives = procedure.gives(budgets)
        budgets[data.draw(st.sampled_from(can))] -= gives
        sums.append(sum(budgets))
    assert len(sums) - 1 == procedure.iterations(3)
    assert budgets == [procedure.smallest] * 3
    assert procedure.smallest == floor or (floor is None and procedure.smallest in range(max(2, step), 2 * step + 1))
    wanted = data.draw(st.integers(sums[-1], sums[0]))
    assert procedure.iterations(3, wanted) == next(i for i, total in enumerate(sums) if total <= wanted)


def test_the_loss_of_a_path_is_that_of_the_model_with_its_budgets():
    net = model(attention=["selective", "standard", "selective:6"], positions="rotary")
    for step in path(net)[::5]:
        assert step.loss == pytest.approx(loss(net, rows(LENGTHS), step.budgets), rel=1e-12)


def test_greedy_finds_the_best_where_it_can():
    """Where layers do not disturb each other greedy is optimal; here brute force says that it is."""
    net = model(seed=3)
    for step in path(net, step=8):
        assert step.budgets == brute_force(net, rows(LENGTHS), CONTEXT, 8, 8, sum(step.budgets))


def test_rows_that_a_budget_cannot_touch_are_not_run():
    long, short = Trials(model(), batches((24,) * 4), (24,) * 3), Trials(model(), batches((24, 24, 9, 9)), (24,) * 3)
    for trials in (long, short):
        before = trials.evaluations
        trials.loss_with(1, 12)
        trials.ran = trials.evaluations - before
    assert (long.ran, short.ran) == (2, 1)


def test_a_trial_runs_the_layers_from_its_own_on_and_its_own_only_once():
    trials = Trials(model(), batches((24,) * 4), (24,) * 3)
    ran = []
    for layer, budget in ((0, 20), (1, 20), (2, 20), (0, 20)):
        before = trials.evaluations
        trials.loss_with(layer, budget)
        ran.append(trials.evaluations - before)
    assert ran == [3, 2, 1, 2]
    before = trials.evaluations
    trials.accept(0, 20)
    assert trials.evaluations in (before, before + 2)  # nothing if it was the best, else the layers above


def test_a_search_goes_on_from_any_iteration():
    net = model()
    for lazy, floor in itertools.product((False, True), (None, 2)):
        whole = path(net, lazy, floor=floor)
        for stop in (1, 4, 9, len(whole) - 2, len(whole)):
            assert path(net, lazy, past=whole[:stop], floor=floor) == whole


def test_lazy_wins_only_with_what_it_has_evaluated():
    """The rule as it is written, checked from the path alone."""
    found = path(model(seed=1), lazy=True, step=2)
    bounds = {}
    for before, step in itertools.pairwise(found):
        bounds |= {layer: tried - before.loss for layer, tried in step.tried.items()}
        can = [layer for layer, k in enumerate(before.budgets) if k - 2 >= 2]
        assert step.layer in step.tried
        assert bounds[step.layer] == min(bounds[layer] for layer in can)
        assert step.loss == step.tried[step.layer]


def test_lazy_forgets_its_bounds_when_layers_give_less():
    """What C tokens cost is no bound of what one costs: the first time, every layer is evaluated."""
    found = path(model(), lazy=True, floor=2)
    first = next(step for before, step in itertools.pairwise(found) if sum(before.budgets) - sum(step.budgets) == 1)
    assert sorted(first.budgets) == [3, 4, 4]
    assert set(first.tried) == {0, 1, 2}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"step": 0}, "at least 1 token"),
        ({"floor": 1}, "at least 2 tokens"),
        ({"step": 24}, "no layer can give 24"),
        ({"floor": 24}, "no layer can give any and keep 24"),
    ],
)
def test_errors(settings, says):
    with pytest.raises(SelattnError, match=says):
        Procedure(CONTEXT, **settings)

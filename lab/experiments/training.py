"""Losses over training, and what the paper leaves open: budgets in force, the memory loss, fine-tuning."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure

from lab.engine.experiment import TITLES, Experiment, Need, of_seed, trio, with_seeds
from lab.engine.lab import Lab
from lab.engine.pruning import GAIN, at_limit, loss_with, search, within_own
from lab.engine.records import Cell, Claim, Measured, Reproduction, Values, differences
from lab.engine.store import Trained
from lab.scales import KINDS, MEMORY, SELECTIVE, STANDARD, Scale
from selattn.data import DocumentRows, PackedRows, read_tokenizer, store_for
from selattn.evaluation.tradeoff import nearest
from selattn.models.loading import load
from selattn.pruning.folder import read_path
from selattn.training.config import RunConfig, Shrink, Start, TextData
from selattn.training.folder import MODEL
from selattn.views.plot.style import COLORS, MARKERS, heading, new_figure, styled

# --- Training on with the budgets that a search has found, after it or in each iteration

SHRUNK = 64  # the context over the mean budget, where that is possible
ROUNDS = 3


def _selective_alone(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The selective model; further training depends on the budgets that are searched."""
    return with_seeds({SELECTIVE: scale.run(SELECTIVE)}, seeds)


def _trained_on(scale: Scale, steps: int, budgets: Sequence[int] | None, seed: int) -> RunConfig:
    """A few steps more with a tenth of the learning rate, with these budgets in force."""
    model: dict[str, Any] = {} if budgets is None else {"cache_budgets": list(budgets)}
    return dataclasses.replace(scale.run(SELECTIVE, steps=steps, lr=scale.lr / 10, **model), seed=seed)


def _nearest_budgets(lab: Lab, model: Trained, size: int) -> tuple[int, ...]:
    """Of the search of a model, those whose mean is nearest to a size."""
    return nearest([step.budgets for step in read_path(search(lab, model))], [size])[0]


def _after_pruning(lab: Lab) -> Measured:
    """The loss with the budgets before, after training with them in force, and after training without them."""
    scale = lab.scale
    size, steps = max(scale.context // SHRUNK, 4), max(scale.steps // 25, 2)
    rows: dict[str, list[float]] = {"as it was": [], "trained with the budgets": [], "trained without": []}
    for seed in lab.seeds:
        base = lab.trained(SELECTIVE, seed)
        budgets = _nearest_budgets(lab, base, size)
        models = {"as it was": base}
        for name, given in (("trained with the budgets", budgets), ("trained without", None)):
            need = Need(_trained_on(scale, steps, given, seed), after=base.need)
            models[name] = lab.train(of_seed(name, seed), need)
        for name, model in models.items():
            rows[name].append(loss_with(lab, load(model.model), budgets))
    lab.settings |= {"mean_budget": size, "steps": steps}
    cells = tuple(Cell(name, "loss with the budgets, unseen documents", tuple(values)) for name, values in rows.items())
    claim = Claim(
        "Training on with the budgets in force helps the pruned model.",
        differences(tuple(rows["trained without"]), tuple(rows["trained with the budgets"])),
        "loss after training without the budgets less that after training with them, nats",
    )
    return Measured(cells, (claim,), (f"Budgets of {size} tokens a layer on average; {steps} steps more.",))


def _each_iteration(lab: Lab) -> Measured:
    """Prune and train in turn, down to the same size as pruning first and training then, with as many steps in all."""
    scale = lab.scale
    last, steps = max(scale.context // SHRUNK, 4), max(scale.steps // 25 // ROUNDS, 1)
    sizes = [round(scale.context * (last / scale.context) ** (turn / ROUNDS)) for turn in range(1, ROUNDS + 1)]
    turns, once = [], []
    for seed in lab.seeds:
        base = model = lab.trained(SELECTIVE, seed)
        need = base.need
        budgets: tuple[int, ...] = ()
        for turn, size in enumerate(sizes):
            budgets = _nearest_budgets(lab, model, size)
            need = Need(_trained_on(scale, steps, budgets, seed), after=need)
            model = lab.train(of_seed(f"turn {turn + 1}", seed), need)
        turns.append(loss_with(lab, load(model.model), budgets))
        searched = _nearest_budgets(lab, base, last)
        whole = Need(_trained_on(scale, steps * ROUNDS, searched, seed), after=base.need)
        once.append(loss_with(lab, load(lab.train(of_seed("once", seed), whole).model), searched))
    lab.settings |= {"mean_budgets": sizes, "steps": steps}
    cells = (
        Cell("pruned and trained in turn", "loss with the budgets, unseen documents", tuple(turns)),
        Cell("pruned, then trained", "loss with the budgets, unseen documents", tuple(once)),
    )
    claim = Claim(
        "Training on in each iteration is better than after the last.", differences(tuple(once), tuple(turns)),
        "loss of pruned, then trained less that of pruned and trained in turn, nats",
    )  # fmt: skip
    return Measured(
        cells, (claim,), (f"Mean budgets {sizes}, {steps} steps after each; as many steps in all for both.",)
    )


# --- Budgets that shrink during training

_USUAL, _SHRINKS = "whole cache in training", "budgets shrink in training"


def _budget(scale: Scale) -> int:
    return max(scale.context // 64, 4)


def _shrinking_needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """Selective models from new weights, with and without budgets that shrink over three quarters of the run."""
    run = scale.run(SELECTIVE, cache_budgets=[_budget(scale)] * scale.d)
    shrink = Shrink(steps=max(scale.steps * 3 // 4, 1))
    return with_seeds({_USUAL: scale.run(SELECTIVE), _SHRINKS: dataclasses.replace(run, shrink=shrink)}, seeds)


def _shrinking(lab: Lab) -> Measured:
    """The loss of both with the budgets in force."""
    budget = _budget(lab.scale)
    losses = {}
    for name in (_USUAL, _SHRINKS):
        models = [load(lab.trained(name, seed).model) for seed in lab.seeds]
        losses[name] = tuple(loss_with(lab, model, [budget] * model.description.layers) for model in models)
    cells = tuple(
        Cell(name, f"loss with {budget} tokens a layer, unseen documents", each) for name, each in losses.items()
    )
    claim = Claim(
        "Budgets that shrink in training make a better pruned model.", differences(losses[_USUAL], losses[_SHRINKS]),
        "loss of the usual model less that of the one whose budgets shrank, nats",
    )  # fmt: skip
    return Measured(cells, (claim,), ("The same budget in every layer.",))


# --- The weight of the memory loss

_EPSILONS = (0.0, 0.02, 0.1, 0.3)


def _epsilon_name(epsilon: float) -> str:
    return f"epsilon {epsilon:g}"


def _epsilon_needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """Selective models with more and more weight on memory.

    The longest runs of a scale: what the memory loss costs, looking far back, is learned late.
    """
    tried = _EPSILONS if scale.name == "paper" else _EPSILONS[:3]
    long = scale.long_steps
    return with_seeds(
        {_epsilon_name(each): scale.run(SELECTIVE, steps=long, memory_epsilon=each) for each in tried}, seeds
    )


def _epsilon(lab: Lab) -> Measured:
    """Loss, and how far each can be pruned within a little of its own loss, on documents that were not searched on."""
    tried = list(dict.fromkeys(name.partition(",")[0] for name in lab.needs))
    cells, losses, factors = [], {}, {}
    for name in tried:
        pruned = [within_own(lab, lab.trained(name, seed)) for seed in lab.seeds]
        losses[name], factors[name] = lab.losses(name), tuple(factor for factor, _ in pruned)
        cells.append(Cell(name, "validation loss", losses[name]))
        cells.append(Cell(name, f"times less memory within {GAIN} nats (search)", factors[name], digits=1))
        cells.append(
            Cell(name, "what that costs on unseen documents, nats", tuple(cost for _, cost in pruned), digits=4)
        )
    small, usual = _epsilon_name(0.02), _epsilon_name(0.1)
    claims = (
        Claim(
            "epsilon 0.02 costs less loss than 0.1.", differences(losses[usual], losses[small]),
            "loss with 0.1 less that with 0.02, nats",
        ),
        Claim(
            "The memory loss of 0.1 makes the cache smaller.",
            tuple(a / b for a, b in zip(factors[usual], factors[_epsilon_name(0.0)], strict=True)),
            "factor with 0.1 over the factor without", than=1.0, digits=2,
        ),
    )  # fmt: skip
    return Measured(tuple(cells), claims, ("Each model is pruned to its own loss here, not to the standard model's.",))


# --- The memory loss at the end of training

ON_STANDARD, _ON_SELECTIVE = "standard, trained on", "selective, trained on"
LATE = "selective, memory loss at the end"
_CONTINUED = {  # the model it begins with, and the kind it becomes
    ON_STANDARD: (STANDARD, STANDARD),
    _ON_SELECTIVE: (SELECTIVE, SELECTIVE),
    LATE: (SELECTIVE, MEMORY),
}


def memory_late_needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The three models that are trained longest, and a fifteenth more of it: standard, and selective twice.

    The learning rate is a third of what it was.
    """
    needs = trio(scale, seeds)
    steps = max(scale.long_steps // 15, 2)
    for seed in seeds:
        for name, (before, kind) in _CONTINUED.items():
            run = dataclasses.replace(scale.run(kind, steps=steps, lr=scale.lr / 3), seed=seed)
            needs[of_seed(name, seed)] = Need(run, after=needs[of_seed(before, seed)])
    return needs


def _memory_late(lab: Lab) -> Measured:
    """Loss and memory of each, beside a standard model that was trained on for as long."""
    rows = {_ON_SELECTIVE: _ON_SELECTIVE, LATE: LATE, MEMORY: "selective, memory loss from the start"}
    losses = {name: lab.losses(name) for name in (ON_STANDARD, *rows)}
    cells = [Cell(ON_STANDARD, "validation loss", losses[ON_STANDARD])]
    own, equal = {}, {}
    for name, row in rows.items():
        models = [(lab.trained(name, seed), lab.trained(ON_STANDARD, seed)) for seed in lab.seeds]
        own[name] = tuple(within_own(lab, model) for model, _ in models)
        equal[name] = tuple(_factor_at(lab, model, standard) for model, standard in models)
        cells += [
            Cell(row, "validation loss", losses[name]),
            Cell(row, f"times less memory within {GAIN} nats of its own", tuple(x for x, _ in own[name]), digits=1),
            Cell(row, "what that costs on unseen documents, nats", tuple(x for _, x in own[name]), digits=4),
            Cell(row, f"times less memory at the loss of {ON_STANDARD}", equal[name], digits=1),
        ]
    more = [tuple(value or 0.0 for value in equal[name]) for name in (LATE, _ON_SELECTIVE)]
    claims = (
        Claim(
            "Added at the end, the memory loss makes the cache smaller.", differences(more[0], more[1]),
            f"factor at the loss of {ON_STANDARD} less that of {_ON_SELECTIVE} (0: no factor)", digits=1,
        ),
        Claim(
            "Added at the end, it costs less loss than from the start.", differences(losses[MEMORY], losses[LATE]),
            "loss with it from the start, not trained on, less that with it at the end, nats",
        ),
        Claim(
            "Added at the end, it leaves the model better than the standard one.",
            differences(losses[ON_STANDARD], losses[LATE]),
            f"loss of {ON_STANDARD} less that with it at the end, nats",
        ),
    )  # fmt: skip
    notes = ("Factors are those of the budgets searched, on the search set; trained on means a fifteenth more steps.",)
    return Measured(tuple(cells), claims, notes)


def _factor_at(lab: Lab, model: Trained, standard: Trained) -> float | None:
    """How far it is pruned at the standard model's loss; None if it is above that with everything kept."""
    limit = at_limit(lab, model, search(lab, model), standard)
    return None if limit is None else limit.factor


# --- A trained standard model made selective

_CONTROL, _TUNED = "standard, trained on", "made selective, trained on"
_FROM_START = "selective from the start"


def _ramped(scale: Scale, kind: str, ramp: int) -> RunConfig:
    """A third as many steps again, with a third of the learning rate; selection is ramped up in half of them."""
    run = scale.run(kind, steps=max(scale.steps // 3, 2), lr=scale.lr / 3)
    return dataclasses.replace(run, start=Start(ramp=ramp))


def _fine_tuning_needs(scale: Scale, seeds: Sequence[int]) -> dict[str, Need]:
    """The standard model, and two that begin with it: one stays as it is, one begins to select."""
    needs: dict[str, Need] = {}
    for seed in seeds:
        standard = Need(dataclasses.replace(scale.run(STANDARD), seed=seed))
        needs[of_seed(STANDARD, seed)] = standard
        for name, kind, ramp in ((_CONTROL, STANDARD, 0), (_TUNED, SELECTIVE, max(scale.steps // 6, 1))):
            run = dataclasses.replace(_ramped(scale, kind, ramp), seed=seed)
            needs[of_seed(name, seed)] = Need(run, after=standard)
        needs[of_seed(_FROM_START, seed)] = Need(dataclasses.replace(scale.run(SELECTIVE), seed=seed))
    return needs


def _fine_tuning(lab: Lab) -> Measured:
    """Their losses; the control has seen as many tokens as the one that was made selective."""
    names = (STANDARD, _CONTROL, _TUNED, _FROM_START)
    losses = {name: lab.losses(name) for name in names}
    cells = tuple(Cell(name, "validation loss", values) for name, values in losses.items())
    claim = Claim(
        "Made selective, a trained standard model gets better than one that is trained on as it is.",
        differences(losses[_CONTROL], losses[_TUNED]),
        "loss of the control less that of the model that was made selective, nats",
    )
    return Measured(cells, (claim,), ("Head 0 selects; its strength is ramped from 0 to 1.",))


# --- Losses, and the gap between them, over the number of training tokens

Course = dict[int, Values]  # tokens -> the loss of each seed


def _losses_by_tokens(lab: Lab, name: str) -> Course:
    """Every evaluation that all seeds of a model have."""
    seeds = []
    for seed in lab.seeds:
        trained = lab.trained(name, seed)
        per_step = _step_tokens(trained.need.run.data, trained.need.run.batch.size)
        course = trained.evaluations()
        seeds.append({step * per_step if per_step else tokens: score.loss for step, tokens, score in course})
    shared = [tokens for tokens in seeds[0] if all(tokens in each for each in seeds)]
    return {tokens: tuple(each[tokens] for each in seeds) for tokens in shared}


def _pass_tokens(lab: Lab, name: str) -> int | None:
    """After how many training tokens a second pass over the text begins; None of a task."""
    trained = lab.trained(name, lab.seeds[0])
    data = trained.need.run.data
    if not isinstance(data, TextData):
        return None
    tokenizer = read_tokenizer(trained.folder / MODEL)
    layout = DocumentRows if data.layout == "documents" else PackedRows
    return len(layout(store_for(data.source, tokenizer, "train", data.reading()), data.context)) * data.context


def _evaluate(lab: Lab) -> Measured:
    """The losses of each kind at every evaluation, and the gap between standard and selective."""
    courses = {kind: _losses_by_tokens(lab, kind) for kind in KINDS}
    standard, selective, _ = courses.values()
    shared = [tokens for tokens in standard if all(tokens in each for each in courses.values())]
    gaps = {tokens: differences(standard[tokens], selective[tokens]) for tokens in shared}
    cells = []
    for tokens in shared:
        row = f"{tokens / 1e6:.1f}M tokens" if tokens >= 50_000 else f"{tokens:,} tokens"
        cells += [Cell(row, TITLES[kind], courses[kind][tokens]) for kind in KINDS]
        cells.append(Cell(row, "gap: standard less selective", gaps[tokens]))
    begins = _pass_tokens(lab, KINDS[0])
    last = shared[-1]
    notes = [
        "Losses are nats per token on held-out text; models of one seed see the same data in the same order.",
    ]
    if begins is not None:
        again = "; the second pass begins there" if begins < last else ", more than were read"
        notes.append(f"One pass over the text is {begins:,} tokens{again}.")
    details = {
        "kinds": {kind: [[tokens, list(values)] for tokens, values in each.items()] for kind, each in courses.items()},
        "pass_tokens": begins,
    }
    return Measured(tuple(cells), notes=tuple(notes), details=details)


def _concluding(claim: str, paper: float | None) -> Callable[[Reproduction], Reproduction]:
    """Whether there is a gap between the first two kinds, and whether it grows: on the whole, and in the last third."""

    def conclude(record: Reproduction) -> Reproduction:
        first, second = (
            {at: tuple(values) for at, values in points} for points in list(record.details["kinds"].values())[:2]
        )
        gaps = {at: differences(first[at], second[at]) for at in first if at in second}
        begin, end = min(gaps), max(gaps)
        late = min(gaps, key=lambda at: abs(at - end * 2 / 3))
        what = "gap at the end less that after {:.1f} million tokens, nats"
        claims = (
            Claim(claim, gaps[end], "standard's loss less selective's at the end, nats", paper=paper),
            Claim("The gap grows in training.", differences(gaps[end], gaps[begin]), what.format(begin / 1e6)),
            Claim("It still grows in the last third.", differences(gaps[end], gaps[late]), what.format(late / 1e6)),
        )
        return replace(record, claims=claims)

    return conclude


@styled
def draw_course(record: Reproduction) -> Figure:
    """Losses over tokens with a band over the seeds, and the gap below them."""
    figure = new_figure(6.4, 5.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    kinds: Mapping[str, Any] = record.details["kinds"]
    for number, (kind, points) in enumerate(kinds.items()):
        style: dict[str, Any] = {"color": COLORS[number], "marker": MARKERS[number], "markersize": 4, "linewidth": 1.3}
        tokens = [at / 1e6 for at, _ in points]
        above.plot(tokens, [statistics.fmean(values) for _, values in points], label=TITLES[kind], **style)
        if len(record.seeds) > 1:
            ends = [(min(values), max(values)) for _, values in points]
            above.fill_between(tokens, *zip(*ends, strict=True), color=COLORS[number], alpha=0.2, linewidth=0)
    first, second = (dict(points) for points in list(kinds.values())[:2])
    shared = [at for at in first if at in second]
    for seed in range(len(record.seeds)):
        gaps = [first[at][seed] - second[at][seed] for at in shared]
        below.plot([at / 1e6 for at in shared], gaps, color=COLORS[1], linewidth=1.0, alpha=0.8)
    below.axhline(0.0, color="0.4", linestyle=":")
    begins = record.details["pass_tokens"]
    if begins is not None and shared and begins < shared[-1]:
        for axes in (above, below):
            axes.axvline(begins / 1e6, color="0.4", linestyle="--", linewidth=0.8)
        above.text(begins / 1e6, above.get_ylim()[1], " second pass", va="top", fontsize=7)
    above.set_ylabel("loss, nats per token")
    below.set_ylabel("gap, nats (a line a seed)")
    below.set_xlabel("training tokens, millions")
    above.legend(frameon=False)
    for axes in (above, below):
        axes.grid(axis="y", color="0.9", linewidth=0.6)
        axes.set_axisbelow(True)
    heading(figure, f"{record.experiment}: standard beside selective attention over training ({record.scale} scale)")
    return figure


def _step_tokens(data: object, batch: int) -> int | None:
    """Tokens of a step, where every row is full; None for padded documents, whose log counts them."""
    return batch * data.context if isinstance(data, TextData) and data.layout == "packed" else None


def _course(
    name: str, paper: str, sentence: str, claim: str, positions: str, longer: int = 1, gap: float | None = None
) -> Experiment:
    """The three models with these positions, `longer` times as long as usual; `gap` is the paper's."""
    return Experiment(
        name,
        paper,
        sentence,
        lambda scale, seeds: trio(scale, seeds, positions=positions, steps=longer * scale.long_steps),
        _evaluate,
        draw_course,
        conclude=_concluding(claim, gap),
    )


EXPERIMENTS = (
    Experiment(
        "after-pruning",
        "open: training after pruning",
        "training on after the budgets have been set",
        _selective_alone,
        _after_pruning,
    ),
    Experiment(
        "each-iteration",
        "open: training in each iteration of the search",
        "pruning and training in turn beside pruning first and training then",
        _selective_alone,
        _each_iteration,
    ),
    Experiment(
        "shrinking",
        "open: a context that shrinks during training",
        "budgets that shrink during training",
        _shrinking_needs,
        _shrinking,
    ),
    Experiment(
        "epsilon",
        "open: the weight of the memory loss",
        "the memory loss with other weights",
        _epsilon_needs,
        _epsilon,
    ),
    Experiment(
        "memory-late",
        "open: when the memory loss begins",
        "the memory loss at the end of training beside the memory loss from its start",
        memory_late_needs,
        _memory_late,
    ),
    Experiment(
        "fine-tuning",
        "open: fine-tuning existing models",
        "a standard model that is fine-tuned into a selective one",
        _fine_tuning_needs,
        _fine_tuning,
        losses_only=True,
    ),
    _course(
        "course",
        "open: training tokens",
        "the gap between standard and selective attention over training, with rotary positions",
        "With rotary positions, too, selective attention has the smaller loss.",
        "rotary",
    ),
    _course(
        "course-learned",
        "Section 6.1, and open: training tokens",
        "the gap between standard and selective attention over training, with learned positions",
        "With learned positions, as in the paper, selective attention has the smaller loss.",
        "learned",
        gap=0.04,
    ),
    _course(
        "course-long",
        "open: training tokens",
        "the gap over twice as many training tokens, with rotary positions",
        "Trained twice as long, selective attention still has the smaller loss.",
        "rotary",
        longer=2,
    ),
)

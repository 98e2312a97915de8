"""The reports of `selattn eval`: models side by side, and the trade-off between loss and memory."""

from __future__ import annotations

from collections.abc import Sequence

from selattn.evaluation.results import Comparison, Evaluated, Tradeoff
from selattn.utils.records import Provenance
from selattn.utils.typed import to_json
from selattn.views import plot
from selattn.views.html.blocks import Headline, Paragraph, Picture, Table
from selattn.views.html.document import Report, Section
from selattn.views.html.provenance import how_it_was_made
from selattn.views.words import factor, percent


def comparison_report(found: Comparison, made: Provenance) -> Report:
    """How good models are, and what that costs."""
    models = found.models
    words = (
        "Tokens that a layer holds, a mean over the layers. The factor is how many times less that is than the whole "
        "context in every layer."
    )
    sections = [
        *([Section("Loss on text", [losses(models), *against_memory(models)])] if models[0].text else []),
        *([Section("Multiple choice", [tasks(models)])] if models[0].tasks else []),
        Section("Memory", [Paragraph(words), memory(models)]),
        *([Section("Decoding", [decoding(models)])] if models[0].decoding is not None else []),
    ]
    return Report(
        title="How good models are, and what that costs",
        lead=", ".join(one.model for one in models),
        blocks=[],
        sections=[*sections, how_it_was_made(made, to_json(found.settings))],
    )


def losses(models: Sequence[Evaluated]) -> Table:
    """Log-perplexity of each model on each text; the best on the first text stands out."""
    texts = list(models[0].text)
    rows = [[one.model, *(f"{one.text[name].loss:.4f}" for name in texts)] for one in models]
    read = "; ".join(f"{name}: {models[0].text[name].tokens:,} tokens" for name in texts)
    best = min(range(len(models)), key=lambda i: models[i].text[texts[0]].loss)
    return Table(["model", *texts], rows, f"Nats per token, lower is better ({read})", strong=[best])


def against_memory(models: Sequence[Evaluated]) -> list[Picture]:
    """Each model's loss against what its caches hold; nothing where all hold the same, or contexts differ."""
    if len({one.kv.mean for one in models}) < 2 or len({one.context for one in models}) > 1:
        return []
    texts = list(models[0].text)
    points = [
        {"name": one.model, "points": [{"kv_size": one.kv.mean, "loss": {text: one.text[text].loss for text in texts}}]}
        for one in models
    ]
    record = {"texts": texts, "context": models[0].context, "baseline": None, "curves": points}
    caption = "Loss against the tokens that a layer holds; smaller caches to the right, better models below."
    return [Picture(plot.tradeoff(record), caption, "A point for each model: its loss and the size of its cache.")]


def tasks(models: Sequence[Evaluated]) -> Table:
    """Right answers with their standard errors, a row for each task and model; the first of a task names it."""
    rows = []
    for name in models[0].tasks:
        for number, one in enumerate(models):
            found = one.tasks[name]
            cells = (percent(found.acc, found.acc_stderr), percent(found.acc_norm, found.acc_norm_stderr))
            rows.append(["" if number else f"{name} ({found.questions:,} questions)", one.model, *cells])
    return Table(["task", "model", "accuracy", "normalised by length"], rows, "Percent right ± standard error")


def memory(models: Sequence[Evaluated]) -> Table:
    """What the caches hold."""
    head = ["model", "context", "tokens held", "less memory", "K of each layer", "who leaves"]
    rows = []
    for one in models:
        limits = one.budgets if isinstance(one.budgets, tuple) else (one.budgets,)
        shown = ["-", "-"] if one.budgets is None else [", ".join(map(str, limits)), one.policy]
        rows.append([one.model, f"{one.context:,}", f"{one.kv.mean:,.1f}", f"{one.kv.memory_factor:.2f}x", *shown])
    return Table(head, rows)


def decoding(models: Sequence[Evaluated]) -> Table:
    """Bytes and speed, each with what the steps ranged over."""
    rows, caption = [], ""
    for one in models:
        found = one.decoding
        assert found is not None
        low, high = found.quartiles
        speed = f"{found.tokens_per_second:,.1f} ({low:,.1f} to {high:,.1f})"
        rows.append([one.model, f"{found.cache_bytes:,}", f"{found.full_bytes:,}", speed])
        caption = f"Token by token, batch {found.batch}, up to {found.context:,} tokens; half of the steps lie between"
    return Table(["model", "bytes of the cache", "of a whole one", "tokens per second"], rows, caption)


def tradeoff_report(found: Tradeoff, made: Provenance) -> Report:
    """Loss against the size of the cache."""
    base = found.baseline
    words = [] if base is None else [(f"{loss:.4f}", f"{base.name}, {text}") for text, loss in base.loss.items()]
    picture = Picture(
        plot.tradeoff(to_json(found)),
        "Smaller caches to the right. The dotted line is the baseline with its whole cache.",
        "Curves of the loss against the number of tokens that a layer holds.",
    )
    settings = {"context": found.context, "texts": to_json(found.texts), "skip": found.skip}
    return Report(
        title="Loss against the size of the cache",
        lead=f"{len(found.curves)} curves at a context of {found.context:,} tokens.",
        blocks=[Headline(words)] if words else [],
        sections=[
            Section("The trade-off", [picture]),
            Section("Where the curves end", [ends(found, text) for text in found.texts]),
            how_it_was_made(made, settings),
        ],
    )


def ends(found: Tradeoff, text: str) -> Table:
    """The largest and the smallest cache of each curve, and where it reaches the baseline."""
    rows = []
    for curve in found.curves:
        points = sorted(curve.points, key=lambda point: -point.kv_size)
        shown = [f"{point.kv_size:g}: {point.loss[text]:.4f}" for point in (points[0], points[-1])]
        rows.append([curve.name, *shown, factor(curve.at_the_baselines_loss.get(text))])
    head = ["curve", "largest cache: loss", "smallest cache: loss", "memory factor at the baseline's loss"]
    return Table(head, rows, text)

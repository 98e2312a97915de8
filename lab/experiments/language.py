"""Losses of language models, standard beside selective: sizes, contexts, heads, texts and architectures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from lab.engine.losses import Less, LossCells, Rows, Variant, by_positions, even_heads, loss_table, pair_table
from lab.engine.records import Claim, differences
from lab.runs import find_run
from lab.scales import PAIR, SELECTIVE, STANDARD, Scale
from lab.t5 import SpanData
from selattn.training.config import Batching, Checkpoints, Evaluation, RunConfig, Schedule

# Table 5 contradicts Tables 2, 4 and 6, which have what is in `_BY_SIZE`.
DISAGREES = (
    "The paper's tables disagree: selective attention after 524,288 steps has 2.6373 (d=12), 2.5483 (14) and 2.4156 "
    "(18) in Table 4, and 2.7251, 2.6423 and 2.5209 in Table 5."
)
SAME = (
    "In Table 6 all-local 128 and local-global 128 are both 2.7154, and local-global gets worse from 32 to 128: one of "
    "these numbers is probably a slip."
)
_SIMILAR = 'The paper, of this variant: "similar results", without numbers.'

# --- Figures 3 and 4: context size, model size, heads


def _contexts(scale: Scale) -> Rows:
    return {
        f"{context} tokens{added}": {"context": context, "positions": positions, "batch": scale.context_batch}
        for positions, added in by_positions(scale).items()
        for context in sorted(scale.contexts)
    }


def _gain_grows(scale: Scale, losses: LossCells) -> Sequence[Claim]:
    low, high = min(scale.contexts), max(scale.contexts)
    return [
        Claim(
            f"The gain grows with the context{added}.",
            differences(losses.gap(f"{high} tokens{added}"), losses.gap(f"{low} tokens{added}")),
            f"gap at {high} tokens less that at {low}, nats",
        )
        for added in by_positions(scale).values()
    ]


CONTEXT_SIZE = pair_table(
    "context-size",
    "Figure 3, left",
    "loss of standard and selective attention against context size",
    _contexts,
    "At {row}: selective attention has the smaller loss.",
    axis=("context", "context size, tokens"),
    more=_gain_grows,
    notes=(
        "The paper shows this as a figure without numbers. Steps have the same number of tokens at every size here.",
    ),
)

_BY_SIZE: dict[tuple[str, object], float] = {
    (STANDARD, 8): 2.96, (SELECTIVE, 8): 2.90, (STANDARD, 12): 2.6815, (SELECTIVE, 12): 2.6372,
    (SELECTIVE, 14): 2.5483, (SELECTIVE, 16): 2.4741, (SELECTIVE, 18): 2.4156, (SELECTIVE, 20): 2.3673,
    (SELECTIVE, 24): 2.2865,
}  # fmt: skip
MODEL_SIZE = pair_table(
    "model-size",
    "Figure 3, right",
    "loss of standard and selective attention against model size",
    lambda scale: {
        f"d={d}{added}": {"d": d, "positions": positions}
        for positions, added in by_positions(scale).items()
        for d in sorted(scale.sizes)
    },
    "At {row}: selective attention has the smaller loss.",
    gains={"d=8": 0.06, "d=12": 0.044},
    papers=_BY_SIZE,
    axis=("d", "d: layers, heads, and d_model / 64"),
    notes=(DISAGREES,),
)

_COMPARABLE = 0.02  # nats: with twice as many heads standard attention is about as good
_SIZES = {"smoke": (2,), "laptop": (3,), "paper": (8, 12, 16)}


def _heads(d: int) -> list[int]:
    """d heads, a quarter more, half as many more, twice as many."""
    return sorted({d, d + d // 4, d + d // 2, 2 * d})


def _more_heads(scale: Scale) -> list[Variant]:
    """Standard models with more and more heads, and a selective one with d of them."""
    made = []
    for positions, added in by_positions(scale).items():
        for d in _SIZES[scale.name]:
            run = scale.run(SELECTIVE, d=d, positions=positions)
            made.append(Variant(f"{d} heads, d={d}{added}", SELECTIVE, run, x=d))
            for heads in _heads(d):
                run = scale.run(STANDARD, d=d, positions=positions, num_attention_heads=heads)
                made.append(Variant(f"{heads} heads, d={d}{added}", STANDARD, run, x=heads))
    return made


def _fewer_heads_do(scale: Scale) -> list[Less]:
    """Better than half as many heads more, and about as good as twice as many."""
    made = []
    for added in by_positions(scale).values():
        for d in _SIZES[scale.name]:
            own = (f"{d} heads, d={d}{added}", SELECTIVE)
            for heads in _heads(d):
                better = f"is within {_COMPARABLE} nats of" if heads == 2 * d else "is better than"
                text = f"Selective attention with {d} heads {better} standard attention with {heads}{added}."
                by = -_COMPARABLE if heads == 2 * d else 0.0
                made.append(Less(text, own, (f"{heads} heads, d={d}{added}", STANDARD), by=by))
    return made


EXTRA_HEADS = loss_table(
    "extra-heads",
    "Figure 4",
    "standard attention with more heads beside selective attention",
    variants=_more_heads,
    claims=_fewer_heads_do,
    notes=("The paper has it as a figure: standard attention becomes comparable with about twice as many heads.",),
    axis="attention heads",
)

# --- Table 6 and Figure 7: local and sparse attention, trained


def _patterns(
    scale: Scale, models: dict[str, dict[str, Any]], papers: dict[str, float] | None = None, **settings: Any
) -> list[Variant]:
    """A row for each pattern of attention, a column for each kind of positions."""
    return [
        Variant(name, f"loss{added}", scale.run(model, positions=positions, **settings), (papers or {}).get(name))
        for positions, added in by_positions(scale).items()
        for name, model in models.items()
    ]


_TABLE_6 = {
    "all-local 32": 2.7860, "all-local 64": 2.7386, "all-local 128": 2.7154, "all-local 256": 2.6981,
    "all-local 384": 2.6873, "all-local 448": 2.6849, "all-local 480": 2.6834,
    "local-global 32": 2.7046, "local-global 64": 2.7105, "local-global 128": 2.7154, "local-global 256": 2.6993,
    "local-global 384": 2.6895, "local-global 448": 2.6870, "local-global 480": 2.6861,
    STANDARD: 2.6815, SELECTIVE: 2.6372,
}  # fmt: skip


def _local(scale: Scale) -> dict[str, dict[str, Any]]:
    layers = 2 if scale.name == "laptop" else 3  # local ones, of its three layers, or of every four
    models: dict[str, dict[str, Any]] = {f"all-local {w}": {"attention": [f"local:{w}"]} for w in scale.windows}
    models |= {f"local-global {w}": {"attention": [f"local:{w}"] * layers + [STANDARD]} for w in scale.windows}
    return models | {kind: {"attention": [kind]} for kind in PAIR}


def _local_is_worse(scale: Scale) -> list[Less]:
    """All of them are worse than standard attention, and that is worse than selective attention."""
    made = []
    for added in by_positions(scale).values():
        column = f"loss{added}"
        for name in _local(scale):
            if name == SELECTIVE:
                text = f"Selective is better than standard{added}."
                made.append(Less(text, (name, column), (STANDARD, column), 0.0443))
            elif name != STANDARD:
                paper = _TABLE_6[name] - _TABLE_6[STANDARD] if name in _TABLE_6 else None
                text = f"{name} is worse than standard{added}."
                made.append(Less(text, (STANDARD, column), (name, column), paper))
    return made


LOCAL = loss_table(
    "local",
    "Table 6",
    "local and local-global attention beside standard and selective attention",
    # Smoke has enough layers for the local ones and a global one.
    variants=lambda scale: _patterns(
        scale, _local(scale), _TABLE_6, **({"num_hidden_layers": 4} if scale.name == "smoke" else {})
    ),
    claims=_local_is_worse,
    notes=(
        SAME,
        "Local-global has three local layers before each global one; two at the laptop scale, with three layers.",
    ),
)


def _sparse(scale: Scale) -> dict[str, dict[str, Any]]:
    """The two patterns of Child et al., standard and selective."""
    stride = 32 if scale.context >= 512 else 8
    kinds = {f"strided {stride}": f"strided:{stride}", f"fixed {stride}": f"fixed:{stride}:{stride // 4}"}
    return {name: {"attention": [kind]} for name, kind in {**kinds, **{kind: kind for kind in PAIR}}.items()}


SPARSE = loss_table(
    "sparse",
    "Figure 7, sparse attention",
    "strided and fixed sparse attention beside standard and selective attention",
    variants=lambda scale: _patterns(scale, _sparse(scale)),
    claims=lambda scale: [
        Less(f"Selective attention is better than {name}{added}.", (SELECTIVE, f"loss{added}"), (name, f"loss{added}"))
        for added in by_positions(scale).values()
        for name in _sparse(scale)
        if name != SELECTIVE
    ],
    notes=(
        "The paper does not give its strides; ours are near the root of the context, as Child et al. advise. A strided "
        "layer reads few tokens, but has to hold all of them.",
    ),
)

# --- Section 5: other texts, vocabularies, learning rates and architectures


def _heads_shared(scale: Scale) -> Rows:
    """As many key-value heads as query heads, half of them, and one."""
    heads = even_heads(scale)
    shared: dict[str, int] = {"multi-head": heads, "grouped-query": max(heads // 2, 1), "multi-query": 1}
    return {
        f"{name}, {kv} of {heads} key-value heads{added}": {
            "num_attention_heads": heads,
            "num_key_value_heads": kv if kv < heads else None,
            "positions": positions,
        }
        for positions, added in by_positions(scale).items()
        for name, kv in shared.items()
        if name != "grouped-query" or kv > 1
    }


def _recency(scale: Scale, losses: LossCells) -> Sequence[Claim]:
    gaps = (losses.gap(f"{each} positions") for each in ("learned", "rotary"))
    what = "gap with learned positions less that with rotary ones, nats"
    return (Claim("Part of the gap is recency, which rotary positions give anyway.", differences(*gaps), what),)


_LARGER = {"smoke": 700, "laptop": 8_192, "paper": 32_000}
_GPT2 = {
    "norm": "layernorm",
    "norm_eps": 1e-5,
    "mlp": "gelu",
    "bias": True,
    "tie_word_embeddings": True,
    "qk_norm": False,
    "positions": "learned",
}


def _on_text(name: str, title: str) -> Any:
    return pair_table(
        name,
        f"Section 5, {title}",
        f"standard and selective attention on {title}",
        lambda scale: {title: {}},
        "Selective attention has the smaller loss on {row}.",
        on=lambda scale: scale.on(name),
        notes=(
            'The paper, of this text: "similar results", without numbers. It comes from the hub, or from a file that '
            f"--text {name}=FILE names; the smoke test reads Python's documentation instead.",
        ),
    )


SETTINGS = (
    pair_table(
        "gpt2",
        "Section 5, other variants",
        "standard and selective attention in GPT-2's exact architecture",
        lambda scale: {"GPT-2": _GPT2},
        "Selective attention has the smaller loss in the architecture of {row}, too.",
        notes=(_SIMILAR,),
    ),
    pair_table(
        "vocabulary",
        "Section 5, 32K vocabulary",
        "standard and selective attention with a larger vocabulary",
        lambda scale: {f"{_LARGER[scale.name]:,} tokens": {}},
        "Selective attention has the smaller loss with a vocabulary of {row}.",
        on=lambda scale: dataclasses.replace(
            scale, data=dataclasses.replace(scale.data, vocabulary=_LARGER[scale.name])
        ),
        notes=('The paper, of 32K tokens: "similar results". A laptop has 8,192.',),
    ),
    _on_text("wikitext", "WikiText"),
    _on_text("lm1b", "lm1b"),
    pair_table(
        "qk-norm",
        "Section 5, QK norm",
        "standard and selective attention without QK norm",
        lambda scale: {"with QK norm": {}, "without QK norm": {"qk_norm": False}},
        "Selective attention has the smaller loss {row}.",
        notes=(_SIMILAR,),
    ),
    pair_table(
        "learning-rate",
        "Section 5, learning rates",
        "standard and selective attention at other learning rates",
        lambda scale: {f"learning rate {lr:g}": {"lr": lr} for lr in (scale.lr / 3, scale.lr, scale.lr * 2)},
        "Selective attention has the smaller loss at {row}.",
        notes=(_SIMILAR,),
    ),
    pair_table(
        "positions",
        "open: rotary positions",
        "standard and selective attention with learned and with rotary positions",
        lambda scale: {f"{each} positions": {"positions": each} for each in ("learned", "rotary")},
        "Selective attention has the smaller loss with {row}.",
        gains={"learned positions": 0.0443},
        more=_recency,
    ),
    pair_table(
        "grouped-query",
        "open: multi-query and grouped-query attention",
        "standard and selective attention with fewer key-value heads",
        _heads_shared,
        "Selective attention has the smaller loss with {row}.",
    ),
)

# --- Table 7: T5, span corruption

_TABLE_7 = {"small": (1.962, 1.952), "base": (1.693, 1.691), "large": (1.528, 1.522)}  # standard, selective


def _t5_tiny(scale: Scale, kind: str) -> RunConfig:
    """The tiny T5 of `python -m lab train`, on the text of the scale; smoke makes it smaller still."""
    run = find_run(f"t5-tiny-{kind}")
    assert isinstance(run.data, SpanData)
    data = dataclasses.replace(run.data, source=scale.data.source)
    if scale.name == "laptop":
        return dataclasses.replace(run, data=data)
    small = {"d_model": 32, "d_ff": 64, "d_kv": 16, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}
    text = scale.data
    data = dataclasses.replace(data, vocabulary=text.vocabulary, limit=text.limit, validation=text.validation)
    return dataclasses.replace(
        run,
        data=dataclasses.replace(data, context=scale.context),
        model={**run.model, **small},
        schedule=Schedule(steps=scale.steps, warmup=scale.warmup, decay="linear"),
        batch=Batching(size=4),
        evaluation=Evaluation(every=scale.every, rows=scale.eval_rows, batch=8),
        checkpoints=Checkpoints(every=scale.every),
        log_every=4,
    )


def _t5(scale: Scale) -> list[Variant]:
    """Both kinds of the paper's three sizes, or of one tiny one."""
    if scale.name != "paper":
        return [Variant("T5, tiny", kind, _t5_tiny(scale, kind)) for kind in PAIR]
    return [
        Variant(f"T5, {size}", kind, find_run(f"c4-t5-{size}-{kind}"), value)
        for size, values in _TABLE_7.items()
        for kind, value in zip(PAIR, values, strict=True)
    ]


def _t5_is_better(scale: Scale) -> list[Less]:
    sizes = {name: a - b for name, (a, b) in _TABLE_7.items()} if scale.name == "paper" else {"tiny": None}
    return [
        Less(
            f"T5 is better with selective attention ({size}).",
            (f"T5, {size}", SELECTIVE),
            (f"T5, {size}", STANDARD),
            paper,
        )
        for size, paper in sizes.items()
    ]


T5 = loss_table(
    "t5",
    "Table 7",
    "T5 with selective attention in the decoder, span corruption",
    variants=_t5,
    claims=_t5_is_better,
    notes=(
        "The loss is that of span corruption for each token that is not padding. The encoder and the attention to it "
        "are untouched.",
    ),
)

EXPERIMENTS = (CONTEXT_SIZE, MODEL_SIZE, EXTRA_HEADS, LOCAL, SPARSE, *SETTINGS, T5)

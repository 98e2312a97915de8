"""What a model does with one text, token by token: the data behind figures and the explorer.

    found = trace("zoo:memory", "a text", runs=[("selective", 32)])
    found.F(0)               # [N, N] of layer 0: how much a row finds each earlier token masked
    found.S(0)               # [N, N] who masked whom, and how much
    found.weights(0)         # [N, N] attention, a mean over the heads
    found.evicted_at(0)      # [L, N] of the first run: the row from which a token is gone; N if it stays
    found.save("trace.json") # from which every figure can be drawn again without the model

F and the weights are those of the forward without budgets. F and S are rounded to a step that the record states; when
tokens leave is exact, from forwards with the budgets in force.

`mean_f` averages F over many texts: whether a layer always masks the same distances, whatever it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from selattn.cache import Budgets, Policy, make_policy
from selattn.data.task import SAMPLE
from selattn.errors import NotFiniteError, SelattnError
from selattn.evaluation.examples import PAPER
from selattn.evaluation.text import Text
from selattn.evaluation.traces import Floats, MeanF, Trace, pack_rising, pack_shares, pack_steps
from selattn.models.loading import TRAINING, Loaded, load
from selattn.models.seam import LanguageModel, WatchedModel
from selattn.utils.progress import Progress
from selattn.utils.records import read_record

STEP = 1 / 32  # of F: e^-F is right to 1.6%
Run = tuple[str | Policy, Budgets | int | Sequence[int]]
Model = str | Path | Loaded | LanguageModel


class Words(NamedTuple):
    """A text as a model reads it."""

    ids: list[int]
    tokens: list[str]  # put together they are the text, but for special tokens such as <s>; "" continues a character


def given_text(name: str | None, loaded: Loaded) -> str:
    """The text that `--text` names: `paper`, `sample` (the one beside a model), or a file.

    Without a name it is the model's own sample, if it has one, or the paper's example.
    """
    sample = loaded.folder / SAMPLE
    if name == "sample" or (name is None and sample.is_file()):
        if not sample.is_file():
            raise SelattnError(f"{loaded.name} has no {SAMPLE}: give --text a file, or 'paper'")
        name = str(sample)
    if name in (None, "paper"):
        return PAPER
    try:
        return Path(str(name)).expanduser().read_text("utf-8")
    except OSError as error:
        raise SelattnError(f"cannot read {name}: {error.strerror}; --text takes a file, 'paper' or 'sample'") from None
    except UnicodeDecodeError:
        raise SelattnError(f"{name} is not text in UTF-8") from None


def read(loaded: Loaded, text: str) -> Words:
    """The ids of a text in the model's tokenizer, the first of them <BOS>."""
    if not isinstance(text, str):
        raise SelattnError(f"the text must be a str, not {text!r:.80}: of a file, what read_text() gives")
    if not text.strip():
        raise SelattnError("the text is empty: give at least one word")
    return Words(*loaded.tokenizer.split(text))


def trace(
    model: Model,
    text: str | Words,
    runs: Iterable[Run] = (),
    *,
    limit: int | None = None,
    step: float = STEP,
    name: str | None = None,
) -> Trace:
    """Run a model on a text and keep what pictures need of it.

    Args:
        model: a folder, a run's folder, zoo:NAME, what `selattn.load` gives for one of them, or a model itself.
        text: the text itself, or words that have been read.
        runs: policies and budgets for which to find out when each token leaves.
        limit: at most so many tokens; the model's context size by default.
        step: F is rounded to multiples of this.
        name: of the model, in titles; by default as it was given.
    """
    loaded, called, words = prepared(model, text)
    about = loaded.description
    most = min(limit or about.context, about.context)
    if most < 2:
        raise SelattnError(f"a picture needs at least 2 tokens, not {most}")
    ids, tokens = words.ids[:most], words.tokens[:most]
    row = torch.tensor([ids], device=loaded.device)
    return Trace(
        model=name or called,
        tokens=tokens,
        ids=ids,
        kinds=[kind.text for kind in about.kinds],
        shift=about.shift,
        cut_from=len(words.ids),
        packed=_layers(loaded, row, step),
        runs=[leaving(loaded, row, policy, budgets) for policy, budgets in runs],
    )


def leaving(
    model: WatchedModel, ids: Tensor, policy: str | Policy, budgets: Budgets | int | Sequence[int]
) -> dict[str, Any]:
    """One forward with budgets in force: when each token of ids [1, N] left each layer."""
    chosen, size = make_policy(policy), ids.shape[1]
    found = Budgets.of(budgets)
    assert found is not None
    each = found.for_layers(model.description.layers)
    with torch.no_grad():
        evicted = model.evictions(ids, found, chosen)
    steps = torch.stack([at[0].amax(0).clamp(max=size) for at in evicted])
    return {
        "policy": chosen.name,
        "budgets": list(each),
        "per_head": chosen.per_head,
        "evicted_at": pack_steps(steps.cpu().numpy()),
    }


def smallest_f(f: Tensor | None) -> Floats | None:
    """[N, N] of F [1, S, N, N]: of several masks the smallest, by which tokens are evicted."""
    return None if f is None else f[0].float().amin(0).cpu().numpy()


def _layers(model: WatchedModel, ids: Tensor, step: float) -> list[dict[str, Any]]:
    """Layer by layer, so that no more than one layer's weights are ever held."""
    found: list[dict[str, Any]] = []
    with torch.no_grad():
        for view in model.watch(ids):
            assert view.weights is not None
            if not bool(view.weights.isfinite().all()):
                raise NotFiniteError(f"the attention weights of layer {len(found)} are NaN")
            F, mean = smallest_f(view.f), view.weights[0].float().mean(0).cpu().numpy()
            found.append({"f": None if F is None else pack_rising(F, step), "weights": pack_shares(mean)})
    return found


def prepared(model: Model, text: str | Words) -> tuple[WatchedModel, str, Words]:
    """The model, its name, and the words of the text."""
    loaded = load(model)
    words = text if isinstance(text, Words) else read(loaded, text)
    return watched(loaded.model), loaded.name, words


def watched(model: LanguageModel) -> WatchedModel:
    """The model, if pictures can be made of it."""
    if not isinstance(model, WatchedModel):
        raise SelattnError(f"no picture can be made of a {type(model).__name__}: it has no watch() and evictions()")
    return model


def mean_f(
    model: str | Path,
    text: Text,
    rows: int = 100,
    *,
    limit: int | None = None,
    step: float = STEP,
    progress: Progress | None = None,
) -> MeanF:
    """The mean of F over so many documents of a text that are at least as long as the context.

    Args:
        model: a folder, a run's folder, or zoo:NAME.
        text: where documents are read from.
        rows: how many; an error if there are fewer.
        limit: tokens of a row, the model's context size by default.
        step: the mean is rounded to multiples of this.
        progress: is told of every row; None shows nothing.
    """
    loaded = load(model)
    size = min(limit or loaded.description.context, loaded.description.context)
    found = []
    for row in text.rows(loaded.tokenizer, size).take():
        if "attention_mask" not in row or bool(row["attention_mask"].all()):
            found.append(row["input_ids"])
        if len(found) == rows:
            break
    if rows < 1 or len(found) < rows:
        raise SelattnError(
            f"{text.source} has {len(found)} documents of {size} tokens, and {rows} were asked for: give more text, "
            "fewer --rows, or fewer --tokens"
        )
    packed = average(watched(loaded.model), found, step, progress)
    return MeanF(str(model), text.source, rows, size, packed, _run_of(loaded.folder))


def _run_of(folder: Path) -> dict[str, Any] | None:
    """What the record of the training beside a model says of its settings, if there is one."""
    if not (folder / TRAINING).is_file():
        return None
    found = read_record(folder / TRAINING).get("run")
    return found if isinstance(found, dict) else None


def average(
    model: WatchedModel,
    rows: Sequence[Tensor],
    step: float = STEP,
    progress: Progress | None = None,
) -> list[dict[str, Any] | None]:
    """The mean of F of each layer over rows [N] of token ids, packed."""
    progress = progress or Progress()
    progress.begin(len(rows), "F of texts")
    sums: list[Any] = [None] * model.description.layers
    count = 0
    with torch.no_grad():
        for row in rows:
            for number, view in enumerate(model.watch(row[None].to(model.device), weights=False)):
                F = smallest_f(view.f)
                if F is not None:
                    sums[number] = F.astype(np.float64) if sums[number] is None else sums[number] + F
            count += 1
            progress.advance()
    progress.end()
    return [None if total is None else pack_rising(total / count, step) for total in sums]

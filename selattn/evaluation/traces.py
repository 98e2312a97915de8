"""The behaviour of a model on one text, token by token: the data behind figures and the explorer.

    seen = trace("zoo:memory", "a text", runs=[("selective", 32)])
    seen.F(0)               # [N, N] of layer 0: how much each earlier token is masked for a row
    seen.S(0)               # [N, N] which row masked which token, and how much
    seen.weights(0)         # [N, N] attention, a mean over the heads
    seen.evicted_at(0)      # [L, N] of the first run: the row from which a token is gone; N if it stays
    seen.save("trace.json") # from which every figure can be drawn again without the model

F and the weights are those of the forward without budgets. F and S are rounded to a step that the record states;
evictions are exact, from forwards with the budgets in force. `mean_f` averages F over many texts: does a layer always
mask the same distances, whatever it reads?

A record loads neither torch nor a model. Large arrays are short strings in JSON: quantised, deflated, base64, which a
browser and numpy read alike.

Triangle   [N, N], 0 above the diagonal: F, or attention weights
Steps      [L, N] when each token is evicted from each layer; N if it stays

A triangle holds entries (i, j) with j <= i in the order of rows. Each is rounded to a multiple of `step`, so that an
unpacked entry is off by half a step at most. Of F the differences down each column are stored, which are S: rounding
does not add up, and S is off by one step at most.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from selattn.errors import NotFiniteError, SelattnError
from selattn.utils.progress import Progress
from selattn.utils.records import read_record, write_record

if TYPE_CHECKING:
    from torch import Tensor

    from selattn.cache import Budgets, Policy
    from selattn.evaluation.text import Text
    from selattn.models.loading import Loaded
    from selattn.models.protocols import LanguageModel, WatchedModel

Run: TypeAlias = "tuple[str | Policy, Budgets | int | Sequence[int]]"
Model: TypeAlias = "str | Path | Loaded | LanguageModel"
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

STEP = 1 / 32  # of F: e^-F is right to 1.6%
LARGEST = 2**15 - 1  # of a difference, in steps

# The paper's own example, from its appendix "Example Details", where it is taken from the validation part of C4; lower
# case and blanks as printed there.
PAPER = Path(__file__).with_name("paper.txt").read_text("utf-8").strip()
_LAST = "the definition of a hollywood smile"
PASSAGE = PAPER[: PAPER.index(_LAST) + len(_LAST)]  # its beginning, where a page of it is too much


class _Recorded:
    """A dataclass that a record holds under the name `at`."""

    at: ClassVar[str]
    made_by: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """As a record has it."""
        return {self.at: dict(vars(self))}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Self:
        """From a record; raises if it is incomplete."""
        try:
            found = cls(**record[cls.at])
            found.check()
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SelattnError(f"this is no whole record of {cls.made_by}") from None
        return found

    def save(self, path: str | Path) -> Path:
        """Write the record; returns its path."""
        return write_record(path, self.to_json(), None)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        return cls.from_json(read_record(path))

    def check(self) -> None:
        """Raise ValueError if parts do not fit together."""


@dataclass(frozen=True)
class Trace(_Recorded):
    """A model on a text. N tokens, L layers."""

    at = "trace"
    made_by = "a trace: make it with 'selattn plot ... --record FILE'"

    model: str  # as the user named it
    tokens: list[str]  # [N] as people write them
    ids: list[int]  # [N]
    kinds: list[str]  # [L] the attention of each layer: "selective", "standard", "local:32" and so on
    shift: bool  # a token's selection counts for later tokens only
    cut_from: int  # the number of tokens before the text was cut
    packed: list[dict[str, Any]]  # for each layer F, or None in a layer that does not select, and the weights
    runs: list[dict[str, Any]] = field(default_factory=list)  # with budgets: policy, budgets, per_head, evicted_at

    @property
    def size(self) -> int:
        """N."""
        return len(self.tokens)

    @property
    def layers(self) -> int:
        """L."""
        return len(self.kinds)

    @property
    def step(self) -> float:
        """The coarsest step of F over the layers."""
        return max((layer["f"]["step"] for layer in self.packed if layer["f"] is not None), default=0.0)

    def F(self, layer: int) -> Floats:
        """[N, N]: how much token j is masked for row i. 0 in a layer that does not select."""
        packed = self._layer(layer)["f"]
        return np.zeros((self.size, self.size), np.float32) if packed is None else unpack(packed)

    def S(self, layer: int) -> Floats:
        """[N, N]: how much row i adds to the masking of token j. What the last row selects is for tokens to come."""
        F = self.F(layer)
        rises = np.tril(np.diff(F, axis=0, prepend=np.float32(0)))
        if not self.shift:
            return rises
        return np.tril(np.concatenate([rises[1:], np.zeros_like(rises[:1])]))

    def weights(self, layer: int) -> Floats:
        """[N, N]: the share of row i's attention that token j gets, a mean over the heads."""
        return unpack(self._layer(layer)["weights"])

    def evicted_at(self, run: int = 0) -> Ints:
        """[L, N]: the row from which a token is gone, N if it stays; where heads evict alone, the last of them."""
        if not 0 <= run < len(self.runs):
            raise SelattnError(
                f"this trace has {len(self.runs)} runs with budgets: trace it with runs=[(policy, budgets)]"
            )
        return unpack_steps(self.runs[run]["evicted_at"], self.layers, self.size)

    def kept(self, layer: int, run: int = 0) -> NDArray[np.bool_]:
        """[N, N]: whether token j is in the cache of the layer when row i attends."""
        rows = np.arange(self.size)
        return (rows[None, :] <= rows[:, None]) & (rows[:, None] < self.evicted_at(run)[layer][None, :])

    def check(self) -> None:
        sizes = {part["size"] for layer in self.packed for part in layer.values() if part is not None}
        if len(self.packed) != self.layers or sizes != {self.size} or len(self.ids) != self.size:
            raise ValueError
        for run in range(len(self.runs)):
            self.evicted_at(run)

    def _layer(self, layer: int) -> dict[str, Any]:
        if not 0 <= layer < self.layers:
            raise SelattnError(f"there is no layer {layer}: the model has layers 0 to {self.layers - 1}")
        return self.packed[layer]


@dataclass(frozen=True)
class MeanF(_Recorded):
    """The mean of F over texts of N tokens."""

    at = "mean_f"
    made_by = "a mean: make it with 'selattn plot masking-mean'"

    model: str  # as the user named it
    text: str  # the source of the rows
    rows: int
    size: int  # N
    packed: list[dict[str, Any] | None]  # F of each layer; None in a layer that does not select
    run: dict[str, Any] | None = None  # the settings of the model's training, if there is a record of it

    @property
    def layers(self) -> int:
        """L."""
        return len(self.packed)

    def F(self, layer: int) -> Floats:
        """[N, N], the mean."""
        packed = self.packed[layer]
        return np.zeros((self.size, self.size), np.float32) if packed is None else unpack(packed)

    def check(self) -> None:
        if self.run is not None and not isinstance(self.run["data"], dict):
            raise ValueError
        if any(self.F(layer).shape != (self.size, self.size) for layer in range(self.layers)):
            raise ValueError


class Words(NamedTuple):
    """A text as a model reads it."""

    ids: list[int]
    tokens: list[str]  # joined they are the text, except for special tokens such as <s>; "" continues a character


def given_text(name: str | None, loaded: Loaded) -> str:
    """The text that `--text` names: `paper`, `sample` (the one beside a model), or a file.

    Without a name it is the model's own sample, if it has one, or the paper's example.
    """
    from selattn.data.task import SAMPLE

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
    """Run a model on a text, and keep F, the attention and the evictions.

    Args:
        model: a folder, a run's folder, zoo:NAME, what `selattn.load` gives for one of them, or a model itself.
        text: the text itself, or words that have been read.
        runs: policies and budgets whose evictions to find.
        limit: the most tokens; the model's context size by default.
        step: F is rounded to multiples of this.
        name: of the model, in titles; by default as it was given.
    """
    import torch

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
    """One forward with budgets in force: when each token of ids [1, N] is evicted from each layer."""
    import torch

    from selattn.cache import Budgets, make_policy

    chosen, size, limits = make_policy(policy), ids.shape[1], Budgets.of(budgets)
    assert limits is not None
    each = limits.for_layers(model.description.layers)
    with torch.no_grad():
        evicted = model.evictions(ids, limits, chosen)
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
    """Layer by layer, so that only one layer's weights are held at a time."""
    import torch

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
    from selattn.models.loading import load

    loaded = load(model)
    words = text if isinstance(text, Words) else read(loaded, text)
    return watched(loaded.model), loaded.name, words


def watched(model: LanguageModel) -> WatchedModel:
    """The model, if pictures can be made of it; else it raises."""
    from selattn.models.protocols import WatchedModel

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
    """The mean of F over documents of a text that are at least as long as the context.

    Args:
        model: a folder, a run's folder, or zoo:NAME.
        text: the source of the documents.
        rows: how many; an error if there are fewer.
        limit: tokens of a row, the model's context size by default.
        step: the mean is rounded to multiples of this.
        progress: shows the progress; None shows nothing.
    """
    from selattn.models.loading import load

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
    """The settings of a model's training, if there is a record of it."""
    from selattn.models.loading import TRAINING

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
    import torch

    progress = progress or Progress()
    progress.begin(len(rows), "F of texts")
    sums: list[Any] = [None] * model.description.layers
    with torch.no_grad():
        for row in rows:
            for number, view in enumerate(model.watch(row[None].to(model.device), weights=False)):
                F = smallest_f(view.f)
                if F is not None:
                    sums[number] = F.astype(np.float64) if sums[number] is None else sums[number] + F
            progress.advance()
    progress.end()
    return [None if total is None else pack_rising(total / len(rows), step) for total in sums]


def pack_rising(values: NDArray[Any], step: float) -> dict[str, Any]:
    """Pack F, whose rows differ little; with a coarser step where the given one is too fine."""
    size = _size(values)
    exact = values.astype(np.float64)
    steepest = float(np.abs(np.diff(exact, axis=0, prepend=0.0)).max(initial=0.0))
    step = max(step, steepest / (LARGEST - 1))
    levels = np.rint(exact / step).astype(np.int64)
    rises = np.diff(levels, axis=0, prepend=0)[np.tril_indices(size)]
    folded = np.where(rises < 0, -2 * rises - 1, 2 * rises).astype("<u2")  # small numbers of either sign are small
    return {"form": "rising", "size": size, "step": step, "data": _deflated(_planes(folded))}


def pack_shares(values: NDArray[Any]) -> dict[str, Any]:
    """Pack numbers in [0, 1], in steps of 1/255."""
    size = _size(values)
    levels = np.rint(np.clip(values, 0.0, 1.0)[np.tril_indices(size)] * 255).astype(np.uint8)
    return {"form": "shares", "size": size, "step": 1 / 255, "data": _deflated(levels.tobytes())}


def pack_steps(steps: NDArray[Any]) -> str:
    """Pack [L, N] whole numbers below 65,536."""
    return _deflated(_planes(steps.astype("<u2").ravel()))


def unpack(packed: dict[str, Any]) -> Floats:
    """[N, N]: the inverse of `pack_rising` and `pack_shares`, to within half a step."""
    size = int(packed["size"])
    count = size * (size + 1) // 2
    rising = packed["form"] == "rising"
    raw = _inflated(packed["data"], count * (2 if rising else 1))
    found = np.zeros((size, size), np.float64)
    if rising:
        folded = _joined(raw).astype(np.int64)
        found[np.tril_indices(size)] = np.where(folded & 1, -(folded + 1) // 2, folded // 2)
        found = np.tril(found.cumsum(0))
    else:
        found[np.tril_indices(size)] = np.frombuffer(raw, np.uint8)
    return (found * float(packed["step"])).astype(np.float32)


def unpack_steps(packed: str, layers: int, size: int) -> Ints:
    """[L, N]: the inverse of `pack_steps`."""
    return _joined(_inflated(packed, 2 * layers * size)).astype(np.int64).reshape(layers, size)


def _size(values: NDArray[Any]) -> int:
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not np.isfinite(values).all():
        raise SelattnError(f"a picture needs a square of finite numbers, not {list(values.shape)}")
    return int(values.shape[0])


def _planes(numbers: NDArray[Any]) -> bytes:
    """All low bytes, then all high bytes, which are mostly 0: that deflates better."""
    return numbers.view(np.uint8).reshape(-1, 2).T.tobytes()


def _joined(raw: bytes) -> NDArray[np.uint16]:
    low, high = np.frombuffer(raw, np.uint8).reshape(2, -1).astype(np.uint16)
    return (low | (high << 8)).astype(np.uint16)


def _deflated(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 6)).decode("ascii")


def _inflated(text: str, size: int) -> bytes:
    try:
        raw = zlib.decompress(base64.b64decode(text, validate=True))
    except (binascii.Error, zlib.error, ValueError):
        raise SelattnError("a packed picture is damaged: make the record again") from None
    if len(raw) != size:
        raise SelattnError("a packed picture is not whole: make the record again")
    return raw

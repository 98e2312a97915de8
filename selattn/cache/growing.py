"""A cache that keeps every token, and with it the state of F: the exact cache of an unpruned selective model.

transformers' own caches hold keys and values only. Under a selective model F would then begin at 0 again with every
step, and the text would be silently wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from selattn.errors import SelattnError


class SelectiveLayer(DynamicLayer):
    """One layer: keys, values, the state [B, S, M] of F, and the keys of a separate bilinear form.

    The last two are None for a layer that has none.
    """

    is_croppable = False  # what a dropped query had selected cannot be taken back

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.state: Tensor | None = None
        self.selection_keys: Tensor | None = None

    def reset(self) -> None:
        """Forget everything."""
        super().reset()
        self.state = self.selection_keys = None

    def crop(self, tokens_to_remove: int) -> None:
        """Refused: F holds what the cropped queries selected."""
        raise SelattnError("a selective cache cannot be cropped: what the removed tokens selected is part of F")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Beam search: the rows of the batch are chosen anew."""
        super().reorder_cache(beam_idx)
        self._rows(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some rows of the batch."""
        super().batch_select_indices(indices)
        self._rows(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row of the batch, several times."""
        super().batch_repeat_interleave(repeats)
        self._each(lambda x: x.repeat_interleave(repeats, 0))

    def _rows(self, index: Tensor) -> None:
        self._each(lambda x: x.index_select(0, index.to(x.device)))

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        for name in ("state", "selection_keys"):
            if getattr(self, name) is not None:
                setattr(self, name, change(getattr(self, name)))


class SelectiveCache(Cache):
    """One `SelectiveLayer` for each layer of the model, made when it is first used."""

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=SelectiveLayer)

    def selected(self, layer: int, selection_key: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The state that new queries of a layer continue from (None at the beginning), and all selection keys.

        `selection_key` are the new keys of a separate bilinear form, if the layer has one.
        """
        at = self.layers[layer]
        if selection_key is not None:
            old = at.selection_keys
            at.selection_keys = selection_key if old is None else torch.cat([old, selection_key], -2)
        return at.state, at.selection_keys

    def remember(self, layer: int, state: Tensor | None) -> None:
        """Keep what the queries so far have selected."""
        self.layers[layer].state = state

"""The tokenizer of transformers that is saved beside our models: it knows where a text begins."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerFast


class SelectiveTokenizer(PreTrainedTokenizerFast):
    """A tokenizer that puts a blank before a text, and takes it away again from whole texts only.

    SentencePiece treats the first word as any other, as if a blank stood before it. What comes back for ids must not
    have that blank if they begin a text; but if they continue one, the blank is the one between the two, and
    `pipeline("text-generation")`, which decodes the continuation alone, would lose it. A text begins with <BOS>.

    Without selattn, `AutoTokenizer` reads the same files as a tokenizer that never takes the blank away.

    Whether there is such a blank is told by `blank_before_text` in the files. It is not an argument of an `__init__`
    here, because of a class with one of its own transformers reads the vocabulary from the files and nothing else.
    """

    def _decode(self, token_ids: int | list[int], skip_special_tokens: bool = False, *args: Any, **kwargs: Any) -> str:
        text: str = super()._decode(token_ids, skip_special_tokens, *args, **kwargs)
        # With <BOS> in the text, the blank stands behind it.
        whole = skip_special_tokens and self.init_kwargs.get("blank_before_text") and self._begins(token_ids)
        return text.removeprefix(" ") if whole else text

    def _begins(self, token_ids: int | list[int]) -> bool:
        """Whether the first token that is no padding is <BOS>."""
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return next((token for token in ids if token != self.pad_token_id), None) == self.bos_token_id

"""From text or a synthetic task to rows of tokens: sources, tokenizers, token stores and datasets.

Every dataset is map-style: `len(ds)`, and `ds[i]` is a dict of 1-D int64 tensors of one length: `input_ids`, `labels`
(-100 where there is no loss, not shifted), `attention_mask` if rows can be padded, `position_ids` if they are packed.
"""

from selattn.data.corpus import build_corpus, store_for, tokenizer_for
from selattn.data.rows import DocumentRows, PackedRows, Shuffled, check_vocabulary
from selattn.data.sentinels import sentinels_of, with_sentinels
from selattn.data.spans import Spans, SpanSamples, TextRows
from selattn.data.store import TokenStore, build_store
from selattn.data.synthetic import TASKS, Copy, Parity, Task, VariableAssignment, make_task
from selattn.data.text import Reading, documents
from selattn.models.tokenizer import Tokenizer, read_tokenizer

__all__ = [
    "TASKS",
    "Copy",
    "DocumentRows",
    "PackedRows",
    "Parity",
    "Reading",
    "Shuffled",
    "SpanSamples",
    "Spans",
    "Task",
    "TextRows",
    "TokenStore",
    "Tokenizer",
    "VariableAssignment",
    "build_corpus",
    "build_store",
    "check_vocabulary",
    "documents",
    "make_task",
    "read_tokenizer",
    "sentinels_of",
    "store_for",
    "tokenizer_for",
    "with_sentinels",
]

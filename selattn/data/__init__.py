"""From text or a synthetic task to rows of tokens: sources, tokenizers, token stores and datasets.

Every dataset is map-style: `len(ds)`, and `ds[i]` is a dict of 1-D int64 tensors of one length: `input_ids`, `labels`
(-100 where there is no loss, not shifted), `attention_mask` if rows can be padded, `position_ids` if they are packed.
"""

from selattn.data.rows import DocumentRows, PackedRows, Shuffled, check_vocabulary
from selattn.data.sources import Reading, documents
from selattn.data.store import TokenStore, build_corpus, build_store, store_for
from selattn.data.task import Task
from selattn.data.tokenizer import Tokenizer, read_tokenizer
from selattn.data.vocabulary import tokenizer_for

__all__ = [
    "DocumentRows",
    "PackedRows",
    "Reading",
    "Shuffled",
    "Task",
    "TokenStore",
    "Tokenizer",
    "build_corpus",
    "build_store",
    "check_vocabulary",
    "documents",
    "read_tokenizer",
    "store_for",
    "tokenizer_for",
]

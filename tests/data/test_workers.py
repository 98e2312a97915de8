"""Datasets in the worker processes of a DataLoader."""

import pickle

import pytest
from torch.utils.data import ConcatDataset, DataLoader

from lab.tasks import Parity
from selattn.data import PackedRows, Shuffled, build_store
from tests.data.bytes_tokenizer import BytesTokenizer


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # where there is one core
def test_workers_make_the_same_samples(tmp_path):
    """Both kinds one after another, since starting processes takes seconds; no batch of 4 has samples of both."""
    store = build_store(tmp_path / "store", [f"document {i}" for i in range(20)], BytesTokenizer())
    datasets = [Parity(15).dataset(0, 16), Shuffled(PackedRows(store, 16), 3, 24)]
    assert all(len(pickle.dumps(dataset)) < 1000 for dataset in datasets)
    together = ConcatDataset(datasets)
    loader = DataLoader(together, batch_size=4, num_workers=2, multiprocessing_context="spawn")
    seen = [sample for batch in loader for sample in batch["input_ids"].unbind()]
    assert [sample.tolist() for sample in seen] == [sample["input_ids"].tolist() for sample in together]

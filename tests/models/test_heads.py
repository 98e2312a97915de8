"""The decoder with heads for classification and for answers: known to the `Auto` classes, saved, and trained."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from selattn.errors import SelattnError
from tests.models.tiny import CONTEXT, VARIANTS, padded, tiny, tiny_config, token_ids
from tests.models.training import trainer

AUTO = {
    "text": AutoModelForSequenceClassification,
    "token": AutoModelForTokenClassification,
    "answer": AutoModelForQuestionAnswering,
}
FIRST, SECOND = 5, 6  # the two tokens whose presence is to be told


@pytest.fixture(params=AUTO)
def kind(request):
    return request.param


def headed(kind, **changes):
    torch.manual_seed(0)
    labels = {} if kind == "answer" else {"num_labels": 2}
    return AUTO[kind].from_config(tiny_config(pad_token_id=0, **labels, **changes))


def logits_of(model, *args, **kwargs):
    found = model(*args, **kwargs)
    return found.logits if "logits" in found else torch.stack([found.start_logits, found.end_logits], -1)


class Examples(torch.utils.data.Dataset):
    """Rows that hold one of two tokens: which one it is, where it stands, and from where on it has been seen."""

    def __init__(self, kind, count=64, length=8):
        generator = torch.Generator().manual_seed(0)
        self.kind = kind
        self.ids = torch.randint(10, 30, (count, length), generator=generator)
        self.label = torch.randint(2, (count,), generator=generator)
        self.place = torch.randint(length, (count,), generator=generator)
        self.ids[torch.arange(count), self.place] = torch.where(self.label.bool(), SECOND, FIRST)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids, place = self.ids[index], self.place[index]
        if self.kind == "answer":
            return {"input_ids": ids, "start_positions": place, "end_positions": place}
        labels = self.label[index] if self.kind == "text" else (torch.arange(len(ids)) >= place).long()
        return {"input_ids": ids, "labels": labels}


def test_it_learns_with_the_trainer(kind, tmp_path):
    examples, model = Examples(kind), headed(kind)
    steps = {"max_steps": 120, "optim": "adamw_torch", "learning_rate": 5e-3, "per_device_train_batch_size": 16}
    trainer(model, tmp_path, examples, **steps).train()
    model.eval()
    logits = logits_of(model, examples.ids)
    if kind == "answer":
        right = logits.argmax(1) == examples.place[:, None]
    elif kind == "text":
        right = logits.argmax(-1) == examples.label
    else:
        right = logits.argmax(-1) == (torch.arange(8) >= examples.place[:, None])
    assert right.float().mean() > 0.95

    model.save_pretrained(tmp_path / "model")
    again = AUTO[kind].from_pretrained(tmp_path / "model")
    assert torch.equal(logits_of(again, examples.ids), logits)
    assert again.config is again.model.config  # one config, whichever part somebody changes it through


def test_a_language_model_lends_its_decoder(kind, tmp_path):
    model = tiny(torch.float32, pad_token_id=0)
    model.save_pretrained(tmp_path)
    again = AUTO[kind].from_pretrained(tmp_path)
    ids = token_ids(2, 9)
    assert torch.equal(again.model(ids).last_hidden_state, model.model(ids).last_hidden_state)
    again.save_pretrained(tmp_path / "headed")
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "headed")
    assert torch.equal(back.model(ids).last_hidden_state, model.model(ids).last_hidden_state)


@pytest.mark.parametrize("name", ["paper", "rotary", "all kinds", "gpt2"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_is_as_alone(kind, name, side):
    model = headed(kind, **VARIANTS[name]).double().eval()
    rows = [1 + token_ids(n, seed=n) % 30 for n in (9, 4, 1, 12)]  # 0 is padding: the head of a text looks for it
    ids, mask = padded(rows, side)
    ids[mask == 0] = 0
    found = logits_of(model, ids, attention_mask=mask)
    for logits, real, row in zip(found, mask.bool(), rows, strict=True):
        alone = logits_of(model, row[None])[0]
        torch.testing.assert_close(logits if kind == "text" else logits[real], alone, rtol=0, atol=1e-10)


def test_bad_arguments_are_refused_as_by_the_decoder(kind):
    model = headed(kind).eval()
    with pytest.raises(SelattnError, match="did you mean 'attention_mask'"):
        model(token_ids(1, 5), attention_maks=torch.ones(1, 5))
    with pytest.raises(SelattnError, match="longer than the 24 learned positions"):
        model(token_ids(1, CONTEXT + 1))

"""The decoder with other heads: a class for a text, a class for each token, or the span of an answer.

Their losses are transformers' own. The memory term is the language model's alone: fine-tune with that one first if the
memory is to shrink.
"""

from __future__ import annotations

from torch import nn
from transformers.modeling_layers import (
    GenericForQuestionAnswering,
    GenericForSequenceClassification,
    GenericForTokenClassification,
)

from selattn.models.base import SelectivePreTrainedModel
from selattn.models.config import SelectiveConfig
from selattn.models.decoder import SelectiveModel


class _Headed(SelectivePreTrainedModel):
    """A decoder that shares its config with the model around it, so that a change in one place is a change in both."""

    # These losses are means over a batch, whatever number a trainer that accumulates gradients would give them.
    accepts_loss_kwargs = False

    def __init__(self, config: SelectiveConfig) -> None:
        super().__init__(config)
        self.model = SelectiveModel(self.config, share_config=True)


class SelectiveForSequenceClassification(GenericForSequenceClassification, _Headed):
    """`config.num_labels` scores of a text, read from its last token that is not `config.pad_token_id`."""

    def __init__(self, config: SelectiveConfig) -> None:
        _Headed.__init__(self, config)
        self.num_labels = labels_of(config)
        self.score = nn.Linear(config.hidden_size, self.num_labels, bias=False)
        self.post_init()


class SelectiveForTokenClassification(GenericForTokenClassification, _Headed):
    """`config.num_labels` scores of each token. It sees what stands before it, and nothing behind."""

    def __init__(self, config: SelectiveConfig) -> None:
        _Headed.__init__(self, config)
        self.num_labels = labels_of(config)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.score = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()


class SelectiveForQuestionAnswering(GenericForQuestionAnswering, _Headed):
    """For each token the scores of beginning and of ending the answer."""

    def __init__(self, config: SelectiveConfig) -> None:
        _Headed.__init__(self, config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()


def labels_of(config: SelectiveConfig) -> int:
    """How many labels there are to tell apart."""
    assert config.num_labels is not None  # declared so, but it is the length of a table that is always there
    return config.num_labels

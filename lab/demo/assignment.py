"""The paper's example `y=7; x=1; x=3; z=5; x=?` as one attention head whose weights are set by hand.

A token is an assignment or the question. Its embedding is one-hot twice: which variable, and which value,
where `?` is a value too; `<BOS>` has a dimension of its own. Queries and keys have four dimensions: one per
variable, and one that every token but <BOS> has. With the default scale of 1/2 the logits are

    SAME  = (4 * 4 - 6) / 2     =  5   the key assigns the query's variable
    OTHER = (0 * 4 - 6) / 2     = -3   it assigns another variable
          = (4 * 4 - 22) / 2    = -3   the question's own key: there is nothing to read from it yet
    BOS   =                        0   the neutral place to look

That is all. A token asks "what is my variable?", and by relu it masks exactly those tokens that answer.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from selattn.ops import AuxRequest, causal_attention, selective_attention

TOKENS = ("<BOS>", "y=7", "x=1", "x=3", "z=5", "x=?")
VARIABLES = ("x", "y", "z")
VALUES = ("1", "3", "5", "7", "?")
ANSWERS = ("1", "3", "5", "7", "none")  # what can be read; <BOS> and the question hold no value


class Example(NamedTuple):
    """What is drawn; N = tokens, A = answers. Row i belongs to the token that reads, column j to the one read."""

    S: Tensor  # [N, N] how much row i masks column j for the rows after i
    F: Tensor  # [N, N] how much column j is masked when row i reads
    standard: Tensor  # [N, N] weights of standard attention
    selective: Tensor  # [N, N] weights of selective attention
    standard_answer: Tensor  # [A] what the question reads
    selective_answer: Tensor  # [A]


def embed(token: str) -> Tensor:
    """One-hot of the variable, one-hot of the value, and a flag for <BOS>: [9]."""
    features = (*VARIABLES, *VALUES, "<BOS>")
    present = (token,) if token == "<BOS>" else token.split("=")
    return torch.tensor([float(feature in present) for feature in features])


def weights() -> tuple[Tensor, Tensor, Tensor]:
    """Wq [9, 4], Wk [9, 4] and Wv [9, 5], with the rows in the order of `embed`."""
    w_query, w_key, w_value = torch.zeros(9, 4), torch.zeros(9, 4), torch.zeros(9, 5)
    w_query[:3, :3] = w_key[:3, :3] = 4 * torch.eye(3)  # the variable
    w_query[:3, 3] = 1
    w_key[3:7, 3] = -6  # an assignment: below zero unless the variable is the same
    w_key[7, 3] = -22  # the question: below zero even then
    w_value[3:7, :4] = torch.eye(4)  # the value itself
    w_value[7:, 4] = 1  # "none", for the question and <BOS>
    return w_query, w_key, w_value


def compute() -> Example:
    """Run both operators on the example. Row i of S is what it adds to F: the next row of F minus its own."""
    x = torch.stack([embed(token) for token in TOKENS])
    query, key, value = ((x @ w)[None, None] for w in weights())  # [B=1, H=1, N, D]
    standard, standard_aux = causal_attention(query, key, value, return_aux=AuxRequest(weights=True))
    selective, aux = selective_attention(query, key, value, return_aux=AuxRequest(f=True, final_f=True, weights=True))
    assert aux.f is not None
    assert aux.final_f is not None
    assert aux.weights is not None
    assert standard_aux.weights is not None
    F, after = aux.f[0, 0], aux.final_f[0]  # `after` is the row of F that a next token would have
    return Example(
        S=torch.cat([F, after]).diff(dim=0),
        F=F,
        standard=standard_aux.weights[0, 0],
        selective=aux.weights[0, 0],
        standard_answer=standard[0, 0, -1],
        selective_answer=selective[0, 0, -1],
    )

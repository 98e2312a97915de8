"""The paper's example `y=7; x=1; x=3; z=5; x=?` as one attention head whose weights are set by hand, and its drawing.

A token is an assignment or the question. Its embedding is one-hot twice: which variable, and which value,
where `?` is a value too; `<BOS>` has a dimension of its own. Queries and keys have four dimensions: one per
variable, and one that every token but <BOS> has. With the default scale of 1/2 the logits are

    SAME  = (4 * 4 - 6) / 2     =  5   the key assigns the query's variable
    OTHER = (0 * 4 - 6) / 2     = -3   it assigns another variable
          = (4 * 4 - 22) / 2    = -3   the question's own key: there is nothing to read from it yet
    BOS   =                        0   the neutral place to look

That is all. A token asks "what is my variable?", and by relu it masks exactly those tokens that answer.
In the terminal numbers stand inside every cell and arrows are characters, so nothing is lost without color.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from rich.bar import Bar
from rich.color import blend_rgb
from rich.color_triplet import ColorTriplet
from rich.columns import Columns
from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text
from torch import Tensor

from selattn.ops import AuxRequest, causal_attention, selective_attention

TOKENS = ("<BOS>", "y=7", "x=1", "x=3", "z=5", "x=?")
VARIABLES = ("x", "y", "z")
VALUES = ("1", "3", "5", "7", "?")
ANSWERS = ("1", "3", "5", "7", "none")  # the values that can be read; <BOS> and the question hold none

GREEN, YELLOW, RED = ColorTriplet(102, 189, 99), ColorTriplet(255, 255, 191), ColorTriplet(215, 48, 39)
WHITE, BLUE, BLACK = ColorTriplet(247, 251, 255), ColorTriplet(33, 113, 181), ColorTriplet(0, 0, 0)
MASKING, READING = (GREEN, YELLOW, RED), (WHITE, BLUE)  # the colors of the paper's pictures, from 0 to the largest


class ByHand(NamedTuple):
    """The numbers of the example; N = tokens, A = answers. Row i is of the token that reads, column j the one read."""

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


def compute() -> ByHand:
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
    return ByHand(
        S=torch.cat([F, after]).diff(dim=0),
        F=F,
        standard=standard_aux.weights[0, 0],
        selective=aux.weights[0, 0],
        standard_answer=standard[0, 0, -1],
        selective_answer=selective[0, 0, -1],
    )


def draw(example: ByHand, console: Console) -> None:
    """The four parts, from who masks whom to the answer."""
    cell = 7 if console.width >= 104 else 5
    console.print("\n[bold]y=7; x=1; x=3; z=5; x=?[/]   What is x? The latest value counts: 3.")
    console.print("One attention head, weights set by hand; nothing was trained.\n")

    console.print("[bold]Who masks whom[/]")
    last = len(TOKENS) - 1
    console.print(sentence((example.F[last] > 0).tolist(), 7))
    for i, row in enumerate(example.S):
        targets = row.nonzero().flatten().tolist()
        if targets:
            whom = " and ".join(TOKENS[j] for j in targets)
            note = f"{TOKENS[i]} masks {whom}" if i < last else f"so would {TOKENS[i]}, for later tokens"
            console.print(f"{arrow(i, targets, 7)}  {note}")
    console.print()

    S = matrix("S: a row masks a column", "relu(logits); 0 for <BOS> and itself", example.S, MASKING, cell)
    F = matrix("F: a row finds a column masked", "the sum of S over the rows above", example.F, MASKING, cell)
    console.print(Columns([S, F], padding=(0, 4)), "")
    standard = matrix("Standard attention", "softmax(logits)", example.standard, READING, cell)
    selective = matrix("Selective attention", "softmax(logits - F)", example.selective, READING, cell)
    console.print(Columns([standard, selective], padding=(0, 4)), "")

    answers = {"standard": example.standard_answer, "selective": example.selective_answer}
    console.print("[bold]What x=? reads[/]")
    console.print(bars(ANSWERS, answers, min(console.width, 104) // 2 - 16), "")
    first, second = example.standard_answer.topk(2).indices.sort().values.tolist()
    best = int(example.selective_answer.argmax())
    console.print(
        f"Standard attention reads {ANSWERS[first]} ({example.standard_answer[first]:.2f}) and {ANSWERS[second]} "
        f"({example.standard_answer[second]:.2f}) alike. "
        f"Selective attention answers [bold]{ANSWERS[best]}[/] ({example.selective_answer[best]:.2f}).",
        end="\n\n",
    )


def matrix(title: str, caption: str, values: Tensor, shades: Sequence[ColorTriplet], cell: int) -> Table:
    """A lower triangle of `values` [N, N] as a table of shaded cells, `cell` characters wide."""
    largest = max(float(values.max()), 1.0)
    table = Table(box=None, padding=0, title=title, title_justify="left", title_style="bold")
    table.caption, table.caption_justify, table.caption_style = caption, "left", "dim"
    table.add_column("", width=max(map(len, TOKENS)) + 1)
    for token in TOKENS:
        table.add_column(Text(token, "bold"), width=cell, justify="center")
    for i, (token, row) in enumerate(zip(TOKENS, values.tolist(), strict=True)):
        cells = []
        for value in row[: i + 1]:
            place = value / largest * (len(shades) - 1)
            low = min(int(place), len(shades) - 2)
            background = blend_rgb(shades[low], shades[low + 1], place - low)
            ink = BLACK if sum(background) > 3 * 127 else WHITE
            cells.append(Text(number(value).center(cell), Style(color=ink.rgb, bgcolor=background.rgb)))
        table.add_row(Text(token, "bold"), *cells)
    return table


def sentence(masked: Sequence[bool], cell: int) -> Text:
    """The tokens in a line, each centred in `cell` characters, the masked ones struck through in red."""
    line = Text()
    for token, gone in zip(TOKENS, masked, strict=True):
        before = (cell - len(token)) // 2
        line.append(" " * before).append(token, "strike red" if gone else "bold")
        line.append(" " * (cell - before - len(token)))
    return line


def arrow(source: int, targets: Sequence[int], cell: int) -> str:
    """A line to go under `sentence`: from token `source` back to each of the earlier `targets`."""
    line = [" "] * (len(TOKENS) * cell)
    at = [i * cell + cell // 2 for i in range(len(TOKENS))]
    line[at[min(targets)] : at[source]] = "─" * (at[source] - at[min(targets)])
    line[at[source]] = "╯"
    for target in targets:
        line[at[target]] = "▲"
    return "".join(line)


def bars(labels: Sequence[str], columns: Mapping[str, Tensor | Sequence[float]], width: int) -> Table:
    """One row per label, and in it one bar of at most `width` characters per column (shares of 1)."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for name in columns:
        table.add_column("", justify="right", width=4)
        table.add_column(name, width=width)
    for i, label in enumerate(labels):
        cells: list[Text | Bar] = [Text(label, "bold")]
        for shares in columns.values():
            share = float(shares[i])
            cells += [Text(number(share)), Bar(1.0, 0.0, share, width=width, color="blue")]
        table.add_row(*cells)
    return table


def number(value: float) -> str:
    """At most four characters, and a plain 0 for what rounds to it: `0`, `5`, `0.50`."""
    text = f"{value:.2f}"
    return text.removesuffix(".00") if value >= 1 or text == "0.00" else text

"""What a caller can get wrong: one line each, that names what was wrong."""

import inspect
import math

import numpy as np
import pytest
import torch

from selattn.errors import SelattnError
from selattn.ops import AuxRequest, Fixed, Selection, Sequences, Strided, causal_attention, selective_attention

B, H, N, M, D = 2, 4, 3, 5, 6
Q, K, V = torch.randn(B, H, N, D), torch.randn(B, H, M, D), torch.randn(B, H, M, 7)
INPUTS = {"query": Q, "key": K, "value": V}
INITIAL_F = torch.zeros(B, 1, M - N)
FORM = {"selection_query": torch.randn(B, 1, N, 3), "selection_key": torch.randn(B, 1, M, 3)}


def attend(query=Q, key=K, value=V, initial_f=INITIAL_F, **options):
    return selective_attention(query, key, value, initial_f=initial_f, **options)


def separate(**changed):
    return {**FORM, **changed}


# What is changed in a call that is right, and what the error says.
WRONG = {
    "query of rank 3": ({"query": Q[0]}, r"query must be \[batch, heads, length, head size\], not \[4, 3, 6\]"),
    "key of rank 2": ({"key": K[0, 0]}, r"key must be .*not \[5, 6\]"),
    "key of another dtype": ({"key": K.double()}, "query is torch.float32 .* but key is torch.float64"),
    "integers": ({"query": Q.long(), "key": K.long(), "value": V.long()}, "fp32, bf16, fp16 or fp64, not torch.int64"),
    "key of another device": ({"key": K.to("meta")}, "but key is torch.float32 on meta"),
    "batch sizes": ({"value": V[:1]}, "query has batch size 2 but value has 1"),
    "no tokens": ({"query": Q[:, :, :0]}, r"query \[2, 4, 0, 6\] is empty"),
    "value length": ({"value": V[:, :, 1:]}, r"key \[2, 4, 5, 6\] and value \[2, 4, 4, 7\] must agree"),
    "head sizes": ({"key": K[..., 1:]}, "query has head size 6 but key has 5"),
    "heads not divisible": (
        {"key": K[:, :3], "value": V[:, :3], "enable_gqa": True},
        "4 query heads cannot be shared out among 3 key-value heads",
    ),
    "grouped without saying so": ({"key": K[:, :2], "value": V[:, :2]}, "pass enable_gqa=True"),
    "query longer than key": (
        {"query": torch.randn(B, H, 6, D), "initial_f": None},
        "query has 6 rows but there are only 5 keys",
    ),
    "not causal": ({"is_causal": False}, "leave is_causal at True"),
    "no initial F": ({"initial_f": None}, r"3 queries continue after 2 earlier keys: pass initial_f="),
    "initial F of integers": ({"initial_f": INITIAL_F.long()}, "initial_f must be floating point .*not torch.int64"),
    "initial F of other masks": ({"selection": Selection((0, 1))}, r"initial_f must be floating point \[2, 2, 2\]"),
    "dropout of 1": ({"dropout_p": 1.0}, "dropout_p must be at least 0 and below 1, not 1.0"),
    "scale not finite": ({"scale": math.nan}, "scale must be a finite number, not nan"),
    "soft cap of 0": ({"softcap": 0.0}, "softcap must be above 0, not 0.0"),
    "window of 0": ({"window": 0}, "window must be a whole number of keys, at least 1 .*not 0"),
    "true as window": ({"window": True}, "window must be a whole number of keys, .*not True"),
    "tolerance of 1": ({"kernel_options": {"tolerance": 1.0}}, "tolerance must be at least 0 and below 1, not 1.0"),
    "tolerance not a number": ({"kernel_options": {"tolerance": math.nan}}, "tolerance must be .*not nan"),
    "tau of 0": ({"tau": 0.0}, "tau must be above 0, not 0.0"),
    "strength above 1": ({"strength": 1.5}, r"strength must be in \[0, 1\], not 1.5"),
    "strength of rank 1": ({"strength": torch.ones(1)}, "strength must be a number or a 0-d floating point tensor"),
    "strength that learns": ({"strength": torch.tensor(0.5, requires_grad=True)}, "needs no gradient"),
    "mask of integers": (
        {"attn_mask": torch.ones(N, M).long()},
        "attn_mask must be bool .* or floating point .*not torch.int64",
    ),
    "mask of another shape": (
        {"attn_mask": torch.ones(M, N)},
        r"attn_mask \[5, 3\] cannot be broadcast to .*\[2, 4, 3, 5\]",
    ),
    "until of another length": (
        {"visible_until": torch.ones(B, N).long()},
        r"visible_until must be \[2, 5\] or, .*\[2, 4, 5\], not \[2, 3\]",
    ),
    "until on another device": (
        {"visible_until": torch.ones(B, M, device="meta").long()},
        r"query is on cpu but visible_until is on meta: move it with .to\(device\)",
    ),
    "sequences on another device": (
        {"sequences": Sequences.from_mask(torch.ones(B, M).bool()).to("meta")},
        r"query is on cpu but sequences is on meta: move it with sequences.to\(device\)",
    ),
    "sparse": ({"value": V.to_sparse()}, "value must be a dense tensor, not a nested or sparse one"),
    "complex until": ({"visible_until": torch.ones(B, M) * 1j}, "visible_until must hold integer rows"),
    "sequences of the queries only": (
        {"sequences": Sequences.from_mask(torch.ones(B, N).bool())},
        r"sequences are for \[2, 3\].*but the keys are \[2, 5\]",
    ),
    "selecting head": ({"selection": Selection(4)}, "selecting head 4 does not exist: there are 4 query heads"),
    "selecting heads": ({"selection": Selection((0, 1, 2))}, "4 heads cannot be shared out among 3 selection masks"),
    "half of a form": ({"selection_query": FORM["selection_query"]}, "needs both selection_query and selection_key"),
    "form and head": ({**FORM, "selection": Selection(1)}, "either Selection.* or selection_query and selection_key"),
    "form of two sizes": (separate(selection_key=torch.randn(B, 1, M, 4)), "do not fit"),
    "form of two dtypes": (
        separate(selection_key=FORM["selection_key"].double()),
        "selection_key is torch.float64: they must be of one floating",
    ),
    "form of integers": ({name: x.long() for name, x in FORM.items()}, "selection_query is torch.int64"),
    "form's query length": (
        separate(selection_query=torch.randn(B, 1, M, 3)),
        r"selection_query \[2, 1, 5, 3\] .*do not fit",
    ),
    "form's key length": (separate(selection_key=torch.randn(B, 1, N, 3)), r"selection_key \[2, 1, 3, 3\] do not fit"),
    "form's batch": ({name: x[:1] for name, x in FORM.items()}, "do not fit"),
    "unknown backend": (
        {"backend": "chunky"},
        r"unknown backend 'chunky' \(did you mean 'chunked'\?\): choose auto, reference,",
    ),
    "selection on sdpa": (
        {"selection": Selection(1), "backend": "sdpa"},
        "backend 'sdpa' cannot do this: PyTorch's kernel has no F; use reference or chunked or cpu, or auto",
    ),
    "unknown kernel option": (
        {"kernel_options": {"tolerence": 0.0}},
        r"unknown kernel option 'tolerence' \(did you mean 'tolerance'\?\): choose tolerance",
    ),
    "kernel option of another kind": (
        {"kernel_options": {"tolerance": "none"}},
        "tolerance must be a number, not 'none'",
    ),
    "something that is asked for with no truth": (
        {"return_aux": AuxRequest(weights=1)},
        "weights must be True or False",
    ),
    "weights on chunked": (
        {"return_aux": AuxRequest(weights=True), "backend": "chunked"},
        "backend 'chunked' cannot do this: .*weights.*; use reference, or auto",
    ),
}


# Things that belong nowhere, or not there; each is tried as every argument that does not take it.
STRANGE = {
    "a dict": {"start": 1},
    "a list": [1.0],
    "a numpy array": np.ones((B, H, N, D), dtype=np.float32),
    "a string": "yes",
    "a number": 0.5,
    "a truth": True,
    "nothing": None,
    "a class": Selection,
    "a tensor": torch.ones(B, M),
    "an object": object(),
}
FITS = {  # by name of the argument, or of its annotation: what of the above is right there
    "Tensor": {"a tensor"},
    "float": {"a number"},
    "bool": {"a truth"},
    "str": {"a string"},
    "Selection": set(),
    "KernelOptions": {"a dict"},
}


def strange(function):
    for name, parameter in inspect.signature(function).parameters.items():
        allowed = set()
        for kind in parameter.annotation.split(" | "):
            allowed |= {"nothing"} if kind == "None" else FITS.get(kind, set())
        yield from ((name, kind) for kind in STRANGE if kind not in allowed)


# What the compiled backend does not do, and the reason that it gives.
COMPILED = {
    "half precision": ({x: y.half() for x, y in INPUTS.items()}, "it takes fp32, fp64 and bf16, not torch.float16"),
    "long heads": (
        {x: torch.randn(B, H, y.shape[2], 1025) for x, y in INPUTS.items()},
        "heads have at most 1024 features",
    ),
    "long values": ({"value": torch.randn(B, H, M, 1025)}, "its heads have at most 1024 features"),
    "weights": (
        {"return_aux": AuxRequest(weights=True)},
        "it never holds the attention weights; use reference, or auto",
    ),
    "F": ({"return_aux": AuxRequest(f=True)}, "it never holds F; use reference or chunked, or auto"),
    "dropout": ({"dropout_p": 0.1}, "it has no dropout"),
    "mask of pairs": ({"attn_mask": torch.ones(N, M).bool()}, "it takes masks as sequences and windows only"),
    "a long form": (
        {"selection_query": torch.randn(B, 1, N, 1025), "selection_key": torch.randn(B, 1, M, 1025)},
        "its heads have at most 1024 features",
    ),
    "gradient, and an initial F given": (
        {"query": Q.clone().requires_grad_()},
        "no gradient through an initial or final F",
    ),
    "gradient of the initial F given": (
        {"initial_f": INITIAL_F.clone().requires_grad_()},
        "no gradient through an initial or final F",
    ),
    "gradient, and a final F wanted": (
        {
            "query": Q.clone().requires_grad_(),
            "key": K[:, :, 2:],
            "value": V[:, :, 2:],
            "initial_f": None,
            "return_aux": AuxRequest(final_f=True),
        },
        "no gradient through an initial or final F",
    ),
}


def assert_one_clear_line(call, said):
    with pytest.raises(SelattnError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_call_that_is_changed_is_right():
    assert attend().shape == attend(**FORM).shape == (B, H, N, 7)


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_call(wrong):
    options, said = WRONG[wrong]
    assert_one_clear_line(lambda: attend(**options), said)


@pytest.mark.parametrize(("name", "kind"), [*strange(selective_attention)])
def test_a_thing_of_the_wrong_kind(name, kind):
    options = {**INPUTS, "initial_f": INITIAL_F, name: STRANGE[kind]}
    assert_one_clear_line(lambda: selective_attention(**options), f"^{name} must be [^\\n]{{,150}}$")


@pytest.mark.parametrize("asked", COMPILED)
def test_refused_by_the_compiled_backend(asked):
    options, said = COMPILED[asked]
    assert_one_clear_line(lambda: attend(backend="cpu", **options), f"backend 'cpu' cannot do this: .*{said}")
    attend(**options)  # "auto" finds one that does it


def test_refused_by_the_compiled_backend_with_no_selection():
    call = {"query": Q, "key": K, "value": V, "pattern": Strided(2), "backend": "cpu"}
    assert_one_clear_line(lambda: causal_attention(**call), "'cpu' cannot do this: it has no sparse patterns")


def test_without_gradients_the_compiled_backend_takes_f():
    with torch.no_grad():
        _, aux = attend(query=Q.clone().requires_grad_(), backend="cpu", return_aux=AuxRequest(final_f=True))
    assert aux.final_f.shape == (B, 1, M)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"softcap": 3.0}, "nothing but causality; use reference or chunked or cpu, or auto"),
        ({"window": 3}, "nothing but causality"),
        ({"attn_mask": torch.zeros(N, N)}, "nothing but causality"),
        ({"query": Q[:, :, 1:]}, "nothing but causality"),
        ({"scale": -1.0}, "the scale must be above 0"),
        ({"return_aux": AuxRequest(weights=True)}, "does not give its weights; use reference, or auto"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_refused_by_sdpa(options, said):
    call = {"query": Q, "key": K[:, :, :N], "value": V[:, :, :N], "backend": "sdpa"} | options
    assert_one_clear_line(lambda: causal_attention(**call), f"backend 'sdpa' cannot do this: .*{said}")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Selection(-1), "Selection.head must be a head index from 0.*not -1"),
        (lambda: Selection(True), "Selection.head must be .*not True"),
        (lambda: Selection(()), "empty tuple"),
        (lambda: Sequences.from_mask(torch.ones(4)), r"mask must be \[batch, keys\], not \[4\]"),
        (lambda: Sequences.from_documents(torch.ones(2, 3, 4)), r"ids must be \[batch, keys\], not \[2, 3, 4\]"),
        (
            lambda: Sequences.from_documents(torch.ones(2, 3).long(), torch.ones(2, 4).long()),
            r"ids are \[2, 3\] but mask is \[2, 4\]",
        ),
        (lambda: Sequences.from_position_ids(torch.ones(3)), r"position_ids must be \[batch, keys\], not \[3\]"),
        (lambda: Sequences.from_position_ids(torch.ones(2, 3).long(), torch.ones(1, 3).long()), r"mask is \[1, 3\]"),
        (lambda: Sequences.from_cu_seqlens(torch.ones(2, 2).long(), 4), r"1-D integer tensor .*of shape \[2, 2\]"),
        (lambda: Sequences.from_cu_seqlens(torch.tensor([0.0, 4.0]), 4), "1-D integer tensor .*not torch.float32"),
        (lambda: Sequences.from_cu_seqlens(torch.tensor([1, 4]), 4), r"begin with 0.*\[1, 4\]"),
        (lambda: Sequences.from_cu_seqlens(torch.tensor([0, 3, 2]), 4), r"never fall.*\[0, 3, 2\]"),
        (lambda: Sequences.from_cu_seqlens(torch.tensor([0, 5]), 4), r"at most at the row's 4 tokens: \[0, 5\]"),
        (lambda: Selection(relu=1), "Selection.relu must be True or False, not 1"),
        (lambda: Strided("4"), "stride of a strided pattern must be at least 1, not '4'"),
        (lambda: Fixed(4, 1.0), "summary of a fixed pattern must be 1 to its stride 4, not 1.0"),
        (lambda: Sequences.from_mask(np.ones((2, 3))), r"mask must be a tensor \[batch, keys\], not a ndarray"),
        (lambda: Sequences.from_cu_seqlens(torch.tensor([0, 4]), 4.0), "total must be the number of tokens .*not 4.0"),
    ],
)
def test_wrong_parts(make, said):
    assert_one_clear_line(make, said)


def test_lengths_out_of_range_are_found_in_a_compiled_graph_too():
    compiled = torch.compile(lambda cu: Sequences.from_cu_seqlens(cu, 4).start, fullgraph=True, backend="aot_eager")
    assert compiled(torch.tensor([0, 1, 4])).tolist() == [[0, 1, 1, 1]]
    with pytest.raises(RuntimeError, match="cu_seqlens must begin with 0"):
        compiled(torch.tensor([0, 3, 2]))

"""What the Triton backend refuses, each in one clear line; and what it says where it cannot run."""

import importlib.util
import json
from unittest import mock

import pytest
import torch

from selattn.cli.main import main
from selattn.errors import SelattnError
from selattn.ops import Selection, Strided, causal_attention, selective_attention
from selattn.ops.backends.triton import Triton, configs, selfcheck
from selattn.ops.request import AuxRequest, Request
from selattn.ops.rules import Rules

X = torch.randn(1, 2, 4, 8)


RULES = Rules(Selection(), scale=1.0)


def request(x=X, wanted=None, rules=RULES, **more):
    return Request(x, x, x, rules, wanted or AuxRequest(), **more)


REFUSED = {
    "fp64": (request(X.double()), "it takes fp32, bf16 and fp16, not torch.float64"),
    "large heads": (request(torch.randn(1, 1, 2, 129)), "its heads have at most 128 features"),
    "weights": (request(wanted=AuxRequest(weights=True)), "it never holds the attention weights"),
    "f": (request(wanted=AuxRequest(f=True)), "it never holds F"),
    "dropout": (request(rules=RULES._replace(dropout_p=0.1)), "it has no dropout"),
    "pattern": (request(rules=RULES._replace(pattern=Strided(2))), "it has no sparse patterns"),
    "separate form in fp64": (request(selection_query=X.double(), selection_key=X.double()), "for the separate form"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind):
    asked, said = REFUSED[kind]
    with mock.patch.object(configs, "interpreted", return_value=True):
        assert said in Triton().refusal(asked)
        assert Triton().refusal(request()) is None


def test_a_cpu_tensor_is_for_the_interpreter():
    assert Triton().refusal(request()) == "it runs on CUDA devices, not on cpu"


@pytest.mark.parametrize("call", [selective_attention, causal_attention])
def test_without_triton(call):
    real = importlib.util.find_spec
    with (
        mock.patch.object(importlib.util, "find_spec", lambda name: None if name == "triton" else real(name)),
        pytest.raises(SelattnError, match="'triton' cannot do this: triton is not installed: pip install") as caught,
    ):
        call(X, X, X, backend="triton")
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu():
    with pytest.raises(SelattnError, match=r"'triton' cannot do this: there is no CUDA device.*; use reference"):
        selective_attention(X, X, X, backend="triton")


def test_info_shows_what_the_self_check_found(capsys, monkeypatch, tmp_path):
    """With a card that is not there."""
    monkeypatch.setenv("SELATTN_CACHE", str(tmp_path))
    monkeypatch.setattr(configs, "unavailable", lambda: None)
    for name, value in {"is_available": True, "current_device": 0, "get_device_name": "NVIDIA A100"}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    half, single = (selfcheck.place_of(torch.device("cuda"), x, 80) for x in (torch.float16, torch.float32))
    selfcheck.remember(half, None)
    selfcheck.remember(single, "sharp: output is off by 3, allowed 1")
    assert main(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["self-check of the GPU kernels"]
    card = "NVIDIA A100 (sm_80)"
    assert found[f"{card}, bfloat16, heads of up to 128"] == "not checked yet: the first use does it"
    assert found[f"{card}, float16, heads of up to 64"] == "not checked yet: the first use does it"
    assert found[f"{card}, float16, heads of up to 128"].startswith("passed on 20")
    assert found[f"{card}, float32, heads of up to 128"].endswith("sharp: output is off by 3, allowed 1")

"""Transforms of torch.func and dual numbers: the right derivative, or one clear line, and never a silent zero."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.testing import assert_close

from selattn.errors import SelattnError
from selattn.ops import Selection, Sequences, causal_attention, selective_attention
from tests.ops.cases import BACKENDS, attend

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit")  # by torch's forward mode itself
FAST = [name for name in BACKENDS if name != "reference"]
N = 7
PADDED = Sequences.from_mask(torch.tensor([[0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]]))
FORMS = {
    "selective": (selective_attention, {}),
    "standard": (causal_attention, {}),
    "padded": (selective_attention, {"sequences": PADDED}),
    "memory": (attend, {"wanted": ("memory",), "selection": Selection(1)}),
    "window": (causal_attention, {"window": 3}),
}
CLEAR = r"^backend '\w+' cannot do this: it has no forward-mode derivative .*; use reference, or auto$"


def inputs():
    return tuple(torch.randn(2, heads, N, size, dtype=torch.float64) for heads, size in ((4, 3), (2, 3), (2, 2)))


def loss_of(form, backend):
    function, options = FORMS[form]

    def loss(*tensors):
        got = function(*tensors, **options, enable_gqa=True, backend=backend)
        return sum(x.sin().sum() for x in got if x is not None) if isinstance(got, tuple) else got.sin().sum()

    return loss


def gradients(loss, *tensors):
    leaves = [x.detach().requires_grad_() for x in tensors]
    return torch.autograd.grad(loss(*leaves), leaves)


def dual(loss, tensors, tangents):
    with forward_ad.dual_level():
        got = loss(*(forward_ad.make_dual(x, t) for x, t in zip(tensors, tangents, strict=True)))
        return forward_ad.unpack_dual(got).tangent


def jvp(loss, tensors, tangents):
    return torch.func.jvp(loss, tensors, tangents)[1]


def jacfwd(loss, tensors, tangents):
    found = torch.func.jacfwd(loss, argnums=(0, 1, 2))(*tensors)
    return sum((g * t).sum() for g, t in zip(found, tangents, strict=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", [dual, jvp, jacfwd])
def test_forward_mode(way, form):
    """The reference has it, and so has "auto"."""
    tensors, tangents = inputs(), inputs()
    found = gradients(loss_of(form, "reference"), *tensors)
    want = sum((g * t).sum() for g, t in zip(found, tangents, strict=True))
    assert want.abs() > 1e-3
    for backend in ("reference", "auto"):
        assert_close(way(loss_of(form, backend), tensors, tangents), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", [dual, jvp, jacfwd])
def test_forward_mode_is_refused_by_name(way, form, backend):
    with pytest.raises(SelattnError, match=CLEAR):
        way(loss_of(form, backend), inputs(), inputs())


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("which", range(3))
def test_one_dual_input_is_enough(which, backend):
    tensors = list(inputs())
    with forward_ad.dual_level():
        tensors[which] = forward_ad.make_dual(tensors[which], torch.ones_like(tensors[which]))
        with pytest.raises(SelattnError, match=CLEAR):
            loss_of("selective", backend)(*tensors)


@pytest.mark.parametrize("backend", FAST)
def test_a_level_without_dual_inputs_changes_nothing(backend):
    tensors, loss = inputs(), loss_of("selective", backend)
    with forward_ad.dual_level():
        assert torch.equal(loss(*tensors), loss(*tensors))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", FORMS)
def test_reverse_mode(form, backend):
    """torch.func.grad and vjp, alone and with a batch of calls."""
    tensors, loss = inputs(), loss_of(form, backend)
    want = gradients(loss_of(form, "reference"), *tensors)
    assert_close(torch.func.grad(loss, argnums=(0, 1, 2))(*tensors), want, rtol=0, atol=1e-10)
    _, pull = torch.func.vjp(loss, *tensors)
    assert_close(pull(torch.ones((), dtype=torch.float64)), want, rtol=0, atol=1e-10)
    others = inputs()
    both = [torch.stack(x) for x in zip(tensors, others, strict=True)]
    wanted = [torch.stack(x) for x in zip(want, gradients(loss_of(form, "reference"), *others), strict=True)]
    each = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*both)
    assert_close(list(each), wanted, rtol=0, atol=1e-10)
    whole = torch.func.grad(lambda *x: torch.func.vmap(loss)(*x).sum(), argnums=(0, 1, 2))(*both)
    assert_close(list(whole), wanted, rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("in_dims", [(0, None, None), (None, 2, 1), (4, 0, None)])
def test_vmap(in_dims, backend):
    def stacked(x, dim):
        return x if dim is None else torch.stack([x, 2 * x, -x], dim)

    def both(*tensors):
        got = attend(*tensors, sequences=PADDED, enable_gqa=True, backend=backend, wanted=("memory",))
        return got.output, got.memory

    tensors = inputs()
    got = torch.func.vmap(both, in_dims)(*(stacked(x, d) for x, d in zip(tensors, in_dims, strict=True)))
    for i, factor in enumerate((1, 2, -1)):
        want = both(*(x if d is None else factor * x for x, d in zip(tensors, in_dims, strict=True)))
        assert_close([x[i] for x in got], list(want), rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_jacobian(backend):
    q, k, v = inputs()

    def attend(q):
        return selective_attention(q, k, v, enable_gqa=True, backend=backend)

    want = torch.autograd.functional.jacobian(attend, q)
    assert_close(torch.func.jacrev(attend)(q), want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", FAST)
def test_a_second_derivative_is_refused(backend):
    tensors, loss = inputs(), loss_of("selective", backend)
    with pytest.raises(RuntimeError, match=rf"{backend} backend has no second derivative: use backend='reference'"):
        torch.func.grad(lambda x: torch.func.grad(loss)(x, *tensors[1:]).square().sum())(tensors[0])


def test_second_derivatives_of_the_reference():
    q, k, v = (x[:1, :, :4] for x in inputs())

    def loss(q):
        return loss_of("selective", "auto")(q, k, v)

    want = torch.autograd.functional.hessian(lambda q: loss_of("selective", "reference")(q, k, v), q)
    assert_close(torch.func.hessian(loss)(q), want, rtol=0, atol=1e-9)


@pytest.mark.parametrize("transform", [torch.func.grad, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))[1]])
def test_compiled_transforms(transform):
    """ "auto" finds the one that can be traced there; by name the others are refused, and not wrong."""
    q, k, v = inputs()
    loss = {backend: transform(lambda q, b=backend: loss_of("selective", b)(q, k, v)) for backend in ("auto", *FAST)}
    torch._dynamo.reset()
    got = torch.compile(loss["auto"], fullgraph=True, backend="aot_eager")(q)
    assert_close(got, loss["auto"](q), rtol=0, atol=1e-12)
    for backend in FAST:
        with pytest.raises(Exception, match=f"backend '{backend}' cannot do this"):
            torch.compile(loss[backend], fullgraph=True, backend="aot_eager")(q)

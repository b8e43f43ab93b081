"""Operations that are computed another way on a CPU, held to their definition and to PyTorch's."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.model.kernels import Dropout, attention_products

RATES = [0.1, 0.3, 0.5, 0.9]
SIZES = [(1,), (3,), (4, 257), (2, 3, 5, 7)]


def dropped(rate: float, x: Tensor, seed: int = 1) -> Tensor:
    torch.manual_seed(seed)
    return Dropout(rate)(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_are_zero_or_scaled(rate: float, dtype: torch.dtype) -> None:
    for shape in SIZES:
        x = torch.randn(shape, dtype=torch.float64).to(dtype)
        found = dropped(rate, x)
        assert found.dtype == dtype and found.shape == x.shape
        kept = found != 0
        torch.testing.assert_close(found[kept].double(), x[kept].double() / (1 - rate), rtol=1e-2, atol=0)
    if dtype != torch.bfloat16:
        ratio = (found / x)[kept]
        torch.testing.assert_close(ratio, torch.full_like(ratio, 1 / (1 - rate)), rtol=1e-4, atol=0)


@pytest.mark.parametrize("rate", RATES)
def test_as_many_as_the_rate_says_each_by_itself(rate: float) -> None:
    """Four standard deviations of a million numbers; neighbours, four of which share a random word, are unrelated."""
    zero = (dropped(rate, torch.ones(1000, 1000)) == 0).double()
    assert abs(float(zero.mean()) - rate) < 4 * (rate * (1 - rate) / 1e6) ** 0.5
    flat = zero.flatten() - rate
    for distance in (1, 2, 3, 4, 1000):
        assert abs(float((flat[distance:] * flat[:-distance]).mean())) < 5 * rate * (1 - rate) / 1e3
    counts = zero.view(-1, 4).sum(1)
    assert abs(float(counts.var()) - 4 * rate * (1 - rate)) < 0.02


def test_the_gradient_goes_the_same_way() -> None:
    x = torch.randn(40, 33, requires_grad=True)
    found = dropped(0.3, x)
    grad = torch.randn_like(x)
    found.backward(grad)
    expected = torch.where(found == 0, 0, grad / 0.7)
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-6)


def test_it_follows_the_seed() -> None:
    x = torch.ones(100, 10)
    assert torch.equal(dropped(0.1, x, 5), dropped(0.1, x, 5))
    assert not torch.equal(dropped(0.1, x, 5), dropped(0.1, x, 6))
    torch.manual_seed(1)
    layer = Dropout(0.1)
    assert not torch.equal(layer(x), layer(x))


def test_the_mean_stays() -> None:
    x = torch.ones(2000, 1000)
    for rate in RATES:
        assert abs(float(dropped(rate, x).mean()) - 1) < 5 * (rate / (1 - rate) / 2e6) ** 0.5


@pytest.mark.parametrize("rate", [0.0, 1.0, 1e-9])
def test_rates_that_leave_nothing_to_chance(rate: float) -> None:
    x = torch.randn(50, 20)
    assert torch.equal(dropped(rate, x), F.dropout(x, round(rate)))


def test_nearly_all_is_dropped_where_that_is_asked() -> None:
    x = torch.ones(1000, 100)
    assert float((dropped(0.9999999, x) != 0).double().mean()) < 1e-3


def test_nothing_is_dropped_outside_of_training() -> None:
    x = torch.randn(50, 20)
    assert Dropout(0.5).eval()(x) is x


def test_what_is_kept_for_the_backward_pass_is_a_byte_a_number() -> None:
    x, kept = torch.randn(100, 100, requires_grad=True), list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        dropped(0.1, x)
    assert sum(tensor.untyped_storage().nbytes() for tensor in kept) == x.numel()


def test_compiled_code_gets_the_operation_that_a_compiler_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    x = torch.randn(100, 100)
    torch.manual_seed(1)
    expected = F.dropout(x, 0.5)
    assert torch.equal(dropped(0.5, x, 1), expected)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_in_half_precision_is_that_of_the_same_numbers_in_float32(causal: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    halves = [torch.randn(3, 4, 7, 8, generator=generator).bfloat16().requires_grad_() for _ in range(3)]
    wide = [half.detach().float().requires_grad_() for half in halves]
    mask = None if causal else torch.rand(3, 1, 1, 7, generator=generator) > 0.2
    with torch.autocast("cpu", torch.bfloat16):
        found = attention_products(*halves, mask, 0.0, causal=causal)
    expected = F.scaled_dot_product_attention(*wide, attn_mask=mask, is_causal=causal)
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected.bfloat16())
    found.sum().backward()
    expected.sum().backward()
    for half, one in zip(halves, wide, strict=True):
        assert half.grad is not None and one.grad is not None
        torch.testing.assert_close(half.grad.float(), one.grad, atol=1e-2, rtol=1e-2)

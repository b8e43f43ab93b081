"""The smoothed loss (fidelity item 8)."""

import math
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests import tiny
from transformer_mt.data.tokenizer import PAD
from transformer_mt.train import loss as module
from transformer_mt.train.log import perplexity
from transformer_mt.train.loop import LossOf, tensors_of
from transformer_mt.train.loss import smoothed_loss

SMALL_CHUNKS = pytest.mark.parametrize("chunk", [1 << 23, 1], ids=["one chunk", "many chunks"])


def example(
    rows: int, dtype: torch.dtype, bias: bool = True, size: int = 8, vocabulary: int = 11
) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, size, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, size, generator=generator).to(dtype).requires_grad_()
    shift = torch.randn(vocabulary, generator=generator).to(dtype).requires_grad_() if bias else None
    return [hidden, weight, shift, torch.randint(vocabulary, (rows,), generator=generator)]


def of_logits(logits: list[float], label: int, smoothing: float) -> tuple[float, float]:
    """Loss and nll of one row with these logits."""
    weight = torch.eye(len(logits), dtype=torch.float64)
    hidden = torch.tensor([logits], dtype=torch.float64)
    loss, nll = smoothed_loss(hidden, weight, None, torch.tensor([label]), smoothing)
    return float(loss), float(nll)


def test_item_8_three_classes_by_hand() -> None:
    """Probabilities 1/2, 1/4, 1/4; smoothing 0.3 makes the targets 0.8, 0.1, 0.1."""
    logits = [math.log(2), 0.0, 0.0]
    loss, nll = of_logits(logits, 0, 0.3)
    assert loss == pytest.approx(0.8 * math.log(2) + 0.1 * math.log(4) + 0.1 * math.log(4), abs=1e-14)
    assert nll == pytest.approx(math.log(2), abs=1e-14)
    loss, nll = of_logits(logits, 2, 0.3)
    assert loss == pytest.approx(0.1 * math.log(2) + 0.1 * math.log(4) + 0.8 * math.log(4), abs=1e-14)
    assert nll == pytest.approx(math.log(4), abs=1e-14)
    assert of_logits(logits, 0, 0.0) == pytest.approx((math.log(2), math.log(2)), abs=1e-14)


def test_item_8_the_minimum_is_the_entropy_of_the_targets() -> None:
    targets = [0.8, 0.1, 0.1]
    entropy = -sum(p * math.log(p) for p in targets)
    assert of_logits([math.log(p) for p in targets], 0, 0.3)[0] == pytest.approx(entropy, abs=1e-14)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        logits = torch.randn(3, generator=generator, dtype=torch.float64).mul(3).tolist()
        assert of_logits(logits, 0, 0.3)[0] > entropy


def test_perplexity_is_that_of_the_unsmoothed_loss() -> None:
    loss, nll = of_logits([math.log(p) for p in (0.05, 0.05, 0.1, 0.7, 0.1)], 3, 0.1)
    assert nll == pytest.approx(0.356675, abs=1e-6)
    assert perplexity(nll) == pytest.approx(1.428571, abs=1e-6)
    assert loss > nll


@SMALL_CHUNKS
@pytest.mark.parametrize("rows", [1, 31, 32, 33, 64, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_it_equals_pytorch_with_its_gradients(
    monkeypatch: pytest.MonkeyPatch, chunk: int, rows: int, smoothing: float, bias: bool
) -> None:
    monkeypatch.setitem(module.CHUNK_LOGITS, "cpu", chunk)
    hidden, weight, shift, labels = example(rows, torch.float64, bias)
    parameters = [tensor for tensor in (hidden, weight, shift) if tensor is not None]
    expected = F.cross_entropy(F.linear(hidden, weight, shift), labels, label_smoothing=smoothing, reduction="sum")
    gradients = torch.autograd.grad(expected * 0.7, parameters)
    loss, nll = smoothed_loss(hidden, weight, shift, labels, smoothing)
    plain = F.cross_entropy(F.linear(hidden, weight, shift), labels, reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-13)
    assert nll.item() == pytest.approx(plain.item(), rel=1e-13)
    for one, other in zip(torch.autograd.grad(loss * 0.7, parameters), gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
    assert not nll.requires_grad


def test_logits_of_a_batch_are_never_held_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.CHUNK_LOGITS, "cpu", 40 * 11)
    hidden, weight, _, labels = example(100, torch.float32, bias=False)
    sizes = []
    original = Tensor.log_softmax

    def watched(z: Tensor, *arguments, **keys) -> Tensor:
        sizes.append(z.shape[0])
        return original(z, *arguments, **keys)

    with mock.patch.object(Tensor, "log_softmax", watched):
        smoothed_loss(hidden, weight, None, labels, 0.1)[0].backward()
    assert sizes == [40, 40, 20]


def test_measuring_makes_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_Gradients", None)
    with torch.no_grad():
        loss, _ = smoothed_loss(*example(5, torch.float32), 0.1)
    assert not loss.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_under_autocast_are_close_to_float32(dtype: torch.dtype) -> None:
    hidden, weight, shift, labels = example(200, torch.float32, size=32, vocabulary=500)
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype, enabled=enabled):
            loss, _ = smoothed_loss(hidden.to(dtype if enabled else torch.float32), weight, shift, labels, 0.1)
        results.append([loss.detach(), *torch.autograd.grad(loss, [hidden, weight, shift])])
    assert all(tensor.dtype == torch.float32 for tensor in results[1])
    for one, other in zip(*results, strict=True):
        assert float((one - other).norm() / one.norm()) < 0.03


def test_the_products_follow_autocast() -> None:
    """Layer normalisation ends in float32, so the widest matrix of the model would miss the fast arithmetic."""
    hidden, weight, shift, labels = example(4, torch.float32)
    for wanted, used in ((torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)):
        with torch.autocast("cpu", wanted), mock.patch.object(module, "_Gradients", wraps=module._Gradients) as made:
            smoothed_loss(hidden, weight, shift, labels, 0.1)
        assert made.call_args.args[0].dtype == made.call_args.args[1].dtype == used


def test_padding_has_no_weight(tmp_path) -> None:
    """The same pair alone, and beside one of 50 tokens: its sum is the same; so is it with a column of padding more."""
    data = tiny.store(tmp_path, [(4, 5), (49, 49)])
    loss_of = LossOf(tiny.model(), 0.1)
    alone, longer, both = (
        torch.stack(loss_of(*tensors_of(data, torch.tensor(numbers).numpy(), 2, torch.device("cpu"))))
        for numbers in ([0], [1], [0, 1])
    )
    torch.testing.assert_close(alone + longer, both, rtol=1e-9, atol=1e-9)
    source, target, labels, places = tensors_of(data, torch.tensor([0]).numpy(), 2, torch.device("cpu"))
    assert len(labels) == 6 and PAD not in labels
    wider = [F.pad(rows, (0, 1), value=PAD) for rows in (source, target)]
    torch.testing.assert_close(torch.stack(loss_of(*wider, labels, places)), alone, rtol=1e-9, atol=1e-9)

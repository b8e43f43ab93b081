"""The optimiser: equal to PyTorch's own, its running mean equal to a loop by hand, and nothing lost on the disk."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import tiny
from transformer_mt.config import Optimizer
from transformer_mt.model.folder import load_weights, weights
from transformer_mt.model.transformer import Transformer
from transformer_mt.train.optimizer import Adam

SCALER = torch.amp.GradScaler("cpu", enabled=False)
BIASED = {"attention_bias": True, "output_bias": True}
RATES = [1e-3, 3e-3, 2e-3, 5e-4, 4e-3, 1e-3]


def adam(net: Transformer, **keys: Any) -> Adam:
    return Adam(net, Optimizer(**keys), torch.device("cpu"))


def give_gradients(net: Transformer, number: int) -> None:
    """Those of update `number`: random, the same for every copy of a model."""
    generator = torch.Generator().manual_seed(number)
    for parameter in net.parameters():
        parameter.grad = torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)


def update(net: Transformer, optimizer: Adam, number: int) -> None:
    give_gradients(net, number)
    optimizer.step(RATES[number - 1], number, SCALER)
    optimizer.zero_grad()


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def assert_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name, tensor in one.items() if not torch.equal(tensor, other[name])] == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_the_adam_of_pytorch(dtype: torch.dtype) -> None:
    net = tiny.model(dtype=dtype, **BIASED)
    other = copy.deepcopy(net)
    ours = adam(net, beta1=0.8, beta2=0.95, epsilon=1e-7)
    theirs = torch.optim.Adam(other.parameters(), lr=1.0, betas=(0.8, 0.95), eps=1e-7, fused=True)
    for number, rate in enumerate(RATES, 1):
        update(net, ours, number)
        give_gradients(other, number)
        theirs.param_groups[0]["lr"] = rate
        theirs.step()
    assert_equal(weights(net), weights(other))


def test_the_settings_ask_for_the_papers_adam() -> None:
    settings = Optimizer()
    assert (settings.beta1, settings.beta2, settings.epsilon) == (0.9, 0.98, 1e-9)
    assert (settings.clip_norm, settings.weight_decay, settings.ema_decay) == (None, 0.0, 0.0)
    optimizer = adam(tiny.model())
    assert type(optimizer.adam) is torch.optim.Adam and optimizer.mean == []
    assert (optimizer.adam.defaults["betas"], optimizer.adam.defaults["eps"]) == ((0.9, 0.98), 1e-9)


def test_weight_decay_is_that_of_adamw_on_matrices_alone() -> None:
    net = tiny.model(dtype=torch.float32, **BIASED)
    other = copy.deepcopy(net)
    ours = adam(net, weight_decay=0.3)
    options = {"lr": 1.0, "betas": (0.9, 0.98), "eps": 1e-9, "fused": True}
    matrices = torch.optim.AdamW([p for p in other.parameters() if p.dim() > 1], weight_decay=0.3, **options)
    vectors = torch.optim.Adam([p for p in other.parameters() if p.dim() == 1], **options)
    for number, rate in enumerate(RATES, 1):
        update(net, ours, number)
        give_gradients(other, number)
        for theirs in (matrices, vectors):
            theirs.param_groups[0]["lr"] = rate
            theirs.step()
    assert_equal(weights(net), weights(other))
    assert {parameter.dim() for parameter in net.parameters()} == {1, 2}


def test_weight_decay_takes_its_share_of_the_rate_where_there_is_no_gradient() -> None:
    net = tiny.model(**BIASED)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.5)
    before = copied(weights(net))
    optimizer = adam(net, weight_decay=0.25)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0.01, 1, SCALER)
    for name, tensor in weights(net).items():
        kept = 1 - 0.01 * 0.25 if tensor.dim() > 1 else 1.0
        torch.testing.assert_close(tensor, kept * before[name], rtol=1e-12, atol=0)


def test_every_parameter_is_updated_once() -> None:
    for decay in (0.0, 0.1):
        net = tiny.model(**BIASED)
        groups = adam(net, weight_decay=decay).adam.param_groups
        given = [id(parameter) for group in groups for parameter in group["params"]]
        assert sorted(given) == sorted(map(id, net.parameters())) and len(set(given)) == len(given)


# The running mean of the weights


@pytest.mark.parametrize("decay", [0.25, 0.4, 0.999])
def test_the_running_mean_is_that_of_a_loop_by_hand(decay: float) -> None:
    """At first the decay is (1 + n) / (10 + n): 2/11, 3/12, 4/13, 5/14, 6/15, 7/16; so 0.25 holds from the second."""
    net = tiny.model()
    expected = copied(weights(net))
    optimizer = adam(net, ema_decay=decay)
    shares = [min(decay, share) for share in (2 / 11, 3 / 12, 4 / 13, 5 / 14, 6 / 15, 7 / 16)]
    for number, share in enumerate(shares, 1):
        update(net, optimizer, number)
        expected = {name: share * expected[name] + (1 - share) * tensor for name, tensor in weights(net).items()}
    with optimizer.averaged():
        for name, mean in weights(net).items():
            assert mean.dtype == torch.float64
            torch.testing.assert_close(mean, expected[name], rtol=1e-12, atol=1e-14)


def test_the_running_mean_of_single_precision_stays_close() -> None:
    net = tiny.model(dtype=torch.float32)
    expected = {name: tensor.double() for name, tensor in weights(net).items()}
    optimizer = adam(net, ema_decay=0.9)
    for number in range(1, 7):
        update(net, optimizer, number)
        share = (1 + number) / (10 + number)
        expected = {name: share * expected[name] + (1 - share) * p.double() for name, p in weights(net).items()}
    for name, mean in zip(expected, optimizer.mean, strict=True):
        assert mean.dtype == torch.float32
        torch.testing.assert_close(mean.double(), expected[name], rtol=0, atol=3e-7)


def test_the_running_mean_leaves_training_alone() -> None:
    with_mean, without = tiny.model(dtype=torch.float32), tiny.model(dtype=torch.float32)
    first, second = adam(with_mean, ema_decay=0.9), adam(without)
    for number in range(1, 4):
        update(with_mean, first, number)
        update(without, second, number)
        with first.averaged():  # as a checkpoint and a validation after each update do
            pass
    assert_equal(weights(with_mean), weights(without))


def test_the_model_holds_the_mean_inside_and_its_own_weights_after() -> None:
    net = tiny.model(dtype=torch.float32)
    optimizer = adam(net, ema_decay=0.9)
    for number in range(1, 4):
        update(net, optimizer, number)
    trained, mean = copied(weights(net)), [tensor.clone() for tensor in optimizer.mean]
    assert not any(torch.equal(one, other) for one, other in zip(trained.values(), mean, strict=True))
    with optimizer.averaged():
        assert_equal(weights(net), dict(zip(trained, mean, strict=True)))
    assert_equal(weights(net), trained)
    with pytest.raises(KeyError), optimizer.averaged():
        assert_equal(weights(net), dict(zip(trained, mean, strict=True)))
        raise KeyError
    assert_equal(weights(net), trained)
    assert all(torch.equal(one, other) for one, other in zip(optimizer.mean, mean, strict=True))


def test_without_a_running_mean_the_model_stays_as_it_is() -> None:
    net = tiny.model(dtype=torch.float32)
    optimizer = adam(net)
    before = copied(weights(net))
    with optimizer.averaged():
        assert_equal(weights(net), before)
    assert_equal(weights(net), before)
    assert not any(name.endswith(".trained") for name in optimizer.state())


# What a checkpoint keeps


SETTINGS = [{}, {"weight_decay": 0.1}, {"ema_decay": 0.9}, {"ema_decay": 0.9, "weight_decay": 0.1}]


@pytest.mark.parametrize("keys", SETTINGS)
def test_a_saved_state_goes_on_to_the_bit(keys: dict[str, float], tmp_path: Path) -> None:
    """As a session does it: the model's file holds the mean, the optimiser's what is trained."""
    net = tiny.model(dtype=torch.float32)
    optimizer = adam(net, **keys)
    for number in range(1, 4):
        update(net, optimizer, number)
    with optimizer.averaged():
        saved = copied(weights(net))
    state = copied(optimizer.state())
    assert float(state["step"]) == 3
    other = tiny.model(dtype=torch.float32, seed=5)
    load_weights(other, saved, tmp_path)
    resumed = adam(other, **keys)
    resumed.load(state)
    kept = copied(state)
    for number in range(4, 7):
        update(net, optimizer, number)
        update(other, resumed, number)
        assert_equal(weights(net), weights(other))
        assert_equal(optimizer.state(), resumed.state())
        assert all(torch.equal(one, two) for one, two in zip(optimizer.mean, resumed.mean, strict=True))
    assert_equal(state, kept)
    assert bool(resumed.mean) == ("ema_decay" in keys)


def test_without_its_moments_adam_begins_anew_at_the_trained_weights(tmp_path: Path) -> None:
    net = tiny.model(dtype=torch.float32)
    optimizer = adam(net, ema_decay=0.9)
    for number in range(1, 4):
        update(net, optimizer, number)
    with optimizer.averaged():
        saved = copied(weights(net))
    other = tiny.model(dtype=torch.float32, seed=5)
    load_weights(other, saved, tmp_path)
    resumed = adam(other, ema_decay=0.5)
    resumed.load(optimizer.state(), moments=False)
    assert_equal(weights(other), weights(net))
    assert_equal(dict(zip(saved, resumed.mean, strict=True)), saved)
    state = resumed.state()
    assert not any(tensor.any() for name, tensor in state.items() if not name.endswith(".trained"))
    new = adam(net)  # Adam without a past, from the same weights
    for number in range(4, 7):
        update(net, new, number)
        update(other, resumed, number)
    assert_equal(weights(other), weights(net))


@pytest.mark.parametrize("keys", SETTINGS)
def test_all_memory_is_taken_before_the_first_update(keys: dict[str, float]) -> None:
    net = tiny.model(dtype=torch.float32)
    optimizer = adam(net, **keys)

    def places() -> list[int]:
        states = [optimizer.adam.state[parameter] for parameter in net.parameters()]
        tensors = [state[name] for state in states for name in ("step", "exp_avg", "exp_avg_sq")]
        return [tensor.data_ptr() for tensor in (*tensors, *optimizer.mean)]

    before = places()
    names = {f"{name}.{moment}" for name in weights(net) for moment in ("exp_avg", "exp_avg_sq")}
    assert names <= optimizer.state().keys()
    assert not any(tensor.any() for name, tensor in optimizer.state().items() if not name.endswith(".trained"))
    assert len(optimizer.mean) == (len(list(net.parameters())) if "ema_decay" in keys else 0)
    update(net, optimizer, 1)
    assert places() == before and float(optimizer.state()["step"]) == 1

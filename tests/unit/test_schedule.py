"""The learning rate (fidelity item 6)."""

from itertools import pairwise

import pytest

from transformer_mt.config import LearningRate
from transformer_mt.train.schedule import learning_rate

BASE = {"model_size": 512, "warmup_steps": 4000, "factor": 1.0}


@pytest.mark.parametrize(
    ("step", "rate"),
    [(1, 1.74693e-07), (2, 3.49386e-07), (4000, 6.98771e-04), (8000, 4.94106e-04), (100_000, 1.39754e-04)],
)
def test_item_6_rates_of_base(step: int, rate: float) -> None:
    assert learning_rate(step, **BASE) == pytest.approx(rate, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "step", "rate"),
    [
        ({"model_size": 1024, "warmup_steps": 4000, "factor": 1.0}, 4000, 4.94e-4),
        ({"model_size": 512, "warmup_steps": 8000, "factor": 2.0}, 8000, 9.88e-4),
        ({"model_size": 1024, "warmup_steps": 8000, "factor": 2.0}, 8000, 6.99e-4),
        ({"model_size": 512, "warmup_steps": 8000, "factor": 2.0}, 100_000, 2.79e-4),
    ],
)
def test_item_6_rates_of_big_and_of_tensor2tensor(settings: dict[str, float], step: int, rate: float) -> None:
    assert learning_rate(step, **settings) == pytest.approx(rate, rel=2e-3)


@pytest.mark.parametrize("model_size", [16, 512])
def test_a_peak_is_the_highest_rate(model_size: int) -> None:
    settings = {"model_size": model_size, "warmup_steps": 4000, "peak": 5e-4}
    assert learning_rate(4000, **settings) == pytest.approx(5e-4, rel=1e-12)
    assert learning_rate(16000, **settings) == pytest.approx(2.5e-4, rel=1e-12)
    assert learning_rate(2000, **settings) == pytest.approx(2.5e-4, rel=1e-12)
    assert max(learning_rate(step, **settings) for step in range(1, 9000)) == learning_rate(4000, **settings)


@pytest.mark.parametrize("settings", [{"factor": 1.0}, {"peak": 1e-3}])
@pytest.mark.parametrize("warmup", [0, 1, 2, 100])
def test_it_rises_to_the_warmup_and_falls_after_it(warmup: int, settings: dict[str, float]) -> None:
    rates = [learning_rate(step, model_size=64, warmup_steps=warmup, **settings) for step in range(1, 400)]
    top = max(1, warmup)
    assert all(one < other for one, other in pairwise(rates[:top]))
    assert all(one > other for one, other in pairwise(rates[top - 1 :]))
    assert all(rate > 0 for rate in rates)


def test_without_warmup_the_first_update_has_the_highest_rate() -> None:
    assert learning_rate(1, model_size=64, warmup_steps=0, factor=1.0) == pytest.approx(64**-0.5)
    assert learning_rate(1, model_size=64, warmup_steps=0, peak=1e-3) == pytest.approx(1e-3)


def test_the_settings_ask_for_the_papers_curve() -> None:
    settings = LearningRate()
    assert (settings.warmup_steps, settings.factor, settings.peak) == (4000, 1.0, None)

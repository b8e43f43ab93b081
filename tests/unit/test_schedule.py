"""The learning rate (fidelity item 6), and the schedules that are not the paper's."""

import math
from itertools import pairwise
from pathlib import Path

import pytest

from transformer_mt.config import Config, LearningRate
from transformer_mt.config.file import load_config
from transformer_mt.errors import UserError
from transformer_mt.train.checkpoint import keep_or_reset
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


# After the warm-up: the other schedules

DECAYING = {"model_size": 64, "warmup_steps": 20, "peak": 2e-3, "decay_steps": 120}


@pytest.mark.parametrize("settings", [{"factor": 0.5}, {"peak": 2e-3}])
@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_all_schedules_warm_up_alike(schedule: str, settings: dict[str, float]) -> None:
    common = {"model_size": 64, "warmup_steps": 20, **settings}
    top = settings.get("peak", 0.5 * 64**-0.5 * 20**-0.5)
    for step in range(1, 21):
        rate = learning_rate(step, schedule=schedule, decay_steps=120, **common)
        assert rate == learning_rate(step, schedule="inverse_sqrt", **common)
        assert rate == pytest.approx(top * step / 20, rel=1e-12)


@pytest.mark.parametrize(
    ("schedule", "minimum", "step", "share"),
    [
        ("cosine", 0.0, 21, (1 + math.cos(math.pi / 100)) / 2),
        ("cosine", 0.0, 45, (2 + 2**0.5) / 4),
        ("cosine", 0.0, 70, 0.5),
        ("cosine", 0.0, 95, (2 - 2**0.5) / 4),
        ("cosine", 0.0, 120, 0.0),
        ("cosine", 0.1, 70, 0.55),
        ("cosine", 0.1, 120, 0.1),
        ("cosine", 0.1, 121, 0.1),
        ("cosine", 0.1, 100_000, 0.1),
        ("linear", 0.0, 21, 0.99),
        ("linear", 0.0, 45, 0.75),
        ("linear", 0.0, 70, 0.5),
        ("linear", 0.0, 120, 0.0),
        ("linear", 0.2, 45, 0.8),
        ("linear", 0.2, 120, 0.2),
        ("linear", 0.2, 121, 0.2),
        ("linear", 0.2, 100_000, 0.2),
        ("constant", 0.0, 21, 1.0),
        ("constant", 0.0, 100_000, 1.0),
    ],
)
def test_rates_after_the_warmup(schedule: str, minimum: float, step: int, share: float) -> None:
    rate = learning_rate(step, schedule=schedule, minimum=minimum, **DECAYING)
    assert rate == pytest.approx(2e-3 * share, rel=1e-9, abs=1e-15)


def test_the_highest_rate_of_a_factor_is_what_decays() -> None:
    settings = {"model_size": 64, "warmup_steps": 4, "factor": 2.0, "decay_steps": 14}
    assert learning_rate(9, schedule="linear", **settings) == pytest.approx(2.0 / 8 / 2 / 2, rel=1e-12)
    assert learning_rate(9, schedule="cosine", minimum=0.5, **settings) == pytest.approx(0.125 * 0.75, rel=1e-12)
    assert learning_rate(9, schedule="constant", **settings) == pytest.approx(0.125, rel=1e-12)


@pytest.mark.parametrize("warmup", [0, 1])
def test_schedules_without_warmup_begin_at_the_top(warmup: int) -> None:
    settings = {"model_size": 64, "warmup_steps": warmup, "peak": 1e-3, "decay_steps": 101}
    for schedule, half in (("cosine", 5e-4), ("linear", 5e-4), ("constant", 1e-3)):
        assert learning_rate(1, schedule=schedule, **settings) == pytest.approx(1e-3, rel=1e-12)
        assert learning_rate(51, schedule=schedule, **settings) == pytest.approx(half, rel=1e-12)
    assert learning_rate(101, schedule="linear", **settings) == 0.0


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_decaying_schedules_never_rise_again(schedule: str) -> None:
    rates = [learning_rate(step, schedule=schedule, minimum=0.05, **DECAYING) for step in range(20, 200)]
    assert all(one > other for one, other in pairwise(rates[:101]))
    assert set(rates[100:]) == {rates[100]} and rates[100] == pytest.approx(1e-4, rel=1e-9)


# Their keys


def loaded(folder: Path, training: str, *overrides: str) -> Config:
    lines = (
        "name: tiny",
        "languages: {source: en, target: de}",
        "data: {train: [{demo: english-german}], validation: [{demo: english-german}]}",
        f"training: {{{training}}}",
    )
    (folder / "c.yaml").write_text("\n".join(lines))
    return load_config(str(folder / "c.yaml"), overrides)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_decay_ends_at_max_steps_unless_it_is_given(tmp_path: Path, schedule: str) -> None:
    rate = f"learning_rate: {{schedule: {schedule}, warmup_steps: 5, peak: 1e-3}}"
    assert loaded(tmp_path, f"max_steps: 30, {rate}").training.learning_rate.decay_steps == 30
    assert loaded(tmp_path, f"max_steps: 1e5, {rate}").training.learning_rate.decay_steps == 100_000
    changed = loaded(tmp_path, f"max_steps: 30, {rate}", "training.max_steps=40")
    assert changed.training.learning_rate.decay_steps == 40
    given = loaded(tmp_path, f"max_steps: 30, {rate}", "training.learning_rate.decay_steps=25")
    assert given.training.learning_rate.decay_steps == 25
    timed = loaded(tmp_path, f"max_epochs: 3, {rate}", "training.learning_rate.decay_steps=25")
    assert timed.training.learning_rate.decay_steps == 25


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "constant"])
def test_what_does_not_decay_has_no_end(tmp_path: Path, schedule: str) -> None:
    config = loaded(tmp_path, f"max_steps: 30, learning_rate: {{schedule: {schedule}}}")
    assert config.training.learning_rate.decay_steps is None


def test_the_end_of_decay_stays_when_training_is_prolonged(tmp_path: Path) -> None:
    """Through a checkpoint as well as through the configuration that a run folder keeps."""
    text = "max_steps: 30, learning_rate: {schedule: cosine, warmup_steps: 5, peak: 1e-3}"
    first = loaded(tmp_path, text)
    longer = loaded(tmp_path, text, "training.max_steps=50")
    kept, lines = keep_or_reset(longer, first.model_dump(mode="json"), [])
    assert (kept.training.max_steps, kept.training.learning_rate.decay_steps) == (50, 30)
    assert len(lines) == 1
    assert lines[0].startswith("training.learning_rate.decay_steps: config 50, checkpoint 30, using 30 (--reset sched")
    changed, _ = keep_or_reset(longer, first.model_dump(mode="json"), ["schedule"])
    assert changed.training.learning_rate.decay_steps == 50
    resolved = first.model_copy(update={"training": first.training.model_copy(update={"max_steps": 50})})
    again = Config.model_validate(resolved.model_dump(mode="json"))
    assert again.training.learning_rate.decay_steps == 30


@pytest.mark.parametrize(
    ("training", "told"),
    [
        (
            "max_epochs: 3, learning_rate: {schedule: cosine}",
            "training.learning_rate.decay_steps (PATH:4): found nothing, wanted it for schedule cosine",
        ),
        (
            "max_minutes: 3, learning_rate: {schedule: linear}",
            "training.learning_rate.decay_steps (PATH:4): found nothing, wanted it for schedule linear",
        ),
        (
            "max_steps: 9000, learning_rate: {schedule: linear, decay_steps: 4000}",
            "training.learning_rate.decay_steps (PATH:4): found 4000, wanted more than warmup_steps 4000",
        ),
        (
            "max_steps: 30, learning_rate: {schedule: cosine}",
            "training.learning_rate.decay_steps (PATH:4): found 30, wanted more than warmup_steps 4000",
        ),
        (
            "max_steps: 30, learning_rate: {decay_steps: 9000}",
            "training.learning_rate.decay_steps (PATH:4): found with schedule inverse_sqrt, wanted cosine or linear",
        ),
        (
            "max_steps: 30, learning_rate: {minimum: 0.1}",
            "training.learning_rate.minimum (PATH:4): found with schedule inverse_sqrt, wanted cosine or linear",
        ),
        (
            "max_steps: 30, learning_rate: {schedule: constant, minimum: 0.1}",
            "training.learning_rate.minimum (PATH:4): found with schedule constant, wanted cosine or linear",
        ),
        (
            "max_steps: ten, learning_rate: {schedule: cosine}",
            "training.max_steps (PATH:4): found 'ten', wanted a whole number",
        ),
        (
            "max_steps: 30, learning_rate: {schedule: step}",
            "training.learning_rate.schedule (PATH:4): found 'step', wanted inverse_sqrt, cosine, linear or constant",
        ),
    ],
)
def test_keys_that_do_not_go_together(tmp_path: Path, training: str, told: str) -> None:
    with pytest.raises(UserError) as failure:
        loaded(tmp_path, training)
    (message,) = failure.value.messages
    assert message.startswith(told.replace("PATH", str(tmp_path / "c.yaml")))


def test_the_least_decay_there_is(tmp_path: Path) -> None:
    rate = loaded(tmp_path, "max_steps: 6, learning_rate: {schedule: cosine, warmup_steps: 5, minimum: 0.5}")
    assert (rate.training.learning_rate.decay_steps, rate.training.learning_rate.minimum) == (6, 0.5)

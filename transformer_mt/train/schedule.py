"""The learning rate as a pure function of the update's number."""

import math


def learning_rate(
    step: int,
    *,
    model_size: int,
    warmup_steps: int,
    factor: float | None = None,
    peak: float | None = None,
    schedule: str = "inverse_sqrt",
    decay_steps: int | None = None,
    minimum: float = 0.0,
) -> float:
    """Rate of update `step`, counted from 1: linear warm-up to the highest rate, then what the schedule says.

    inverse_sqrt (section 5.3): factor x model_size^-0.5 x min(step^-0.5, step x warmup_steps^-1.5), or the same curve
    scaled so that its highest value, at update warmup_steps, is `peak`. cosine, linear: from that value down to
    minimum x highest at update decay_steps. constant: that value. warmup_steps 0 begins at the highest rate.
    """
    warmup = max(1, warmup_steps)
    scale = model_size**-0.5 * (factor or 0.0) if peak is None else peak * warmup**0.5
    if schedule == "inverse_sqrt" or step <= warmup:
        return float(scale * min(step**-0.5, step * warmup**-1.5))
    highest = scale * warmup**-0.5
    if schedule == "constant":
        return float(highest)
    assert decay_steps is not None, schedule  # the configuration sees to it
    left = 1 - min(1.0, (step - warmup) / max(1, decay_steps - warmup))
    share = (1 - math.cos(math.pi * left)) / 2 if schedule == "cosine" else left
    return float(highest * (minimum + (1 - minimum) * share))

"""The learning rate as a pure function of the update's number."""


def learning_rate(
    step: int, *, model_size: int, warmup_steps: int, factor: float | None = None, peak: float | None = None
) -> float:
    """Rate of update `step`, counted from 1 (section 5.3).

    With `factor`: factor x model_size^-0.5 x min(step^-0.5, step x warmup_steps^-1.5). With `peak`: the same curve,
    scaled so that its highest value, at update warmup_steps, is `peak`. warmup_steps 0 begins at the highest rate.
    """
    warmup = max(1, warmup_steps)
    scale = model_size**-0.5 * (factor or 0.0) if peak is None else peak * warmup**0.5
    return float(scale * min(step**-0.5, step * warmup**-1.5))

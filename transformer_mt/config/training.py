"""The configuration of training: schedule, optimiser, checkpoints, validation (sections 5 and 6.1)."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from transformer_mt.config.values import Count, DataPath, Fraction, Natural, Positive, Section, Seed, whole_number

DECAYING = ("cosine", "linear")
"""Schedules that end at update decay_steps."""


class LearningRate(Section):
    """Linear warm-up to the highest rate, then what `schedule` says (section 5.3: inverse_sqrt).

    The highest rate, reached at update warmup_steps, is `peak`, or factor x model_size^-0.5 x warmup_steps^-0.5.
    """

    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] = "inverse_sqrt"
    """After the warm-up: with the inverse square root of the update's number; along half a cosine or a straight line
    down to `minimum` at update decay_steps; or unchanged."""
    warmup_steps: Natural = 4000
    """Updates until the highest rate; 0 starts at it."""
    factor: Positive | None = 1.0
    """inverse_sqrt: rate = factor x model_size^-0.5 x min(step^-0.5, step x warmup_steps^-1.5)."""
    peak: Positive | None = None
    """The highest rate itself, instead of factor."""
    decay_steps: Count | None = None
    """The update at which cosine and linear reach their minimum; by default training.max_steps of the first run."""
    minimum: Fraction = 0.0
    """What cosine and linear come down to, as a share of the highest rate."""

    @model_validator(mode="before")
    @classmethod
    def _peak_replaces_factor(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("peak") is not None and "factor" not in value:
            return {**value, "factor": None}
        return value

    @model_validator(mode="after")
    def _fits(self) -> "LearningRate":
        if (self.factor is None) == (self.peak is None):
            raise ValueError(f"peak: found {'both' if self.peak else 'neither'}, wanted either factor or peak")
        decays = self.schedule in DECAYING
        if decays and self.decay_steps is not None and self.decay_steps <= self.warmup_steps:
            raise ValueError(
                f"decay_steps: found {self.decay_steps}, wanted more than warmup_steps {self.warmup_steps}"
            )
        given = [name for name in ("decay_steps", "minimum") if getattr(self, name)]
        if given and not decays:
            raise ValueError(f"{given[0]}: found with schedule {self.schedule}, wanted cosine or linear beside it")
        return self


class Optimizer(Section):
    """Adam (section 5.3)."""

    beta1: Fraction = 0.9
    beta2: Fraction = 0.98
    epsilon: Positive = 1e-9
    clip_norm: Positive | None = None
    """Largest norm of the gradient; the paper does not clip."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Share of itself, times the learning rate, that each matrix loses in an update (Loshchilov and Hutter 2019);
    biases and normalisation keep theirs. The paper has none."""
    ema_decay: Fraction = 0.0
    """Above 0, a running mean of the weights is kept: mean <- decay x mean + (1 - decay) x weights after each update,
    with a smaller decay at first, (1 + step) / (10 + step). That mean is what is validated, saved as a checkpoint's
    model and averaged. 0.999 and 0.9999 are usual; the paper has none."""


class Checkpoint(Section):
    """When the state of training is saved, and how much of it stays."""

    every_steps: Count = 1000
    keep_last: Count = 20
    """The newest ones, for averaging."""
    keep_best: Natural = 1
    """The best ones by validation.metric, besides."""
    keep_resumable: Count = 2
    """The newest ones that keep the optimiser's state, twice the size of the weights."""
    average: Natural = 5
    """model/ becomes the mean of so many checkpoints (section 6.1: 5 for base, 20 for big); 0 takes the best one."""
    average_of: Literal["last", "best"] = "last"
    """Which checkpoints those are: the newest ones (the paper), or the best by validation.metric."""

    @model_validator(mode="after")
    def _enough_to_average(self) -> "Checkpoint":
        if not self.average and not self.keep_best:
            raise ValueError("average: found 0, which takes the best checkpoint, wanted more with keep_best 0")
        key = f"keep_{self.average_of}"
        kept = self.keep_last if self.average_of == "last" else self.keep_best
        if self.average > kept:
            raise ValueError(f"average: found {self.average}, wanted at most {key} ({kept}): no more are kept")
        return self


class Validation(Section):
    """What is measured during training."""

    every_steps: Count = 1000
    metric: Literal["bleu", "chrf", "loss", "nll", "ppl"] = "bleu"
    """Decides which checkpoint is the best, and when to stop early."""
    patience: Count | None = None
    """Stop after so many validations without a better value; null never stops early."""
    translate: bool = True
    """Translate the validation text for BLEU and chrF, with the options of `decoding`; false measures the loss only."""

    @model_validator(mode="after")
    def _metric_is_measured(self) -> "Validation":
        if not self.translate and self.metric in ("bleu", "chrf"):
            raise ValueError(
                f"translate: found false, wanted true for metric {self.metric}; or metric loss, nll or ppl"
            )
        return self


class Training(Section):
    """How the model is trained (section 5)."""

    batch_tokens: Count = 25000
    """Source and target tokens of one update, each, with padding, over all devices."""
    device_tokens: Literal["auto"] | Count = "auto"
    """Tokens in one forward pass on one device; the number of passes in an update follows from it. auto: what a GPU has
    memory for, 4096 on a CPU."""
    max_tokens: Count = 256
    """Longest side of a pair, `</s>` included."""
    too_long: Literal["skip", "truncate", "error"] = "skip"
    """What to do with longer pairs; counted, with line numbers."""
    max_steps: Count | None = None
    """Updates; the paper: 100,000 (base), 300,000 (big)."""
    max_epochs: Count | None = None
    """Passes over the training data."""
    max_minutes: Annotated[float, Field(gt=0, le=1e8)] | None = None
    """Time for updates, validation and saving not counted; turned into a number of updates once their speed is known.
    Whichever limit comes first holds."""
    initial_model: DataPath | None = None
    """Fine-tuning: the model, run or checkpoint folder whose weights training begins with. With another vocabulary the
    embeddings of pieces that both have are taken."""
    subword_sampling: Fraction = 0.0
    """Above 0, training text is cut into pieces anew in each epoch: the probability of leaving out a merge
    (BPE-dropout, Provilkov et al. 2020, 0.1). BPE models only."""
    learning_rate: LearningRate = LearningRate()
    optimizer: Optimizer = Optimizer()
    label_smoothing: Fraction = 0.1
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 on GPUs that have it, else float32."""
    seed: Seed = 1
    """Decides initial weights, order of the data, dropout and sampling of subwords."""
    compile: bool = False
    """Compile the model with torch.compile; lengths are padded to multiples of 8, so that few shapes are met."""
    max_skipped: Count = 20
    """Updates with a non-finite gradient that may follow each other before the run gives up."""
    log_every_steps: Count = 100
    tensorboard: bool = False
    """Write the metrics for TensorBoard too (extra [tensorboard])."""
    checkpoint: Checkpoint = Checkpoint()
    validation: Validation = Validation()

    @model_validator(mode="before")
    @classmethod
    def _decays_until_the_end(cls, value: Any) -> Any:
        """Fixes decay_steps when it is first read, so that a later change of max_steps leaves the schedule alone."""
        rate = value.get("learning_rate") if isinstance(value, dict) else None
        if not isinstance(rate, dict) or rate.get("schedule") not in DECAYING or rate.get("decay_steps") is not None:
            return value
        steps = whole_number(value.get("max_steps"))  # what is no number is told at max_steps
        return {**value, "learning_rate": {**rate, "decay_steps": steps}} if isinstance(steps, int) else value

    @model_validator(mode="after")
    def _fits(self) -> "Training":
        if self.max_steps is None and self.max_epochs is None and self.max_minutes is None:
            raise ValueError("max_steps: found no limit, wanted max_steps, max_epochs or max_minutes")
        rate = self.learning_rate
        if rate.schedule in DECAYING and rate.decay_steps is None:
            raise ValueError(f"learning_rate.decay_steps: found nothing, wanted it for schedule {rate.schedule}")
        if self.batch_tokens < self.max_tokens:
            raise ValueError(f"batch_tokens: found {self.batch_tokens}, wanted at least max_tokens ({self.max_tokens})")
        return self

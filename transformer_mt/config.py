"""The configuration: one frozen tree, every key with its meaning, unit and bounds.

Reading a file into this tree, and telling a person what is wrong with it, is `config_file.py`'s work.
Numbers are the paper's ("Attention Is All You Need", sections 3 and 5) unless a comment says otherwise.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from transformer_mt.config_values import (
    HUB,
    Count,
    DataPath,
    Language,
    Name,
    Natural,
    Positive,
    Section,
    Seed,
    Share,
    Text,
    UserPath,
)


class Languages(Section):
    """The two languages, by their codes (ISO 639, `de` or `zh-Hans`)."""

    source: Language
    target: Language

    @model_validator(mode="after")
    def _differ(self) -> "Languages":
        if self.source.lower() == self.target.lower():  # the run's files are named after them
            raise ValueError(f"target: found {self.target!r}, wanted another than source; as in en and en-simple")
        return self


class _Source(Section):
    name: Name | None = None
    """How reports and score files call it; by default the file's or the split's name."""


class HubSource(_Source):
    """A data set of the Hugging Face hub."""

    hub: str = Field(pattern=HUB)
    """Its name there, such as wmt/wmt14."""
    subset: Text | None = None
    """Its configuration, such as de-en; by default the one named after the two languages, in either order."""
    split: Text = "train"
    """The split, in the syntax of `datasets`: train, validation, train[:1000]."""
    revision: Text | None = None
    """A commit of the data set; by default the newest, resolved once and recorded."""
    columns: tuple[Text, Text] | None = None
    """Names of the source and the target column; by default `translation` with the two language codes."""


class TextSource(_Source):
    """Two text files, line N of one translating line N of the other; .gz, .xz, .bz2 and .zst are read as they are."""

    source: DataPath
    target: DataPath


class TsvSource(_Source):
    """A file of tab-separated columns, without quoting."""

    tsv: DataPath
    columns: tuple[Natural, Natural] = (0, 1)
    """Source and target column, counted from 0."""


class JsonlSource(_Source):
    """One JSON object a line; the two texts under the language codes, or inside a `translation` object."""

    jsonl: DataPath
    columns: tuple[Text, Text] | None = None
    """Keys of the source and target text, when they are not the language codes."""


class ParquetSource(_Source):
    """A Parquet file with a `translation` column or one column a language."""

    parquet: DataPath
    columns: tuple[Text, Text] | None = None
    """Names of the two columns, when they are not the language codes."""


class DemoSource(_Source):
    """Sentences made by the embedded grammar: a demonstration of the machinery, not of translating news."""

    demo: Literal["english-german"]
    pairs: Count = 1000
    """How many different pairs."""
    seed: Seed = 1


SOURCE_KINDS = ("hub", "source", "tsv", "jsonl", "parquet", "demo")


def source_kind(value: Any) -> str | None:
    """The key that says what kind of source this is, or None."""
    keys = value if isinstance(value, dict) else {key: True for key in SOURCE_KINDS if hasattr(value, key)}
    return next((kind for kind in SOURCE_KINDS if kind in keys), None)


Source = Annotated[
    Annotated[HubSource, Tag("hub")]
    | Annotated[TextSource, Tag("source")]
    | Annotated[TsvSource, Tag("tsv")]
    | Annotated[JsonlSource, Tag("jsonl")]
    | Annotated[ParquetSource, Tag("parquet")]
    | Annotated[DemoSource, Tag("demo")],
    Discriminator(
        source_kind,
        custom_error_type="unknown_source",
        custom_error_message="a source needs one of the keys " + ", ".join(SOURCE_KINDS),
    ),
]


class Cleaning(Section):
    """Filters on the training pairs. A filter drops a pair whole and is counted by its name; null switches it off."""

    max_words: Count | None = 250
    """Longest side, in white-space separated words."""
    max_characters: Count | None = 4000
    """Longest side, in characters: catches endless lines without a blank."""
    max_length_ratio: Annotated[float, Field(ge=1)] | None = 3.0
    """Largest ratio of the longer to the shorter side in words, where the longer has at least 10 of them."""
    deduplicate: bool = True
    """Keep only the first of equal pairs."""
    remove_test_overlap: bool = True
    """Drop training pairs whose source is a source of the validation or test data."""


class Data(Section):
    """Where the text comes from."""

    train: Annotated[tuple[Source, ...], Field(min_length=1)]
    validation: Annotated[tuple[Source, ...], Field(min_length=1)]
    test: tuple[Source, ...] = ()
    on_bad_bytes: Literal["error", "skip_pair"] = "error"
    """What to do with a line that is not valid UTF-8."""
    cleaning: Cleaning = Cleaning()


class Tokenizer(Section):
    """SentencePiece's settings."""

    algorithm: Literal["bpe", "unigram"] = "bpe"
    vocabulary_size: Count = 37000
    """Pieces, the four special ones included."""
    vocabulary_limit: Literal["hard", "soft"] = "hard"
    """`soft` takes as many pieces as the corpus allows when it does not allow vocabulary_size."""
    shared: bool = True
    """One vocabulary for both languages; false learns one a language."""
    normalization: Literal["identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"] = "identity"
    """SentencePiece's rule, stored in the model. White space is folded and NFC applied before it in any case."""
    byte_fallback: bool = True
    """Write rare characters as bytes, so that nothing is unknown."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1)] = 0.9995
    """Share of the characters of the corpus that get pieces of their own."""
    sample_lines: Count = 4_000_000
    """Lines to learn from at most, drawn evenly from both sides."""
    max_line_bytes: Count = 4192
    """Longer lines are left out of the learning, and counted."""
    model: DataPath | None = None
    """A SentencePiece model to use instead of learning one (shared: true)."""
    source_model: DataPath | None = None
    """The same for the source side alone (shared: false)."""
    target_model: DataPath | None = None

    @model_validator(mode="after")
    def _models_fit(self) -> "Tokenizer":
        if self.shared and (self.source_model or self.target_model):
            key = "source_model" if self.source_model else "target_model"
            raise ValueError(f"{key}: found with shared: true, wanted model, or shared: false")
        if not self.shared and self.model:
            raise ValueError("model: found with shared: false, wanted source_model and target_model")
        if (self.source_model is None) != (self.target_model is None):
            raise ValueError("source_model: found one of source_model and target_model, wanted both")
        return self


PRESETS: dict[str, dict[str, Any]] = {
    "base": {},
    "big": {"model_size": 1024, "feedforward_size": 4096, "heads": 16, "dropout": 0.3},
    # What tensor2tensor ran after the paper (transformer_base, version 2 and later).
    "base-t2t": {"norm": "pre", "attention_dropout": 0.1, "activation_dropout": 0.1},
}


class Model(Section):
    """The Transformer. A preset is only an abbreviation: `config show` prints what it stands for."""

    preset: Literal["base", "big", "base-t2t"] | None = None
    """base and big of the paper's table 3; base-t2t as tensor2tensor later had it. Keys beside it win over it."""
    encoder_layers: Count = 6
    decoder_layers: Count = 6
    model_size: Count = 512
    """d_model: width of embeddings and layer outputs."""
    feedforward_size: Count = 2048
    """d_ff: width inside the feed-forward layers."""
    heads: Count = 8
    key_size: Count = Field(default_factory=lambda data: max(1, data["model_size"] // data["heads"]))
    """d_k: width of queries and keys in one head; default model_size / heads."""
    value_size: Count = Field(default_factory=lambda data: max(1, data["model_size"] // data["heads"]))
    """d_v: width of values in one head; default model_size / heads."""
    dropout: Share = 0.1
    """P_drop: on each sub-layer's output, and on the sum of embeddings and positions (section 5.4)."""
    attention_dropout: Share = 0.0
    """On attention weights; the paper has none."""
    activation_dropout: Share = 0.0
    """Inside the feed-forward layers; the paper has none."""
    norm: Literal["post", "pre"] = "post"
    """LayerNorm after the residual sum (the paper) or before each sub-layer, with a final one."""
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    max_positions: Count = 1024
    """Rows of the table of learned positions; the other kinds have no limit."""
    activation: Literal["relu", "gelu", "swish", "swiglu"] = "relu"
    attention_bias: bool = False
    """Biases in the four attention projections."""
    output_bias: bool = False
    """A bias on the logits."""
    tie_embeddings: Literal["all", "decoder", "none"] = "all"
    """all: source, target and output matrix are one (section 3.4); decoder: target and output; none."""
    start_symbol: Literal["bos", "eos", "pad"] = "bos"
    """What the decoder's input begins with."""

    @model_validator(mode="before")
    @classmethod
    def _expand_preset(cls, value: Any) -> Any:
        preset = PRESETS.get(str(value.get("preset"))) if isinstance(value, dict) else None
        return {**preset, **value} if preset else value

    @model_validator(mode="after")
    def _sizes_fit(self) -> "Model":
        given = {"key_size", "value_size"} <= self.model_fields_set
        if self.model_size % self.heads and not given:
            wanted = f"a divisor of model_size ({self.model_size}), or key_size and value_size beside it"
            raise ValueError(f"heads: found {self.heads}, wanted {wanted}")
        if self.model_size % 2 and self.positions == "sinusoidal":
            raise ValueError(f"model_size: found {self.model_size}, wanted an even number for sinusoidal positions")
        if self.key_size % 2 and self.positions == "rotary":
            raise ValueError(f"key_size: found {self.key_size}, wanted an even number for rotary positions")
        return self


class LearningRate(Section):
    """The paper's schedule (section 5.3): linear warm-up, then the inverse square root of the update's number."""

    schedule: Literal["inverse_sqrt"] = "inverse_sqrt"
    warmup_steps: Natural = 4000
    """Updates until the peak; 0 starts at it."""
    factor: Positive | None = 1.0
    """Rate = factor x model_size^-0.5 x min(step^-0.5, step x warmup_steps^-1.5)."""
    peak: Positive | None = None
    """The highest rate itself, instead of factor."""

    @model_validator(mode="before")
    @classmethod
    def _peak_replaces_factor(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("peak") is not None and "factor" not in value:
            return {**value, "factor": None}
        return value

    @model_validator(mode="after")
    def _one_of_two(self) -> "LearningRate":
        if (self.factor is None) == (self.peak is None):
            raise ValueError(f"peak: found {'both' if self.peak else 'neither'}, wanted either factor or peak")
        return self


class Optimizer(Section):
    """Adam (section 5.3)."""

    beta1: Share = 0.9
    beta2: Share = 0.98
    epsilon: Positive = 1e-9
    clip_norm: Positive | None = None
    """Largest norm of the gradient; the paper does not clip."""


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
    """model/ becomes the mean of so many last checkpoints (section 6.1: 5 for base, 20 for big); 0 takes the best."""

    @model_validator(mode="after")
    def _enough_to_average(self) -> "Checkpoint":
        if not self.average and not self.keep_best:
            raise ValueError("average: found 0, which takes the best checkpoint, wanted more with keep_best 0")
        if self.average > self.keep_last:
            raise ValueError(
                f"average: found {self.average}, wanted at most keep_last ({self.keep_last}): no more are kept"
            )
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
    """Tokens in one forward pass on one device; the number of passes in an update follows from it."""
    max_tokens: Count = 256
    """Longest side of a pair, `</s>` included."""
    too_long: Literal["skip", "truncate", "error"] = "skip"
    """What to do with longer pairs; counted, with line numbers."""
    max_steps: Count | None = None
    """Updates; the paper: 100,000 (base), 300,000 (big)."""
    max_epochs: Count | None = None
    """Passes over the training data; whichever limit comes first holds."""
    learning_rate: LearningRate = LearningRate()
    optimizer: Optimizer = Optimizer()
    label_smoothing: Share = 0.1
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """auto: bfloat16 on GPUs that have it, else float32."""
    seed: Seed = 1
    """Decides initial weights, order of the data and dropout."""
    max_skipped: Count = 20
    """Updates with a non-finite gradient that may follow each other before the run gives up."""
    log_every_steps: Count = 100
    tensorboard: bool = False
    """Write the metrics for TensorBoard too (extra [tensorboard])."""
    checkpoint: Checkpoint = Checkpoint()
    validation: Validation = Validation()

    @model_validator(mode="after")
    def _fits(self) -> "Training":
        if self.max_steps is None and self.max_epochs is None:
            raise ValueError("max_steps: found no limit, wanted max_steps or max_epochs")
        if self.batch_tokens < self.max_tokens:
            raise ValueError(f"batch_tokens: found {self.batch_tokens}, wanted at least max_tokens ({self.max_tokens})")
        return self


class LengthPenalty(Section):
    """What divides a hypothesis' sum of log-probabilities; n counts `</s>`."""

    form: Literal["none", "average", "power", "gnmt"] = "gnmt"
    """none: 1; average: n; power: n^alpha; gnmt: ((5 + n) / 6)^alpha (Wu et al. 2016, the paper's)."""
    alpha: float = 0.6


class MaxLength(Section):
    """Longest output in pieces, `</s>` not counted: factor x source pieces + extra."""

    factor: Annotated[float, Field(ge=0)] = 1.0
    extra: Natural = 50


class Decoding(Section):
    """Beam search (section 6.1)."""

    beam_size: Count = 4
    """1 is greedy search."""
    n_best: Count = 1
    """Hypotheses given for each sentence; at most beam_size."""
    length_penalty: LengthPenalty = LengthPenalty()
    max_length: MaxLength = MaxLength()
    max_source_tokens: Count | None = 1024
    """Pieces read of one line; what is longer is cut, with a warning that names the line. null reads any length."""
    min_length: Natural = 1
    """Fewest pieces of an output for a source that is not empty."""
    batch_size: Count = 256
    """Sentences decoded together at most."""
    batch_tokens: Count = 8000
    """Source pieces x beam_size decoded together at most, padding included."""
    allow_unknown: bool = False
    """Let the search produce the unknown piece."""
    unknown_marker: str = "⁇"
    """How an unknown piece is written, where it is allowed."""

    @model_validator(mode="after")
    def _n_best_fits(self) -> "Decoding":
        if self.n_best > self.beam_size:
            raise ValueError(f"n_best: found {self.n_best}, wanted at most beam_size ({self.beam_size})")
        return self


class Evaluation(Section):
    """What `evaluate` measures."""

    metrics: Annotated[tuple[Literal["bleu", "chrf", "ter"], ...], Field(min_length=1)] = ("bleu", "chrf", "ter")


class Config(Section):
    """Everything that one run depends on."""

    name: Name
    output: UserPath = Field(default_factory=lambda data: Path("runs") / data["name"])
    """The run folder, relative to the folder the command is run in; default runs/<name>."""
    languages: Languages
    data: Data
    tokenizer: Tokenizer = Tokenizer()
    model: Model = Model()
    training: Training = Training(max_steps=100_000)
    decoding: Decoding = Decoding()
    evaluation: Evaluation = Evaluation()

    @model_validator(mode="after")
    def _sections_agree(self) -> "Config":
        if self.model.tie_embeddings == "all" and not self.tokenizer.shared:
            raise ValueError("model.tie_embeddings: found all, wanted decoder or none with tokenizer.shared: false")
        longest = self.training.max_tokens
        if self.model.positions == "learned" and self.model.max_positions < longest:
            found = self.model.max_positions
            raise ValueError(f"model.max_positions: found {found}, wanted at least training.max_tokens ({longest})")
        return self

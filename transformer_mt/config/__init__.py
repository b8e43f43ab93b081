"""The configuration: one frozen tree, every key with its meaning, unit and bounds.

Reading a file into this tree, and telling a person what is wrong with it, is `file.py`'s work.
Numbers are the paper's ("Attention Is All You Need", sections 3 and 5) unless a comment says otherwise.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from transformer_mt.config.data import (
    SOURCE_KINDS,
    Cleaning,
    Data,
    DemoSource,
    HubSource,
    JsonlSource,
    Languages,
    ParquetSource,
    PoSource,
    SacrebleuSource,
    Source,
    TextSource,
    TmxSource,
    Tokenizer,
    TsvSource,
    UrlSource,
    source_kind,
)
from transformer_mt.config.training import Checkpoint, LearningRate, Optimizer, Training, Validation
from transformer_mt.config.values import Count, Fraction, Name, Natural, Positive, Section, Seed, UserPath

__all__ = [
    "PRESETS", "SOURCE_KINDS", "Checkpoint", "Cleaning", "Config", "Data", "Decoding", "DemoSource", "Evaluation",
    "HubSource", "JsonlSource", "Languages", "LearningRate", "LengthPenalty", "MaxLength", "Model", "Optimizer",
    "ParquetSource", "PoSource", "SacrebleuSource", "Sampling", "Source", "TextSource", "TmxSource", "Tokenizer",
    "Training", "TsvSource", "UrlSource", "Validation", "source_kind",
]  # fmt: skip

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
    dropout: Fraction = 0.1
    """P_drop: on each sub-layer's output, and on the sum of embeddings and positions (section 5.4)."""
    attention_dropout: Fraction = 0.0
    """On attention weights; the paper has none."""
    activation_dropout: Fraction = 0.0
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


class LengthPenalty(Section):
    """What divides a hypothesis' sum of log-probabilities; n counts `</s>`."""

    form: Literal["none", "average", "power", "gnmt"] = "gnmt"
    """none: 1; average: n; power: n^alpha; gnmt: ((5 + n) / 6)^alpha (Wu et al. 2016, the paper's)."""
    alpha: float = 0.6


class MaxLength(Section):
    """Longest output in pieces, `</s>` not counted: factor x source pieces + extra."""

    factor: Annotated[float, Field(ge=0)] = 1.0
    extra: Natural = 50


class Sampling(Section):
    """Outputs drawn from the model's distribution; those of a line depend on seed and line number alone."""

    temperature: Positive = 1.0
    """What logits are divided by: below 1 likely pieces become likelier."""
    top_k: Count | None = None
    """Draw from the most probable so many pieces only."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """Draw from the fewest pieces that together have this probability only (Holtzman et al. 2020)."""
    seed: Seed = 1


class Decoding(Section):
    """Beam search (section 6.1), or sampling."""

    beam_size: Count = 4
    """1 is greedy search."""
    sampling: Sampling | None = None
    """Draw outputs instead of searching for the best; beam_size is not used then."""
    n_best: Count = 1
    """Hypotheses given for each sentence; at most beam_size, any number of samples."""
    length_penalty: LengthPenalty = LengthPenalty()
    max_length: MaxLength = MaxLength()
    max_source_tokens: Count | None = 1024
    """Most pieces read together; long_lines tells what becomes of a line that has more. null reads any length."""
    long_lines: Literal["split", "cut"] = "split"
    """split: translate the sentences of a line that is too long one by one (and parts of them, where one is too long
    itself); cut: read its beginning alone. Both with a warning that names the line."""
    split_sentences: bool = False
    """Translate the sentences of every line one by one, and put them together with the white space between them."""
    alignment_layer: Count | None = None
    """Decoder layer, from 1, whose attention aligns words; null: the last but one (Garg et al. 2019)."""
    min_length: Natural = 1
    """Fewest pieces of an output for a source that is not empty."""
    no_repeat_ngram: Natural = 0
    """No sequence of so many pieces comes twice in an output; 0 lets any."""
    batch_size: Count = 256
    """Sentences decoded together at most."""
    batch_tokens: Count = 32_000
    """Source pieces x beam_size decoded together at most, padding included."""
    cuda_graphs: bool = False
    """On a GPU of NVIDIA: record the steps of a search and repeat them, which takes one launch each."""
    allow_unknown: bool = False
    """Let the search produce the unknown piece."""
    unknown_marker: str = "⁇"
    """How an unknown piece is written, where it is allowed."""

    @model_validator(mode="after")
    def _n_best_fits(self) -> "Decoding":
        if self.n_best > self.beam_size and self.sampling is None:
            raise ValueError(f"n_best: found {self.n_best}, wanted at most beam_size ({self.beam_size})")
        if self.n_best > 1 and self.split_sentences:
            raise ValueError(f"n_best: found {self.n_best}, wanted 1 with split_sentences")
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
        given = self.tokenizer.model or self.tokenizer.source_model  # then the model's own algorithm counts
        if self.training.subword_sampling and self.tokenizer.algorithm != "bpe" and not given:
            raise ValueError(
                f"training.subword_sampling: found {self.training.subword_sampling:g} with tokenizer.algorithm "
                f"{self.tokenizer.algorithm}, wanted 0, or bpe"
            )
        longest = self.training.max_tokens
        if self.model.positions == "learned" and self.model.max_positions < longest:
            found = self.model.max_positions
            raise ValueError(f"model.max_positions: found {found}, wanted at least training.max_tokens ({longest})")
        return self

"""The configuration of text: languages, sources, cleaning, subwords."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from transformer_mt.config.values import (
    HUB,
    URL,
    WORD,
    Count,
    DataPath,
    DataPaths,
    Language,
    Name,
    Natural,
    Section,
    Seed,
    Text,
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
    weight: Annotated[float, Field(gt=0, le=1e4)] = 1.0
    """Of a training source: how often an epoch has each of its pairs; of 2.5, twice, and half of them, drawn anew in
    each epoch, once more."""
    tag: Text | None = Field(default=None, pattern=WORD)
    """Of a training source: a word put before each source text, such as <bt> for what was translated back; it becomes
    one piece of a learned vocabulary."""


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
    streaming: bool = False
    """Read it from the hub, or from where `datasets` finds it, as it comes, without a copy on disk."""


class UrlSource(_Source):
    """Files that `datasets` can read anywhere, streamed: https://, s3:// and so on, as fsspec's packages allow."""

    url: Annotated[str, Field(pattern=URL)]
    """Of Parquet, JSON lines or comma- or tab-separated files with a heading, told by their suffix, packed or not; a
    pattern such as s3://bucket/part-*.parquet where the storage can list."""
    columns: tuple[Text, Text] | None = None
    """Names of the source and the target column; by default `translation` or the two language codes."""


class TextSource(_Source):
    """Two text files, line N of one translating line N of the other; .gz, .xz, .bz2 and .zst are read as they are.

    Here and below a path may be a pattern such as corpus/*.en, or a list of paths: files are read in the order of the
    list, those of a pattern sorted; source and target files belong together in that order.
    """

    source: DataPaths
    target: DataPaths


class TsvSource(_Source):
    """A file of tab-separated columns, without quoting."""

    tsv: DataPaths
    columns: tuple[Natural, Natural] = (0, 1)
    """Source and target column, counted from 0."""


class JsonlSource(_Source):
    """One JSON object a line; the two texts under the language codes, or inside a `translation` object."""

    jsonl: DataPaths
    columns: tuple[Text, Text] | None = None
    """Keys of the source and target text, when they are not the language codes."""


class ParquetSource(_Source):
    """A Parquet file with a `translation` column or one column a language."""

    parquet: DataPaths
    columns: tuple[Text, Text] | None = None
    """Names of the two columns, when they are not the language codes."""


class TmxSource(_Source):
    """A translation memory (TMX 1.4); languages are matched by their first part, whatever region a file names."""

    tmx: DataPaths


class PoSource(_Source):
    """A gettext catalogue; entries that are fuzzy, plural, obsolete or not translated are left out and counted."""

    po: DataPaths


class SacrebleuSource(_Source):
    """A test set that sacreBLEU knows, such as wmt14/full; it is fetched once and kept where sacreBLEU keeps it."""

    sacrebleu: Text


class DemoSource(_Source):
    """Sentences made by the embedded grammar: a demonstration of the machinery, not of translating news."""

    demo: Literal["english-german"]
    pairs: Count = 1000
    """How many different pairs."""
    seed: Seed = 1


SOURCE_KINDS = ("hub", "source", "tsv", "jsonl", "parquet", "tmx", "po", "sacrebleu", "url", "demo")


def source_kind(value: Any) -> str | None:
    """The key that says what kind of source this is, or None."""
    keys = value if isinstance(value, dict) else {key: True for key in SOURCE_KINDS if hasattr(value, key)}
    return next((kind for kind in SOURCE_KINDS if kind in keys), None)


Source = Annotated[
    Annotated[HubSource, Tag("hub")]
    | Annotated[UrlSource, Tag("url")]
    | Annotated[TextSource, Tag("source")]
    | Annotated[TsvSource, Tag("tsv")]
    | Annotated[JsonlSource, Tag("jsonl")]
    | Annotated[ParquetSource, Tag("parquet")]
    | Annotated[TmxSource, Tag("tmx")]
    | Annotated[PoSource, Tag("po")]
    | Annotated[SacrebleuSource, Tag("sacrebleu")]
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
    remove_identical: bool = False
    """Drop pairs whose sides are the same text."""
    check_script: bool = False
    """Drop pairs with a side that is mostly written in another script than its language is; languages whose script is
    not known pass."""
    remove_test_overlap: bool = True
    """Drop training pairs whose source, or whose target, is one of the validation or test data."""


class Data(Section):
    """Where the text comes from."""

    train: Annotated[tuple[Source, ...], Field(min_length=1)]
    validation: Annotated[tuple[Source, ...], Field(min_length=1)]
    test: tuple[Source, ...] = ()
    on_bad_bytes: Literal["error", "skip_pair"] = "error"
    """What to do with a line that is not valid UTF-8."""
    cleaning: Cleaning = Cleaning()

    @model_validator(mode="after")
    def _only_training_is_mixed(self) -> "Data":
        for split in ("validation", "test"):
            for number, source in enumerate(getattr(self, split)):
                if source.tag or source.weight != 1:
                    key = "tag" if source.tag else "weight"
                    found = source.tag or f"{source.weight:g}"
                    raise ValueError(f"{split}: found {key} {found} in source {number}, which only data.train may have")
        return self


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
    max_line_bytes: Annotated[Count, Field(ge=11, lt=2**30)] = 4192
    """Longer lines are left out of the learning, and counted."""
    symbols: tuple[Annotated[str, Field(pattern=WORD)], ...] = ()
    """Words that are one piece wherever they stand in text, such as <url>; the tags of sources are so in any case."""
    model: DataPath | None = None
    """A SentencePiece model to use instead of learning one (shared: true)."""
    source_model: DataPath | None = None
    """The same for the source side alone (shared: false, or vocabulary)."""
    target_model: DataPath | None = None
    vocabulary: DataPath | None = None
    """The vocabulary.json of an imported model, with its source_model and target_model: which piece has which id.
    shared tells then whether it is one for both languages."""

    @model_validator(mode="after")
    def _models_fit(self) -> "Tokenizer":
        key = "source_model" if self.source_model else "target_model"
        if self.vocabulary and not (self.source_model and self.target_model):
            raise ValueError("vocabulary: found without source_model and target_model, wanted all three")
        if self.vocabulary and self.model:
            raise ValueError("model: found with vocabulary, wanted source_model and target_model alone")
        if self.shared and not self.vocabulary and (self.source_model or self.target_model):
            raise ValueError(f"{key}: found with shared: true, wanted model, or shared: false")
        if not self.shared and self.model:
            raise ValueError("model: found with shared: false, wanted source_model and target_model")
        if (self.source_model is None) != (self.target_model is None):
            raise ValueError("source_model: found one of source_model and target_model, wanted both")
        return self

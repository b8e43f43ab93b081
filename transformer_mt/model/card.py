"""The model card: what a person finds beside the weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from transformer_mt.config import SOURCE_KINDS, Config
from transformer_mt.config.values import digest, without_paths

USE = """\
## Use

```
transformer-mt translate --model . < text > translation
```

```python
from transformer_mt import Translator

print(Translator.load(".").translate(["{example}"])[0].text)
```

For CTranslate2: `transformer-mt export --format ctranslate2 --model . --output FOLDER`; for the library transformers
`--format huggingface` and for onnxruntime `--format onnx`, where these can express this model. Each folder's README.md
has an example."""

LIMITS = """\
## Limits

It knows what its training text had in it, and no other kind of text. It translates each line by itself, and may leave
things out, make things up, or repeat the prejudices of its data. Nothing that matters should go out unread."""

LICENCE = """\
## Licence

Not chosen yet: whoever publishes this model names one here and in the header, with the licences of its data in mind."""


def model_card(
    config: Config, parameters: int, steps: Sequence[int], validation: Mapping[str, Any] | None,
    pairs: int | None = None,
) -> str:  # fmt: skip
    """Markdown with the hub's metadata header: what it is, use, data, training, scores, limits, licence.

    steps: of the checkpoints whose mean it is; validation: the newest one of them; pairs: those trained on.
    """
    source, target = config.languages.source, config.languages.target
    made = (
        f"the mean of the checkpoints at steps {', '.join(map(str, steps))}" if len(steps) > 1 else f"step {steps[0]}"
    )
    facts = {"language": [source, target], "pipeline_tag": "translation", "license": "unknown"}
    header = ["---", yaml.safe_dump(facts, sort_keys=False).strip(), "---"]  # which quotes a language such as no
    first = f"A Transformer that translates {source} to {target}, {parameters / 1e6:.1f} million parameters, {made}."
    sections = [
        "\n".join([*header, "", f"# {config.name}", "", first]),
        USE.replace("{example}", "A line to translate."),
        "\n".join(["## Data", "", *_data(config, pairs)]),
        "\n".join(["## Training", "", *_training(config)]),
        "\n".join([SCORES, "", *_validation(validation)]),
        LIMITS,
        LICENCE,
    ]
    return "\n\n".join(sections) + "\n"


SCORES = "## Scores"


def with_scores(card: str, reports: Sequence[Mapping[str, Any]]) -> str:
    """A card with the scores of test sets, in place of those that it had; its validation stays.

    reports: what scores/*.json of a run hold.
    """
    before, heading, after = card.partition(SCORES + "\n")
    if not heading:
        return card
    section, mark, rest = after.partition("\n## ")
    kept = [line for line in section.strip().split("\n") if not line.startswith("- test ")]
    lines = [
        f"- test {report['test_set']}: {score['name']} {score['value']:.2f}, {score['signature']}"
        for report in reports
        for score in report["scores"]
    ]
    return f"{before}{heading}\n" + "\n".join([*kept, *lines]) + "\n" + mark + rest


def _data(config: Config, pairs: int | None) -> list[str]:
    count = "" if pairs is None else f", {pairs} pairs after cleaning"
    sections = (("training", config.data.train), ("validation", config.data.validation), ("test", config.data.test))
    lines = [
        f"- {name}: {'; '.join(map(_source, sources))}{count if name == 'training' else ''}"
        for name, sources in sections
        if sources
    ]
    text = config.tokenizer
    kind = "given" if text.model or text.source_model else f"{text.algorithm}, {text.vocabulary_size} pieces asked for"
    return [*lines, f"- subwords: SentencePiece, {kind}, {'one model for both languages' if text.shared else 'two'}"]


def _source(source: Any) -> str:
    """What a source is called, without the folders of this machine."""
    values = source.model_dump(mode="json", exclude_none=True)
    paths = [Path(values[key]).name for key in ("source", "target", *SOURCE_KINDS[2:-1]) if key in values]
    if paths:
        return " and ".join(f"`{name}`" for name in paths)
    return ", ".join(f"{key} {value}" for key, value in values.items() if key != "columns")


def _training(config: Config) -> list[str]:
    model, training, rate = config.model, config.training, config.training.learning_rate
    highest = f"peak {rate.peak:g}" if rate.peak is not None else f"factor {rate.factor:g}"
    return [
        f"- encoder layers {model.encoder_layers}, decoder layers {model.decoder_layers}, model size "
        f"{model.model_size}, feed-forward size {model.feedforward_size}, heads {model.heads}, {model.norm}-norm, "
        f"{model.positions} positions, {model.activation}, dropout {model.dropout:g}",
        f"- batches of {training.batch_tokens} tokens, label smoothing {training.label_smoothing:g}, learning rate "
        f"{rate.schedule} with {rate.warmup_steps} warm-up updates and {highest}, seed {training.seed}",
        f"- data, tokenizer, model and training settings: digest {_settings_digest(config)[:16]}",
    ]


def _settings_digest(config: Config) -> str:
    """Digest of what the model was made with, wherever the files lie."""
    plain = config.model_dump(mode="json")
    training = {key: value for key, value in plain["training"].items() if key != "initial_model"}
    text = {key: without_paths(plain[key]) for key in ("data", "tokenizer")}
    return digest({"languages": plain["languages"], **text, "model": plain["model"], "training": training})


def _validation(validation: Mapping[str, Any] | None) -> list[str]:
    if validation is None:
        return ["- not validated"]
    perplexity = "not finite" if validation["ppl"] is None else f"{validation['ppl']:.3f}"
    lines = [f"- validation at step {validation['step']}: perplexity {perplexity} per piece"]
    if "bleu" in validation:
        lines.append(f"- validation BLEU {validation['bleu']:.2f}, {validation['bleu_signature']}")
    return lines

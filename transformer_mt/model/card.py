"""The model card: what a person finds beside the weights."""

from collections.abc import Sequence
from typing import Any

from transformer_mt.config import Config
from transformer_mt.config.values import digest, without_paths


def model_card(config: Config, parameters: int, steps: Sequence[int], validation: dict[str, Any] | None) -> str:
    """Markdown with the hub's metadata header: languages, size, training, scores with signatures, how to use it."""
    source, target = config.languages.source, config.languages.target
    made = (
        f"the mean of the checkpoints at steps {', '.join(map(str, steps))}" if len(steps) > 1 else f"step {steps[0]}"
    )
    lines = [
        "---",
        f"language:\n- {source}\n- {target}",
        "pipeline_tag: translation",
        "---",
        "",
        f"# {config.name}",
        "",
        f"A Transformer that translates {source} to {target}, {parameters / 1e6:.1f} million parameters, {made}.",
        "",
        f"- encoder layers {config.model.encoder_layers}, decoder layers {config.model.decoder_layers}, "
        f"model size {config.model.model_size}, feed-forward size {config.model.feedforward_size}, "
        f"heads {config.model.heads}",
        f"- data, tokenizer, model and training settings: digest {_settings_digest(config)[:16]}",
        *_scores(validation),
        "",
        "```",
        "transformer-mt translate --model . < text > translation",
        "```",
        "",
    ]
    return "\n".join(lines)


def _settings_digest(config: Config) -> str:
    """Digest of what the model was made with, wherever the files lie."""
    plain = config.model_dump(mode="json")
    training = {key: value for key, value in plain["training"].items() if key != "initial_model"}
    text = {key: without_paths(plain[key]) for key in ("data", "tokenizer")}
    return digest({"languages": plain["languages"], **text, "model": plain["model"], "training": training})


def _scores(validation: dict[str, Any] | None) -> list[str]:
    if validation is None:
        return ["- not validated"]
    perplexity = "not finite" if validation["ppl"] is None else f"{validation['ppl']:.3f}"
    lines = [f"- validation at step {validation['step']}: perplexity {perplexity} per piece"]
    if "bleu" in validation:
        lines.append(f"- validation BLEU {validation['bleu']:.2f}, {validation['bleu_signature']}")
    return lines

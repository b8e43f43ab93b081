"""Models as the library transformers reads them: its MarianMTModel's weights and configuration.

Marian's sinusoids are ours in another order, all sines before all cosines, and are computed when a model is loaded.
So the channels of everything that is added to them are brought into that order; heads and inner units stay.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.atomic import new_folder, write_json
from transformer_mt.config import Decoding
from transformer_mt.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from transformer_mt.errors import RunError, UserError
from transformer_mt.export import fast_tokenizer, marian_tokenizer
from transformer_mt.export.marian_folder import BIAS, HEAD, SHARED, SOURCE, TARGET
from transformer_mt.export.marian_model import MarianModel, Renumbered, quiet
from transformer_mt.export.proof import SENTENCES, Proof, probes, prove
from transformer_mt.export.readme import ASKED, USE, write_readme
from transformer_mt.libraries import optional
from transformer_mt.model.folder import WEIGHTS, Loaded, load, save_tensors
from transformer_mt.model.transformer import Attention, DecoderLayer, EncoderLayer, FeedForward, Residual, Transformer

ACTIVATIONS = {F.relu: "relu", F.gelu: "gelu", F.silu: "swish"}
POSITIONS = 4096
"""Rows of the table of sinusoids that transformers is to compute: longer lines fail there."""
LONGEST_OUTPUT = 512
"""Most pieces of an output where generate() is told no other number, since it knows none that follows the source."""
WHERE = "the model that transformers reads"
EXAMPLES = ("The committee met on Tuesday.", "Where is the station?")
HARD_LINES = (
    "", " ", "  two  blanks ", "\ta tab\tand\nlines\r\n", "</s>", "a</s>b <pad> <s> <unk>", "<0x41>", "▁", "▁ a▁b ▁",
    "☃☃ ☃", "👍🏽👩\u200d👧", "中文、日本語。한국어", "cafe\u0301 e\u0301", "a\u200bb\u200d \u200dc", "q\u200d\u0301",
    "\ufeffa\u00a0b\u2028c", "a\x00b\x85c", "½ ² ﬁ Ａ１ ｶﾞ …", "ß İ ẞ ǆ", "x" * 50, "עברית العربية हिन्दी ไทย",
)  # fmt: skip
"""What tokenizers stumble over."""


def export(origin: Path, destination: Path, sentences: Sequence[str] = SENTENCES) -> Proof:
    """Writes the model of a folder for transformers; the new folder appears whole, and checked with `sentences`.

    Raises UserError with all reasons why a model or its tokenizer is none that Marian can be, RunError if what was
    written does not say what the model says.
    """
    optional("transformers", "huggingface")
    loaded = load(origin, torch.device("cpu"))
    reasons = obstacles(loaded.model)
    reasons += [] if loaded.tokenizer.has_vocabulary else fast_tokenizer.obstacles(loaded.tokenizer)
    if reasons:
        raise UserError(*reasons)
    with new_folder(destination, replace=False) as folder:
        save_tensors(marian_state(loaded.model), folder / WEIGHTS)
        write_json(folder / "config.json", marian_config(loaded.model, loaded.start))
        write_json(folder / "generation_config.json", generation_config(loaded.decoding, loaded.start))
        if loaded.tokenizer.has_vocabulary:
            marian_tokenizer.write_tokenizer(loaded.tokenizer, folder, POSITIONS, loaded.languages)
        else:
            fast_tokenizer.write_tokenizer(loaded.tokenizer, folder, POSITIONS, loaded.decoding.unknown_marker)
        write_readme(loaded.origin, folder, _use(loaded))
        return check(folder, loaded, sentences)


# What a model is to transformers


def obstacles(model: Transformer) -> list[str]:
    """Why a model is no Marian model, one sentence for each reason; empty if it is one."""
    first = _encoder(model)[0]
    attention, embeddings = first.self_attention, model.source_embedding
    joined = (attention.heads * attention.key_size, attention.heads * attention.value_size)
    facts = [
        (not first.self_residual.pre_norm, "model.norm: found pre, Marian has post"),
        (embeddings.positions == "sinusoidal", f"model.positions: found {embeddings.positions}, Marian has sinusoidal"),
        (not first.feed_forward.gated, "model.activation: found swiglu, Marian has relu, gelu and swish"),
        (
            joined == (model.model_size, model.model_size),
            f"model.key_size, model.value_size: heads x size are {joined[0]} and {joined[1]}, "
            f"Marian has model_size ({model.model_size}) for both",
        ),
    ]
    return [reason for holds, reason in facts if not holds]


def marian_config(
    model: Transformer, start: int = BOS, pad: int = PAD, eos: int = EOS, bos: int = BOS
) -> dict[str, Any]:
    """What config.json of a MarianMTModel holds; `start` is the id that the decoder's input begins with.

    How to search does not belong there, but into generation_config.json.
    """
    _refuse(model)
    first = _encoder(model)[0]
    sizes: dict[str, int] = {}
    for side, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
        sizes[f"{side}_layers"] = len(layers)
        sizes[f"{side}_attention_heads"] = first.self_attention.heads
        sizes[f"{side}_ffn_dim"] = first.feed_forward.outer.in_features
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "vocab_size": len(model.source_embedding.tokens.weight),
        "decoder_vocab_size": len(model.output.weight),
        "d_model": model.model_size,
        **sizes,
        "activation_function": ACTIVATIONS[cast(Any, first.feed_forward.activation)],
        "scale_embedding": True,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": pad,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "decoder_start_token_id": start,
        "forced_eos_token_id": None,  # left out it would be 0, our padding
        "share_encoder_decoder_embeddings": model.source_embedding.tokens is model.target_embedding.tokens,
        "tie_word_embeddings": model.target_embedding.tokens is model.output,
        "is_encoder_decoder": True,
    }


def generation_config(settings: Decoding, start: int, pad: int = PAD, eos: int = EOS, bos: int = BOS) -> dict[str, Any]:
    """What generation_config.json holds: our search in transformers' terms, as near as they come."""
    drawn = settings.sampling
    how: dict[str, Any] = {
        "num_beams": settings.beam_size,
        "early_stopping": "never",  # as ours, it goes on while a better output may come
        "length_penalty": _power(settings),
    }
    if drawn is not None:
        how = {"do_sample": True, "temperature": drawn.temperature, "top_k": drawn.top_k or 0}
        how["top_p"] = 1.0 if drawn.top_p is None else drawn.top_p
    return {
        "decoder_start_token_id": start,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
        "suppress_tokens": _never(settings),
        "max_length": LONGEST_OUTPUT,
        "min_length": settings.min_length and settings.min_length + 1,  # the start symbol counts there
        "no_repeat_ngram_size": settings.no_repeat_ngram,
        **how,
    }


def _never(settings: Decoding) -> list[int]:
    """Ids that no output has."""
    return [PAD, BOS] if settings.allow_unknown else [PAD, UNK, BOS]


def _power(settings: Decoding) -> float:
    """That of transformers' own length penalty, n^power: the one that is nearest to ours."""
    penalty = settings.length_penalty
    return {"none": 0.0, "average": 1.0}.get(penalty.form, penalty.alpha)


def marian_state(model: Transformer) -> dict[str, Tensor]:
    """The weights by a MarianMTModel's names, on the CPU; tied ones stand there once, sinusoids not at all."""
    _refuse(model)
    order = torch.cat([torch.arange(0, model.model_size, 2), torch.arange(1, model.model_size, 2)])
    source, target, output = model.source_embedding.tokens, model.target_embedding.tokens, model.output
    bias = output.weight.new_zeros(len(output.weight)) if model.output_bias is None else model.output_bias
    tables = {SHARED: source} if source is target else {SOURCE: source, TARGET: target}
    tables |= {} if target is output else {HEAD: output}
    state = {BIAS: bias[None]} | {name: table.weight[:, order] for name, table in tables.items()}
    for number, encoder in enumerate(_encoder(model)):
        name = f"model.encoder.layers.{number}."
        state |= _attention(name + "self_attn", encoder.self_attention, encoder.self_residual, order)
        state |= _feed_forward(name, encoder.feed_forward, encoder.feed_forward_residual, order)
    for number, decoder in enumerate(cast("list[DecoderLayer]", list(model.decoder))):
        name = f"model.decoder.layers.{number}."
        state |= _attention(name + "self_attn", decoder.self_attention, decoder.self_residual, order)
        state |= _attention(name + "encoder_attn", decoder.cross_attention, decoder.cross_residual, order)
        state |= _feed_forward(name, decoder.feed_forward, decoder.feed_forward_residual, order)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def _refuse(model: Transformer) -> None:
    if reasons := obstacles(model):
        raise UserError(*reasons)


def _encoder(model: Transformer) -> list[EncoderLayer]:
    return cast("list[EncoderLayer]", list(model.encoder))


def _attention(name: str, ours: Attention, residual: Residual, order: Tensor) -> dict[str, Tensor]:
    """The four projections, which always have biases there, and the LayerNorm behind them."""
    weights = [part[:, order] for part in ours.projection.weight.chunk(3)] + [ours.output.weight[order]]
    if ours.projection.bias is None:
        biases = [weight.new_zeros(len(weight)) for weight in weights]
    else:
        biases = [*ours.projection.bias.chunk(3), ours.output.bias[order]]
    state = _norm(f"{name}_layer_norm", residual.norm, order)
    for letter, weight, bias in zip(("q_proj", "k_proj", "v_proj", "out_proj"), weights, biases, strict=True):
        state |= {f"{name}.{letter}.weight": weight, f"{name}.{letter}.bias": bias}
    return state


def _feed_forward(name: str, ours: FeedForward, residual: Residual, order: Tensor) -> dict[str, Tensor]:
    return {
        f"{name}fc1.weight": ours.inner.weight[:, order],
        f"{name}fc1.bias": ours.inner.bias,
        f"{name}fc2.weight": ours.outer.weight[order],
        f"{name}fc2.bias": ours.outer.bias[order],
        **_norm(f"{name}final_layer_norm", residual.norm, order),
    }


def _norm(name: str, ours: nn.LayerNorm, order: Tensor) -> dict[str, Tensor]:
    return {f"{name}.weight": ours.weight[order], f"{name}.bias": ours.bias[order]}


# What a person reads


def _use(loaded: Loaded) -> str:
    """The part of the README that tells how to use the folder with transformers, and what is different there."""
    settings = loaded.decoding
    limit, penalty, languages = settings.max_length, settings.length_penalty, loaded.tokenizer.languages()
    examples = [f"{language} {text}".strip() for language in languages[:1] or [""] for text in EXAMPLES]
    ours = {"none": "1", "average": "n", "power": f"n^{penalty.alpha:g}", "gnmt": f"((5 + n) / 6)^{penalty.alpha:g}"}
    theirs = f"n^{_power(settings):g}"
    same = "as transformer-mt does" if penalty.form != "gnmt" else f"transformer-mt by {ours['gnmt']}"
    notes = [
        f"A line may have {POSITIONS - 1} pieces, and so may an output.",
        f"transformer-mt ends an output after {limit.factor:g} x source pieces + {limit.extra} pieces; `generate` "
        f"knows no such limit, so give it for each batch as above, else it is {LONGEST_OUTPUT}.",
        f"`generate` divides the log-probability of n pieces by {theirs}, {same}"
        + (": outputs of different lengths may rank differently." if penalty.form == "gnmt" else "."),
        "Its beam search drops a sentence end that is not among the num_beams best continuations, ours does not.",
        "Lines that are too long are not split into sentences.",
        *([ASKED.replace("{example}", languages[0])] if languages else []),
        *([marian_tokenizer.LIMITS] if loaded.tokenizer.has_vocabulary else fast_tokenizer.limits(loaded.tokenizer)),
    ]
    code = f"""from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

folder = "."  # where this README is
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSeq2SeqLM.from_pretrained(folder)

batch = tokenizer({json.dumps(examples)}, padding=True, return_tensors="pt")
limit = int({limit.factor:g} * (batch["input_ids"].shape[1] - 1)) + {limit.extra + 2}
for line in tokenizer.batch_decode(model.generate(**batch, max_length=limit), skip_special_tokens=True):
    print(line)"""
    listed = "\n".join(f"- {note}" for note in notes)
    return f"{USE}\n\nWith the library transformers, from this folder:\n\n```python\n{code}\n```\n\n{listed}\n"


# Whether it says what the model says


def check(folder: Path, loaded: Loaded, sentences: Sequence[str]) -> Proof:
    """Loads a folder with transformers and compares it with the model: tokenizer, logits, greedy outputs.

    Raises RunError if anything differs.
    """
    transformers, tokenizer = optional("transformers", "huggingface"), loaded.tokenizer
    ids = [
        Renumbered(pieces, torch.arange(len(pieces)))
        for pieces in (tokenizer.source_pieces(), tokenizer.target_pieces())
    ]
    with quiet(transformers):
        model, found = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            folder, output_loading_info=True, dtype=torch.float32, local_files_only=True
        )
        theirs = marian_tokenizer.load_tokenizer(folder)
        problems = [f"{kind.replace('_', ' ')}: {', '.join(map(str, names))}" for kind, names in found.items() if names]
        sizes = len(theirs), model.config.vocab_size, len(ids[0].pieces)
        if len(set(sizes)) > 1:
            problems.append("pieces of tokenizer, config.json and model: {}, {} and {}".format(*sizes))
        if tokenizer.has_vocabulary:
            marian_tokenizer.compare(theirs, tokenizer, (list, list), sentences, WHERE)
        else:
            problems += _other_text(theirs, tokenizer, [*sentences, *HARD_LINES], loaded.decoding.unknown_marker)
        if problems:
            raise RunError(*(f"{WHERE}: {problem}; nothing was kept of it" for problem in problems))
        marian = MarianModel(model, loaded.start, *ids)
        sources = probes(tokenizer, sentences)
        return prove(loaded.model, loaded.start, marian, sources, _never(loaded.decoding), POSITIONS, WHERE)


def _other_text(theirs: Any, ours: Tokenizer, lines: Sequence[str], unknown_marker: str) -> list[str]:
    """What is wrong if a line is cut or written another way."""
    for line, wanted in zip(lines, ours.encode_source(lines), strict=True):
        ids = theirs(line)["input_ids"]
        if ids[-1:] != [EOS] or not fast_tokenizer.equally_good(ours, wanted, ids[:-1]):
            return [f"tokenizer.json cuts {line!r} into {ids}, wanted {[*wanted, EOS]}"]
        text = ours.decode(wanted, unknown_marker)
        if (written := theirs.decode(ids, skip_special_tokens=True)) != text:
            return [f"tokenizer.json writes {written!r}, wanted {text!r}"]
    return []

"""Models as CTranslate2 reads them: converted, checked against ours, and kept for the next time."""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from transformer_mt.atomic import new_folder, sha256, write_json
from transformer_mt.config import Decoding
from transformer_mt.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from transformer_mt.decode.ctranslate2 import RECORD
from transformer_mt.decode.translator import Translator
from transformer_mt.errors import RunError, UserError
from transformer_mt.export.proof import LONGEST_OUTPUT, SENTENCES, TOLERANCE, apart, probe_targets, probes
from transformer_mt.export.readme import write_readme
from transformer_mt.libraries import optional
from transformer_mt.model.folder import WEIGHTS, Loaded, load
from transformer_mt.model.transformer import (
    Attention,
    DecoderLayer,
    Embedding,
    EncoderLayer,
    FeedForward,
    Residual,
    Transformer,
    sinusoidal_positions,
)  # fmt: skip

VERSION = 1
"""Of this conversion: what an older one made is made again."""
SINUSOIDS = 4096
"""Rows of the table of sinusoids that is written: CTranslate2 knows no position beyond it."""
ACTIVATIONS = {F.relu: "RELU", F.gelu: "GELU", F.silu: "SWISH"}


PRECISIONS = (
    "float32", "bfloat16", "float16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16",
)  # fmt: skip
"""What weights are written in."""


def export(
    origin: Path, destination: Path, precision: str = "float32", sentences: Sequence[str] = SENTENCES
) -> dict[str, Any]:
    """Writes a folder for those who use CTranslate2 without us: model, SentencePiece files, README.md.

    It is checked in float32, then written in the precision that is wanted. Returns what was compared.
    """
    loaded = load(origin, torch.device("cpu"))
    with new_folder(destination, replace=False) as folder:
        checked = _write(folder, loaded, precision, sentences)
        for file in loaded.tokenizer.files:
            shutil.copyfile(file, folder / file.name)
        write_readme(loaded.origin, folder, _use(loaded, precision))
    return checked


def convert(origin: Path, destination: Path) -> None:
    """Writes the model of a folder for CTranslate2, in float32; the new folder appears whole, and checked."""
    loaded = load(origin, torch.device("cpu"))
    with new_folder(destination) as folder:
        _write(folder, loaded, "float32", SENTENCES)


def _write(folder: Path, loaded: Loaded, precision: str, sentences: Sequence[str]) -> dict[str, Any]:
    model, tokenizer, start = loaded.model, loaded.tokenizer, loaded.start
    _save(specification(model, tokenizer, start), folder, "float32")
    checked = check(folder, model, tokenizer, start, sentences)
    if precision != "float32":
        _save(specification(model, tokenizer, start), folder, precision)
    facts = {
        "version": VERSION,
        "ctranslate2": optional("ctranslate2", "ctranslate2").__version__,
        "positions": _positions(model),
    }
    write_json(folder / RECORD, {**facts, "precision": precision, "checked": checked})
    return checked


def _save(spec: Any, folder: Path, precision: str) -> None:
    spec.validate()  # optimize: tensors that are equal, such as tied ones, are written once
    spec.optimize(quantization=None if precision == "float32" else precision)
    spec.save(str(folder))


def _use(loaded: Loaded, precision: str) -> str:
    """How a program of a few lines translates with the folder."""
    names = [file.name for file in loaded.tokenizer.files if file.suffix == ".model"]
    positions = _positions(loaded.model)
    limit = "" if positions is None else f" Lines of at most {positions - 1} pieces, and outputs of as many."
    settings = loaded.decoding
    penalty = {"none": 0.0, "average": 1.0}.get(settings.length_penalty.form, settings.length_penalty.alpha)
    languages = loaded.tokenizer.languages()
    decoded = "target.decode(result.hypotheses[0])"
    if loaded.tokenizer.has_vocabulary:  # it may have pieces that the SentencePiece model has not
        decoded += '.replace("\\u2581", " ").strip()'
    encode = MANY_LANGUAGES.replace("{example}", languages[0]) if languages else ONE_LANGUAGE
    return f"""\
## Use

With CTranslate2, from {loaded.languages.source} to {loaded.languages.target}; weights in {precision}.
`pip install ctranslate2 sentencepiece`, then, in this folder:

```python
import unicodedata

import ctranslate2
import sentencepiece

engine = ctranslate2.Translator(".", device="cpu")
source = sentencepiece.SentencePieceProcessor(model_file="{names[0]}")
target = sentencepiece.SentencePieceProcessor(model_file="{names[-1]}")
lines = [" ".join(unicodedata.normalize("NFC", line).split()) for line in ["A line to translate.", "And another one."]]
{encode}
found = engine.translate_batch(
    rows, beam_size={settings.beam_size}, length_penalty={penalty:g}, max_input_length=0,
    max_decoding_length=256, disable_unk={not settings.allow_unknown}, suppress_sequences=[["<pad>"], ["<s>"]],
)
print("\\n".join({decoded} for result in found))
```

`</s>` is added to the source, and `{loaded.tokenizer.target_pieces()[loaded.start]}` is what outputs begin with: the
folder says so, and the program need not.{limit} CTranslate2's search is another one than ours: it divides a sum of
log-probabilities by length^length_penalty, where ours has {_penalty(settings)}; its probabilities are those among the
pieces that are allowed; a sentence is done when beam_size hypotheses are. So outputs are alike, not always equal."""


ONE_LANGUAGE = "rows = source.encode(lines, out_type=str)"
MANY_LANGUAGES = """\
language = "{example}"  # the language that is wanted, a piece by itself
rows = [[language, *pieces] for pieces in source.encode(lines, out_type=str)]"""


def _penalty(settings: Decoding) -> str:
    alpha = f"{settings.length_penalty.alpha:g}"
    forms = {"none": "1", "average": "length", "power": f"length^{alpha}", "gnmt": f"((5 + length) / 6)^{alpha}"}
    return forms[settings.length_penalty.form]


def cached(origin: Path, translator: Translator, say: Callable[[str], None]) -> Path:
    """The folder of a model folder's conversion, which is made once and kept beside the model.

    Where that folder cannot be written, it is kept in the user's cache. Other weights, another tokenizer or another
    version of CTranslate2 mean another conversion, which replaces the one before.
    """
    key = _key(origin, translator)
    homes = [origin / "ctranslate2", _users_cache() / hashlib.sha256(bytes(origin.resolve())).hexdigest()[:16]]
    for home in homes:
        if (home / key / RECORD).is_file():
            return home / key
    for home in homes:
        try:
            home.mkdir(parents=True, exist_ok=True)
            lock = (home / ".lock").open("a")
        except OSError:  # not for us to write
            continue
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be at it: then its result is ours
            if not (home / key / RECORD).is_file():
                _make(home / key, origin, say)
        return home / key
    raise UserError(f"no place for the converted model: neither {homes[0]} nor {homes[1]} can be written")


def _users_cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "transformer-mt" / "ctranslate2"


def _key(origin: Path, translator: Translator) -> str:
    """Digest of all that a conversion depends on: files, versions, and what names and shapes of weights do not tell."""
    model = translator.models[0]
    attention, inner = _encoder(model)[0].self_attention, _encoder(model)[0].feed_forward
    files = [sha256(path) for path in (origin / WEIGHTS, *translator.tokenizer.files)]
    form = [model.positions, attention.heads, attention.key_size, _activation(inner), translator.start]
    text = json.dumps([VERSION, optional("ctranslate2", "ctranslate2").__version__, files, form])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _make(folder: Path, origin: Path, say: Callable[[str], None]) -> None:
    """Converts, then removes the conversions of other weights."""
    say(f"converting the model for CTranslate2, once: {folder}")
    begin = time.monotonic()
    convert(origin, folder)
    say(f"converted and checked in {time.monotonic() - begin:.1f} s")
    for other in folder.parent.iterdir():
        if other.is_dir() and other != folder:
            shutil.rmtree(other, ignore_errors=True)


def _positions(model: Transformer) -> int | None:
    """Positions that the converted model has; None: any number."""
    return {"sinusoidal": SINUSOIDS, "learned": model.max_positions}.get(model.positions)


# What a model is to CTranslate2


def specification(model: Transformer, tokenizer: Tokenizer, start: int) -> Any:
    """A `ctranslate2.specs.TransformerSpec` with the weights of a model, in float32."""
    specs = optional("ctranslate2.specs", "ctranslate2")
    first = _encoder(model)[0]
    attention, inner = first.self_attention, first.feed_forward
    keys: dict[str, Any] = {
        "num_heads": attention.heads,
        "head_dim": _head_size(attention),
        "pre_norm": first.self_residual.pre_norm,
        "activation": specs.Activation[_activation(inner)],
        "ffn_glu": inner.gated,
    }
    if attention.rotary:
        keys |= {"rotary_dim": attention.key_size, "rotary_interleave": True}
    result = specs.TransformerSpec(
        specs.TransformerEncoderSpec(len(model.encoder), **keys),
        specs.TransformerDecoderSpec(len(model.decoder), **keys),
    )
    _fill_encoder(result.encoder, model)
    _fill_decoder(result.decoder, model)
    result.register_source_vocabulary(tokenizer.source_pieces())
    result.register_target_vocabulary(tokenizer.target_pieces())
    result.config.decoder_start_token = tokenizer.target_pieces()[start]
    result.config.add_source_eos = True
    result.config.layer_norm_epsilon = first.self_residual.norm.eps
    return result


def _activation(inner: FeedForward) -> str:
    return ACTIVATIONS[cast(Any, inner.activation)]


def _encoder(model: Transformer) -> list[EncoderLayer]:
    return cast("list[EncoderLayer]", list(model.encoder))


def _decoder(model: Transformer) -> list[DecoderLayer]:
    return cast("list[DecoderLayer]", list(model.decoder))


def _fill_encoder(spec: Any, model: Transformer) -> None:
    _fill_embedding(spec, spec.embeddings[0], model.source_embedding)
    for layer, ours in zip(spec.layer, _encoder(model), strict=True):
        _fill_attention(layer.self_attention, ours.self_attention, ours.self_residual)
        _fill_feed_forward(layer.ffn, ours.feed_forward, ours.feed_forward_residual)
    _fill_last_norm(spec, model.encoder_norm)


def _fill_decoder(spec: Any, model: Transformer) -> None:
    _fill_embedding(spec, spec.embeddings, model.target_embedding)
    for layer, ours in zip(spec.layer, _decoder(model), strict=True):
        _fill_attention(layer.self_attention, ours.self_attention, ours.self_residual)
        _fill_attention(layer.attention, ours.cross_attention, ours.cross_residual)
        _fill_feed_forward(layer.ffn, ours.feed_forward, ours.feed_forward_residual)
    _fill_last_norm(spec, model.decoder_norm)
    _fill_linear(spec.projection, model.output.weight, model.output_bias)


def _fill_embedding(spec: Any, tokens: Any, ours: Embedding) -> None:
    tokens.weight = _array(ours.tokens.weight)
    if ours.positions == "sinusoidal":
        spec.position_encodings.encodings = _array(sinusoidal_positions(SINUSOIDS, ours.size))
    elif ours.positions == "learned":
        spec.position_encodings.encodings = _array(ours.learned)


def _head_size(attention: Attention) -> int:
    """CTranslate2 has one size for keys and values: the larger one, and zeros are added to the smaller one."""
    return max(attention.key_size, attention.value_size)


def _fill_attention(spec: Any, ours: Attention, residual: Residual) -> None:
    """q, k and v are one matrix in self-attention; in cross-attention q is one, k and v are another."""
    rows = ours.heads * _head_size(ours)
    ends = [rows, 3 * rows] if len(spec.linear) == 3 else [3 * rows]
    weights = _equal_heads(ours.projection.weight, ours).tensor_split(ends)
    biases = None if ours.projection.bias is None else _equal_heads(ours.projection.bias, ours).tensor_split(ends)
    for number in range(len(ends)):
        _fill_linear(spec.linear[number], weights[number], None if biases is None else biases[number])
    _fill_linear(spec.linear[-1], _padded(ours.output.weight.T, ours).T, ours.output.bias)
    _fill_norm(spec.layer_norm, residual.norm)
    if _head_size(ours) != ours.key_size:
        spec.queries_scale = np.float32(ours.key_size**-0.5)


def _equal_heads(projection: Tensor, ours: Attention) -> Tensor:
    """Rows of q, k and v, of unequal sizes of head, with rows of zeros so that the sizes are equal."""
    rows = ours.heads * ours.key_size
    return torch.cat([_padded(part, ours) for part in projection.tensor_split([rows, 2 * rows])])


def _padded(rows: Tensor, ours: Attention) -> Tensor:
    heads = rows.reshape(ours.heads, -1, *rows.shape[1:])
    room = _head_size(ours) - heads.shape[1]
    return F.pad(heads, [0, 0] * (heads.dim() - 2) + [0, room]).flatten(0, 1)


def _fill_feed_forward(spec: Any, ours: FeedForward, residual: Residual) -> None:
    weights = ours.inner.weight.chunk(2 if ours.gated else 1)
    biases = ours.inner.bias.chunk(len(weights))
    _fill_linear(spec.linear_0, weights[0], biases[0])
    if ours.gated:
        _fill_linear(spec.linear_0_noact, weights[1], biases[1])
    _fill_linear(spec.linear_1, ours.outer.weight, ours.outer.bias)
    _fill_norm(spec.layer_norm, residual.norm)


def _fill_last_norm(spec: Any, ours: nn.Module) -> None:
    if isinstance(ours, nn.LayerNorm):
        _fill_norm(spec.layer_norm, ours)


def _fill_linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _array(weight)
    if bias is not None:
        spec.bias = _array(bias)


def _fill_norm(spec: Any, ours: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(ours.weight), _array(ours.bias)


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return tensor.detach().to("cpu", torch.float32).numpy()


# Whether it says what the model says

TOGETHER = 4
"""Lines in a batch, of unequal lengths, that CTranslate2 scores."""
SCORES_TOLERANCE = 1e-3
"""Largest difference of one piece's log-probability, in nats."""
NEVER = -1e30
"""Logits below it are of pieces that may not come."""


def check(
    folder: Path, model: Transformer, tokenizer: Tokenizer, start: int, sentences: Sequence[str] = SENTENCES
) -> dict[str, Any]:
    """Compares a conversion with the model, in float32 on the CPU: greedy outputs, piece by piece, logits and scores.

    A greedy output is right if each of its pieces is the likeliest one, for the model, after those before it. Returns
    what was compared; raises RunError if anything differs.
    """
    engine = optional("ctranslate2", "ctranslate2").Translator(
        str(folder), "cpu", compute_type="float32", intra_threads=torch.get_num_threads()
    )
    room = (_positions(model) or 1 << 30) - 1
    sources = probes(tokenizer, sentences, room)
    outputs, told = _greedy(engine, tokenizer, sources, min(LONGEST_OUTPUT, room))
    rows = [*zip(sources, probe_targets(tokenizer, sentences, room), strict=True), *zip(sources, outputs, strict=True)]
    expected, pieces, largest, wrong = [], [], 0.0, 0
    for number, (source, target) in enumerate(rows):
        logits = _logits(model, start, source, target)
        scores = logits.log_softmax(-1)
        expected.append(scores.gather(1, torch.tensor([*target, EOS])[:, None])[:, 0])
        if number >= len(sources) and source:  # of an empty line no model is asked
            gaps = _gaps(scores, target, min(LONGEST_OUTPUT, room))
            theirs = told[number - len(sources)]
            may = theirs > NEVER
            difference, allowed = (
                apart(theirs[may], logits[: len(theirs)][may]) if bool(may.any()) else (torch.nan, 0.0)
            )
            largest = difference if not difference <= largest else largest  # what is no number stays
            wrong += not (difference <= allowed and bool((gaps <= allowed).all()))
            pieces.append(gaps)
    wrong += sum(bool(output) for source, output in zip(sources, outputs, strict=True) if not source)
    difference = float((torch.cat(expected) - _scores(engine, tokenizer, rows)).abs().max())
    if wrong or not difference <= SCORES_TOLERANCE:
        raise RunError(
            f"the model that CTranslate2 reads is not this one: {wrong} of {len(outputs)} greedy outputs or their "
            f"logits differ (by {largest:.2g}; {TOLERANCE:g} of the largest one is right), log-probabilities by "
            f"{difference:.2g} (at most {SCORES_TOLERANCE:g} is right); nothing was kept of it"
        )
    ties = int((torch.cat(pieces) > 0).sum())
    return {
        "greedy_outputs": len(pieces), "greedy_pieces": sum(map(len, pieces)), "greedy_ties": ties,
        "largest_difference_of_logits": largest,
        "scored_outputs": len(rows), "scored_pieces": sum(map(len, expected)), "largest_difference": difference,
    }  # fmt: skip


def _greedy(
    engine: Any, tokenizer: Tokenizer, sources: Sequence[list[int]], limit: int
) -> tuple[list[list[int]], list[Tensor]]:
    """Greedy outputs and, for each of their steps, the logits, (steps, V): those of forbidden pieces are very low."""
    pieces = tokenizer.target_pieces()
    ids = {piece: number for number, piece in enumerate(pieces)}
    found = engine.translate_batch(
        _named(sources, tokenizer.source_pieces()), beam_size=1, max_input_length=0, max_decoding_length=limit,
        disable_unk=True, suppress_sequences=[[pieces[token]] for token in (PAD, BOS)], return_logits_vocab=True,
    )  # fmt: skip
    logits = [np.array([np.array(step) for step in (output.logits or [[]])[0]], np.float32) for output in found]
    return [[ids[piece] for piece in output.hypotheses[0]] for output in found], list(map(torch.from_numpy, logits))


def _scores(engine: Any, tokenizer: Tokenizer, rows: Sequence[tuple[list[int], list[int]]]) -> Tensor:
    """Log-probabilities of all targets' pieces and `</s>`, one after the other."""
    sources, targets = zip(*rows, strict=True)
    named = _named(sources, tokenizer.source_pieces()), _named(targets, tokenizer.target_pieces())
    found = engine.score_batch(*named, max_input_length=0, max_batch_size=TOGETHER)
    return torch.tensor([one for row in found for one in row.log_probs])


def _named(rows: Sequence[list[int]], pieces: list[str]) -> list[list[str]]:
    return [[pieces[token] for token in row] for row in rows]


@torch.no_grad()
def _logits(model: Transformer, start: int, source: list[int], target: list[int]) -> Tensor:
    """What may come after `start` and after each piece of a target, for our model: (T + 1, V)."""
    hidden = model(torch.tensor([[*source, EOS]]), torch.tensor([[start, *target]]))
    return model.logits(hidden[0])


def _gaps(scores: Tensor, output: list[int], limit: int) -> Tensor:
    """How much likelier than each piece of a greedy output the likeliest allowed one is, for our model: (T,)."""
    labels = torch.tensor([*output, EOS][:limit])  # at the limit it just stops
    allowed = scores[: len(labels)].clone()
    allowed[:, [PAD, UNK, BOS]] = -torch.inf
    allowed[0, EOS] = -torch.inf
    return allowed.max(1).values - allowed.gather(1, labels[:, None])[:, 0]

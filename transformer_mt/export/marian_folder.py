"""What a folder of a Marian model holds, as the library transformers writes it; all that makes it none is told at once.

Letters in shapes: V vocabulary, D model size, F feed-forward size.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_mt.data.tokenizer import BOS, EOS, PAD, SPECIAL_PIECES, UNK, read_processor
from transformer_mt.errors import UserError
from transformer_mt.model.folder import WEIGHTS, read_tensors
from transformer_mt.model.transformer import sinusoidal_positions

PICKLED = "pytorch_model.bin"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
DEFAULTS: dict[str, Any] = {
    "encoder_layers": 12, "decoder_layers": 12, "encoder_attention_heads": 16, "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096, "d_model": 1024, "max_position_embeddings": 1024,
    "vocab_size": 58101, "activation_function": "gelu", "scale_embedding": False, "eos_token_id": 0,
    "pad_token_id": 58100, "decoder_start_token_id": 58100, "tie_word_embeddings": True,
    "share_encoder_decoder_embeddings": True, "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0,
}  # fmt: skip
"""What a key of config.json means where it is left out."""
WANTED: dict[str, tuple[Any, ...]] = {
    "model_type": ("marian",),
    "normalize_before": (False,),
    "add_final_layer_norm": (False,),
    "normalize_embedding": (False,),
    "static_position_embeddings": (True,),
    "scale_embedding": (True,),
    "activation_function": tuple(ACTIVATIONS),
}
"""Values that our model has a counterpart of; some of the keys are of older versions of the library alone."""
SIZES = (
    "vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads",
    "encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings",
)  # fmt: skip
SHARED, SOURCE, TARGET, HEAD = (
    "model.shared.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight",
)  # fmt: skip
BIAS = "final_logits_bias"
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
"""Tables of sinusoids, which older folders hold, and in half precision."""
HALF = 1e-3
"""How far such a number may be from what it stands for."""
SHOWN = 10
"""Names of tensors that are told at the most."""


@dataclass(frozen=True)
class MarianFolder:
    """A Marian model of a form that ours has."""

    path: Path
    config: Mapping[str, Any]
    """With what is left out filled in."""
    generation: Mapping[str, Any]
    """generation_config.json."""
    tokenizer: Mapping[str, Any]
    """tokenizer_config.json."""
    vocabularies: tuple[list[str], ...]
    """Pieces by their ids: of both languages, or of source and target."""
    tensors: Mapping[str, Tensor]
    """float32, by their names."""

    @property
    def tying(self) -> str:
        """What model.tie_embeddings is here."""
        return _tying(self.config)

    def table(self, *names: str) -> Tensor:
        """The first tensor there is of these: (V, D)."""
        return next(self.tensors[name] for name in names if name in self.tensors)


def read_marian(path: Path) -> MarianFolder:
    """Reads a folder; raises UserError with every reason why it cannot be a model of ours."""
    if not path.is_dir():
        raise UserError(f"Marian folder {path} not found")
    problems: list[str] = []
    given = _read_json(path / "config.json", problems, needed=True)
    config = DEFAULTS | (given or {})
    generation, tokenizer = (
        _read_json(path / name, problems) or {} for name in ("generation_config.json", "tokenizer_config.json")
    )
    of_config = [f"{path / 'config.json'}: {reason}" for reason in _refusals(config)] if given is not None else []
    for name in ("source.spm", "target.spm"):
        try:
            read_processor(path / name)
        except UserError as failure:
            problems += failure.messages
    vocabularies = _vocabularies(path, config, tokenizer, problems)
    tensors = _tensors(path, problems)
    problems = of_config + problems
    sound = given is not None and not of_config
    if vocabularies and sound:
        problems += [f"{path / 'config.json'}: {reason}" for reason in _strange_ids(config, vocabularies)]
    if tensors and sound:
        problems += [f"{path}: {reason}" for reason in _misfits(config, tensors)]
    if problems:
        raise UserError(*problems)
    return MarianFolder(path, config, generation, tokenizer, vocabularies, tensors)


def _read_json(path: Path, problems: list[str], *, needed: bool = False) -> dict[str, Any] | None:
    """The object that a JSON file holds; None where there is none, which is a problem if it is needed."""
    if not path.is_file():
        problems += [f"{path} not found"] if needed else []
        return None
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        problems.append(f"{path} is no JSON file: {error}")
        return None
    if isinstance(content, dict):
        return content
    problems.append(f"{path} holds no JSON object")
    return None


def _refusals(config: Mapping[str, Any]) -> Iterator[str]:
    """Keys whose values ask for another model than ours can be."""
    for key, wanted in WANTED.items():
        found = config.get(key, wanted[0] if key != "model_type" else None)
        if found not in wanted:
            yield f"{key}: found {json.dumps(found)}, wanted {' or '.join(map(json.dumps, wanted))}"
    wrong = [key for key in SIZES if type(config[key]) is not int or config[key] < 1]
    yield from (f"{key}: found {json.dumps(config[key])}, wanted a whole number from 1" for key in wrong)
    for key in ("attention_heads", "ffn_dim"):
        encoder, decoder = config[f"encoder_{key}"], config[f"decoder_{key}"]
        if encoder != decoder:
            yield f"encoder_{key}, decoder_{key}: found {encoder} and {decoder}, wanted equal ones"
    if not wrong and config["d_model"] % config["encoder_attention_heads"]:
        found = f"found {config['encoder_attention_heads']}"
        yield f"encoder_attention_heads: {found}, wanted a divisor of d_model ({config['d_model']})"
    if not wrong and config["d_model"] % 2:
        yield f"d_model: found {config['d_model']}, wanted an even number"


def _tying(config: Mapping[str, Any]) -> str:
    if not config["tie_word_embeddings"]:
        return "none"
    return "all" if config["share_encoder_decoder_embeddings"] else "decoder"


def _target_size(config: Mapping[str, Any]) -> int:
    size: int = config["vocab_size"]
    return size if config["share_encoder_decoder_embeddings"] else config.get("decoder_vocab_size") or size


# Vocabularies


def _vocabularies(
    path: Path, config: Mapping[str, Any], tokenizer: Mapping[str, Any], problems: list[str]
) -> tuple[list[str], ...]:
    """The pieces by id, one list where they are those of both languages; none at all where something is wrong."""
    target = path / "target_vocab.json"
    apart = tokenizer.get("separate_vocabs", target.is_file())
    names = ["vocab.json", target.name] if apart else ["vocab.json"]
    found = [_vocabulary(path / name, problems) for name in names]
    vocabularies = tuple(pieces for pieces in found if pieces is not None)
    if len(vocabularies) == 2 and vocabularies[0] == vocabularies[1]:
        return vocabularies[:1]
    if len(vocabularies) == 2 and config["share_encoder_decoder_embeddings"]:
        problems.append(
            f"{path / 'config.json'}: share_encoder_decoder_embeddings: found true with two vocabularies, wanted false"
        )
    return vocabularies if len(vocabularies) == len(names) else ()


def _vocabulary(path: Path, problems: list[str]) -> list[str] | None:
    """The pieces by id that a vocabulary holds."""
    if not path.is_file():
        problems.append(f"{path} not found")
        return None
    try:
        pairs = json.loads(path.read_text("utf-8"), object_pairs_hook=list)  # an object would hide what is there twice
    except ValueError as error:
        problems.append(f"{path} is no JSON file: {error}")
        return None
    whole = isinstance(pairs, list) and all(isinstance(pair, tuple) and type(pair[1]) is int for pair in pairs)
    if not whole:
        problems.append(f"{path}: wanted one object of pieces with their ids")
        return None
    before = len(problems)
    names, ids = Counter(piece for piece, _ in pairs), Counter(number for _, number in pairs)
    if twice := [piece for piece, count in names.items() if count > 1]:
        problems.append(f"{path}: the piece {twice[0]!r} is there twice{_more(len(twice) - 1)}")
    if lacking := [SPECIAL_PIECES[number] for number in (EOS, UNK, PAD) if SPECIAL_PIECES[number] not in names]:
        problems.append(f"{path} lacks {', '.join(lacking)}")
    if strange := sorted((ids.keys() ^ set(range(len(pairs)))) | {number for number in ids if ids[number] > 1}):
        last = len(pairs) - 1
        problems.append(
            f"{path}: ids are not 0 to {last}, each of them once; see id {strange[0]}{_more(len(strange) - 1)}"
        )
    return [piece for piece, _ in sorted(pairs, key=lambda pair: pair[1])] if len(problems) == before else None


def _more(count: int) -> str:
    return f" (and {count} more)" if count else ""


def _strange_ids(config: Mapping[str, Any], vocabularies: tuple[list[str], ...]) -> Iterator[str]:
    """Ids and sizes of the configuration that are not those of the vocabularies."""
    sizes = {"vocab_size": config["vocab_size"], "decoder_vocab_size": _target_size(config)}
    for (key, size), pieces in zip(sizes.items(), (vocabularies[0], vocabularies[-1]), strict=True):
        if size != len(pieces):
            yield f"{key}: found {size}, but the vocabulary has {len(pieces)} pieces"
    for pieces in vocabularies:
        for key, special in (("pad_token_id", PAD), ("eos_token_id", EOS)):
            wanted = pieces.index(SPECIAL_PIECES[special])
            if config[key] != wanted:
                yield f"{key}: found {config[key]}, but the vocabulary has {SPECIAL_PIECES[special]} at {wanted}"
    pieces, start = vocabularies[-1], config["decoder_start_token_id"]
    begins = [SPECIAL_PIECES[special] for special in (PAD, EOS, BOS)]
    if type(start) is not int or not 0 <= start < len(pieces) or pieces[start] not in begins:
        yield f"decoder_start_token_id: found {start}, wanted the id of {' or '.join(begins)}"


# Weights


def _tensors(path: Path, problems: list[str]) -> dict[str, Tensor]:
    """The tensors by name, in float32; none at all where they cannot be read."""
    try:
        if (path / WEIGHTS).is_file():
            found = read_tensors(path / WEIGHTS)
        elif (path / PICKLED).is_file():
            found = _unpickled(path / PICKLED)
        else:
            raise UserError(f"{path} has neither {WEIGHTS} nor {PICKLED}")
    except UserError as failure:
        problems += failure.messages
        return {}
    return {name: tensor.float() for name, tensor in found.items()}


def _unpickled(path: Path) -> dict[str, Tensor]:
    """The tensors of a file of the older kind; nothing but tensors and plain containers is made of it."""
    try:
        found = torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # a broken file may raise anything
        reason = str(error).split("\n", 1)[0]
        raise UserError(f"{path} is no readable file of PyTorch weights: {reason}") from None
    if not isinstance(found, dict) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise UserError(f"{path} holds no tensors by name")
    return found


def _misfits(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """Tensors that are missing, of another shape, or unknown; and tied ones that differ."""
    wanted = dict(_layer_shapes(config))
    source, target = ((size, config["d_model"]) for size in (config["vocab_size"], _target_size(config)))
    tables = {SHARED: source, SOURCE: source, TARGET: target, HEAD: target}
    tying, shared = _tying(config), config["share_encoder_decoder_embeddings"]
    groups: list[tuple[str, ...]]
    if tying == "all":
        groups = [(SHARED, SOURCE, TARGET, HEAD)]
    else:
        input_tables = [(SOURCE, SHARED), (TARGET, SHARED)] if shared else [(SOURCE,), (TARGET,)]
        groups = [*input_tables, (HEAD,)] if tying == "none" else [(SOURCE,), (TARGET, HEAD)]
    sinusoids = marian_positions(config)
    for name in set(POSITIONS) & tensors.keys():
        if tensors[name].shape != sinusoids.shape or (tensors[name] - sinusoids).abs().max() > HALF:
            yield f"{name}: wanted the sinusoids of {sinusoids.shape[0]} positions"
    missing = [name for name in wanted if name not in tensors]
    missing += [group[0] for group in groups if not any(name in tensors for name in group)]
    yield from _some("lacks", missing)
    known = wanted | {name: tables[name] for group in groups for name in group}
    yield from _some(
        "has, unknown to a Marian model,", [name for name in tensors if name not in {*known, *POSITIONS, BIAS}]
    )
    wrong = [
        f"{name} has shape {tuple(tensors[name].shape)}, wanted {shape}"
        for name, shape in known.items()
        if name in tensors and tensors[name].shape != shape
    ]
    if BIAS in tensors and tensors[BIAS].numel() != target[0]:
        wrong.append(f"{BIAS} has shape {tuple(tensors[BIAS].shape)}, wanted {(1, target[0])}")
    yield from _some("", wrong)
    for group in groups if tying != "none" and not wrong else ():
        there = [name for name in group if name in tensors]
        yield from (
            f"{name} and {there[0]} differ, though tie_word_embeddings says that they are one"
            for name in there[1:]
            if not torch.equal(tensors[name], tensors[there[0]])
        )


def marian_positions(config: Mapping[str, Any]) -> Tensor:
    """The table of sinusoids of a Marian model, all sines before all cosines: (positions, D), float32."""
    table = sinusoidal_positions(config["max_position_embeddings"], config["d_model"]).float()
    return torch.cat([table[:, 0::2], table[:, 1::2]], 1)


def _some(what: str, names: list[str]) -> Iterator[str]:
    if names:
        yield f"{what} {', '.join(names[:SHOWN])}{_more(max(0, len(names) - SHOWN))}".strip()


def _layer_shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all weights of the layers."""
    size, inner = config["d_model"], config["encoder_ffn_dim"]
    for side, attentions in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "encoder_attn"))):
        for number in range(config[f"{side}_layers"]):
            layer = f"model.{side}.layers.{number}."
            for name in attentions:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    yield f"{layer}{name}.{part}.weight", (size, size)
                    yield f"{layer}{name}.{part}.bias", (size,)
            for name in (*(f"{name}_layer_norm" for name in attentions), "final_layer_norm"):
                yield f"{layer}{name}.weight", (size,)
                yield f"{layer}{name}.bias", (size,)
            yield from ((f"{layer}fc1.weight", (inner, size)), (f"{layer}fc1.bias", (inner,)))
            yield from ((f"{layer}fc2.weight", (size, inner)), (f"{layer}fc2.bias", (size,)))

"""Models that the library transformers calls Marian, such as OPUS-MT's, brought into a model folder of ours.

Theirs have the channels of the model size in another order, all sines before all cosines, and pieces whose ids are
anything: ours get the ids 0 to 3 for the special ones, and all others keep their order. Before the folder gets its
name, transformers itself runs the original, and both have to say the same.

Letters in shapes: V vocabulary, D model size, T target length.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import ValidationError
from torch import Tensor

from transformer_mt.atomic import new_folder
from transformer_mt.config import Languages, Model
from transformer_mt.config.file import problems
from transformer_mt.data.tokenizer import (
    BOS,
    PAD,
    SPECIAL_PIECES,
    UNK,
    VOCABULARY,
    Tokenizer,
    write_vocabulary,
)
from transformer_mt.errors import UserError, noted
from transformer_mt.export import marian_tokenizer
from transformer_mt.export.marian_folder import (
    ACTIVATIONS,
    BIAS,
    HEAD,
    SHARED,
    SOURCE,
    TARGET,
    MarianFolder,
    marian_positions,
)
from transformer_mt.export.marian_model import NEVER, MarianModel, Renumbered, quiet
from transformer_mt.export.marian_search import search_settings
from transformer_mt.export.proof import SENTENCES, Proof, probes, prove
from transformer_mt.libraries import optional
from transformer_mt.model.card import LIMITS, USE
from transformer_mt.model.folder import FORMAT, START, build, load_weights, weights, write_model

Say = Callable[[str], None]
FORBIDDEN = (PAD, UNK, BOS)


def import_marian(
    theirs: MarianFolder, destination: Path, sentences: Sequence[str] = SENTENCES, *,
    source: str | None = None, target: str | None = None, say: Say = lambda text: None,
) -> Proof:  # fmt: skip
    """Writes a model folder that does what a Marian folder does, and proves it on sentences; it appears whole.

    source, target: codes of its languages, for a folder that does not tell them. `say` hears what could not be
    carried over. Raises UserError with all reasons why a folder cannot be imported, RunError if both differ.
    """
    transformers = optional("transformers", "huggingface")
    problems: list[str] = []
    languages = noted(problems, lambda: _languages(theirs, source, target))
    search = noted(problems, lambda: search_settings(theirs))
    settings = noted(problems, lambda: _model_settings(theirs))
    if languages is None or search is None or settings is None:
        raise UserError(*problems)
    decoding, left = search
    vocabularies = [Renumbered.of(pieces) for pieces in theirs.vocabularies]
    model = build(settings, len(vocabularies[0].pieces), len(vocabularies[-1].pieces))
    load_weights(model, dict(_tensors(theirs, vocabularies)), theirs.path)
    written = {
        "format": FORMAT, "languages": languages.model_dump(mode="json"), "model": settings.model_dump(mode="json"),
        "decoding": decoding.model_dump(mode="json"), "steps": [],
    }  # fmt: skip
    with quiet(transformers), tempfile.TemporaryDirectory() as place, new_folder(destination, replace=False) as partial:
        for name in ("source", "target"):
            shutil.copyfile(theirs.path / f"{name}.spm", Path(place) / f"{name}.model")
        write_vocabulary(Path(place) / VOCABULARY, [vocabulary.pieces for vocabulary in vocabularies])
        tokenizer = Tokenizer(Path(place))
        left += _compare_tokenizers(theirs, tokenizer, vocabularies, sentences)
        start, room = START[settings.start_symbol], theirs.config["max_position_embeddings"]
        sources = probes(tokenizer, sentences, room - 1)
        other = _original(theirs, vocabularies)
        proof = prove(model.eval(), start, other, sources, FORBIDDEN, room, f"{theirs.path}, run by transformers,")
        parameters = sum(parameter.numel() for parameter in model.parameters())
        card = _card(theirs, languages, parameters, proof, left)
        write_model(partial, weights(model), written, Path(place), card)
    for text in left:
        say(text)
    return proof


# What is in a folder, as ours


def _model_settings(theirs: MarianFolder) -> Model:
    config = theirs.config
    start = theirs.vocabularies[-1][config["decoder_start_token_id"]]
    values = {
        "encoder_layers": config["encoder_layers"],
        "decoder_layers": config["decoder_layers"],
        "model_size": config["d_model"],
        "feedforward_size": config["encoder_ffn_dim"],
        "heads": config["encoder_attention_heads"],
        "dropout": config["dropout"],
        "attention_dropout": config["attention_dropout"],
        "activation_dropout": config["activation_dropout"],
        "activation": ACTIVATIONS[config["activation_function"]],
        "attention_bias": True,
        "output_bias": True,
        "tie_embeddings": theirs.tying,
        "start_symbol": {number: name for name, number in START.items()}[SPECIAL_PIECES.index(start)],
    }
    try:
        return Model.model_validate(values)
    except ValidationError as error:
        raise UserError(*problems(error.errors(), values, str(theirs.path / "config.json"))) from None


def _tensors(theirs: MarianFolder, vocabularies: Sequence[Renumbered]) -> Iterator[tuple[str, Tensor]]:
    """The weights by the names of our parameters."""
    size, tensors = theirs.config["d_model"], theirs.tensors
    order = torch.stack([torch.arange(size // 2), torch.arange(size // 2, size)], 1).flatten()
    source, target = vocabularies[0], vocabularies[-1]
    bias = tensors.get(BIAS, torch.zeros(int((target.ids >= 0).sum())))
    yield "source_embedding.tokens.weight", source.rows(theirs.table(SOURCE, SHARED, TARGET, HEAD)[:, order])
    if theirs.tying != "all":
        tied = (HEAD,) if theirs.tying == "decoder" else ()
        yield "target_embedding.tokens.weight", target.rows(theirs.table(TARGET, SHARED, *tied)[:, order])
    if theirs.tying == "none":
        yield "output.weight", target.rows(tensors[HEAD][:, order])
    yield "output_bias", target.rows(bias.flatten(), NEVER)
    for number in range(theirs.config["encoder_layers"]):
        ours, name = f"encoder.{number}.", f"model.encoder.layers.{number}."
        yield from _attention(tensors, name + "self_attn", ours, "self", order)
        yield from _feed_forward(tensors, name, ours, order)
    for number in range(theirs.config["decoder_layers"]):
        ours, name = f"decoder.{number}.", f"model.decoder.layers.{number}."
        yield from _attention(tensors, name + "self_attn", ours, "self", order)
        yield from _attention(tensors, name + "encoder_attn", ours, "cross", order)
        yield from _feed_forward(tensors, name, ours, order)


def _attention(
    theirs: Mapping[str, Tensor], name: str, ours: str, kind: str, order: Tensor
) -> Iterator[tuple[str, Tensor]]:
    parts = [f"{name}.{letter}_proj" for letter in "qkv"]
    yield f"{ours}{kind}_attention.projection.weight", torch.cat([theirs[f"{p}.weight"][:, order] for p in parts])
    yield f"{ours}{kind}_attention.projection.bias", torch.cat([theirs[f"{p}.bias"] for p in parts])
    for part in ("weight", "bias"):
        yield f"{ours}{kind}_attention.output.{part}", theirs[f"{name}.out_proj.{part}"][order]
        yield f"{ours}{kind}_residual.norm.{part}", theirs[f"{name}_layer_norm.{part}"][order]


def _feed_forward(theirs: Mapping[str, Tensor], name: str, ours: str, order: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield f"{ours}feed_forward.inner.weight", theirs[f"{name}fc1.weight"][:, order]
    yield f"{ours}feed_forward.inner.bias", theirs[f"{name}fc1.bias"]
    for part in ("weight", "bias"):
        yield f"{ours}feed_forward.outer.{part}", theirs[f"{name}fc2.{part}"][order]
        yield f"{ours}feed_forward_residual.norm.{part}", theirs[f"{name}final_layer_norm.{part}"][order]


# Where it came from


def name_of(folder: Path) -> str:
    """What a folder is called; in the hub's cache that is the model's name, not that of a commit."""
    folder = folder.absolute()
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.name


def _header(folder: Path) -> dict[str, Any]:
    """The metadata that a README.md begins with."""
    path = folder / "README.md"
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    found = re.match(r"---\s*\n(.*?)\n---", text, re.DOTALL)
    try:
        header = yaml.safe_load(found[1]) if found else None
    except yaml.YAMLError:
        return {}
    return header if isinstance(header, dict) else {}


def _languages(theirs: MarianFolder, source: str | None, target: str | None) -> Languages:
    """As given, else as the folder's name, the tokenizer or the card tells."""
    code = r"([a-z]{2,3}(?:_[A-Za-z]+)?)"
    named = re.fullmatch(rf"(?:.*/)?opus-mt.*?[-_]{code}-{code}", name_of(theirs.path))
    listed = _header(theirs.path).get("language")
    candidates = [
        named.groups() if named else None,
        (theirs.tokenizer.get("source_lang"), theirs.tokenizer.get("target_lang")),
        listed if isinstance(listed, list) and len(listed) == 2 else None,
    ]
    known = next((pair for pair in candidates if pair and all(isinstance(one, str) and one for one in pair)), None)
    if not known and not (source and target):
        raise UserError(
            f"{theirs.path} does not tell its languages: wanted their codes (--source-language, --target-language)"
        )
    pair = (
        {"source": source or known[0], "target": target or known[1]} if known else {"source": source, "target": target}
    )
    try:
        return Languages.model_validate(pair)
    except ValidationError as error:
        raise UserError(*problems(error.errors(), pair, f"languages of {theirs.path}")) from None


def _card(
    theirs: MarianFolder, languages: Languages, parameters: int, proof: Proof, left: Sequence[str]
) -> str:  # fmt: skip
    """Markdown with the hub's metadata header."""
    source, target, name = languages.source, languages.target, name_of(theirs.path)
    licence = _header(theirs.path).get("license")
    licence = licence if isinstance(licence, str) and licence else "unknown"
    header = {"language": [source, target], "pipeline_tag": "translation", "license": licence}
    origin = [
        f"- The Marian model `{name}`, brought into this form: the weights are the same, in another order.",
        f"- Compared with the original as transformers runs it: {proof.outputs} outputs, {proof.pieces} pieces; the "
        f"largest difference of a logit was {proof.largest_difference:.2g}.",
        "- The README.md of the original tells what it was trained on, and how good it is.",
        *(f"- {text}" for text in left),
    ]
    named = f"`{licence}`, as the original's README.md has it" if licence != "unknown" else "The original's"
    sections = [
        f"---\n{yaml.safe_dump(header, sort_keys=False)}---\n\n# {name}",
        f"A Transformer that translates {source} to {target}, {parameters / 1e6:.1f} million parameters.",
        USE.replace("{example}", "A line to translate."),
        "\n".join(["## Origin", "", *origin]),
        LIMITS,
        f"## Licence\n\n{named}: see there before you publish this model.",
    ]
    return "\n\n".join(sections) + "\n"


# Whether both say the same


def _original(theirs: MarianFolder, vocabularies: Sequence[Renumbered]) -> MarianModel:
    """A Marian folder in float32 on the CPU."""
    transformers = optional("transformers", "huggingface")
    try:
        model = transformers.MarianMTModel.from_pretrained(theirs.path, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).split("\n", 1)[0]
        raise UserError(f"transformers cannot load {theirs.path}: {reason}") from None
    for part in (model.model.encoder, model.model.decoder):
        with torch.no_grad():  # those of a file may be rounded, which the model was not trained with
            part.embed_positions.weight.copy_(marian_positions(theirs.config))
    source, target, start = vocabularies[0], vocabularies[-1], theirs.config["decoder_start_token_id"]
    model.generation_config = transformers.GenerationConfig(
        suppress_tokens=[number for number in target.to_theirs(FORBIDDEN) if number >= 0], decoder_start_token_id=start,
        pad_token_id=theirs.config["pad_token_id"], eos_token_id=theirs.config["eos_token_id"],
    )  # fmt: skip
    return MarianModel(model, start, source, target)


def _compare_tokenizers(
    theirs: MarianFolder, ours: Tokenizer, vocabularies: Sequence[Renumbered], sentences: Sequence[str]
) -> list[str]:
    """Warnings: of a tokenizer that cannot be loaded, else as `marian_tokenizer.compare`."""
    try:
        tokenizer = marian_tokenizer.load_tokenizer(theirs.path)
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError) as error:
        return [f"MarianTokenizer cannot be loaded and was not compared: {str(error).split(chr(10), 1)[0]}"]
    both = vocabularies[0].to_theirs, vocabularies[-1].to_theirs
    return marian_tokenizer.compare(tokenizer, ours, both, sentences, theirs.path)

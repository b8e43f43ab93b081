"""Models that the library transformers calls Marian, such as OPUS-MT's, brought into a model folder of ours.

Theirs have the channels of the model size in another order, all sines before all cosines, and pieces whose ids are
anything: ours get the ids 0 to 3 for the special ones, and all others keep their order. Before the folder gets its
name, transformers itself runs the original, and both have to say the same.

Letters in shapes: V vocabulary, D model size, T target length.
"""

import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import ValidationError
from torch import Tensor

from transformer_mt.atomic import new_folder
from transformer_mt.config import Languages, Model
from transformer_mt.config.file import problems
from transformer_mt.data.clean import normalize
from transformer_mt.data.tokenizer import (
    BOS,
    PAD,
    SPECIAL_PIECES,
    UNK,
    VOCABULARY,
    Tokenizer,
    write_vocabulary,
)
from transformer_mt.decode.models import padded
from transformer_mt.errors import RunError, UserError
from transformer_mt.export.huggingface import quiet
from transformer_mt.export.marian_folder import (
    ACTIVATIONS,
    BIAS,
    HEAD,
    SHARED,
    SOURCE,
    TARGET,
    MarianFolder,
    marian_positions,
    read_marian,
)
from transformer_mt.export.marian_search import search_settings
from transformer_mt.export.proof import SENTENCES, Proof, probes, prove
from transformer_mt.libraries import optional
from transformer_mt.model.card import LIMITS, USE
from transformer_mt.model.folder import FORMAT, START, build, load_weights, weights, write_model

Say = Callable[[str], None]
NEVER = -1e3
"""Output bias of `<s>`, which Marian has not: its probability is 0, even in float64. Label smoothing takes the mean of
all logits, so that a much lower one would shift that loss."""
TOGETHER = 4
"""Sentences in a batch of theirs."""
FORBIDDEN = (PAD, UNK, BOS)


def import_marian(
    folder: Path, destination: Path, sentences: Sequence[str] = SENTENCES, *,
    source: str | None = None, target: str | None = None, say: Say = lambda text: None,
) -> Proof:  # fmt: skip
    """Writes a model folder that does what a Marian folder does, and proves it on sentences.

    source, target: codes of its languages, for a folder that does not tell them. `say` hears what could not be
    carried over. Raises UserError with all reasons why a folder cannot be imported, RunError if both differ.
    """
    if destination.exists():
        raise UserError(f"{destination} is there already: wanted the name of a new folder")
    theirs = read_marian(folder)
    languages = _languages(theirs, source, target)
    decoding, left = search_settings(theirs)
    settings = _model_settings(theirs)
    vocabularies = [Renumbered.of(pieces) for pieces in theirs.vocabularies]
    model = build(settings, len(vocabularies[0].pieces), len(vocabularies[-1].pieces))
    load_weights(model, dict(_tensors(theirs, vocabularies)), folder)
    written = {
        "format": FORMAT, "languages": languages.model_dump(mode="json"), "model": settings.model_dump(mode="json"),
        "decoding": decoding.model_dump(mode="json"), "steps": [],
    }  # fmt: skip
    transformers = optional("transformers", "huggingface")
    with quiet(transformers), tempfile.TemporaryDirectory() as place, new_folder(destination) as partial:
        for name in ("source", "target"):
            shutil.copyfile(folder / f"{name}.spm", Path(place) / f"{name}.model")
        write_vocabulary(Path(place) / VOCABULARY, [vocabulary.pieces for vocabulary in vocabularies])
        tokenizer = Tokenizer(Path(place))
        left += compare_tokenizers(theirs, tokenizer, vocabularies, sentences)
        start, room = START[settings.start_symbol], theirs.config["max_position_embeddings"]
        sources = probes(tokenizer, sentences, room - 1)
        other = Original(theirs, vocabularies)
        proof = prove(model.eval(), start, other, sources, FORBIDDEN, room, f"{folder}, run by transformers,")
        parameters = sum(parameter.numel() for parameter in model.parameters())
        card = _card(theirs, languages, parameters, proof, left)
        write_model(partial, weights(model), written, Path(place), card)
    for text in left:
        say(text)
    return proof


# What is in a folder, as ours


@dataclass(frozen=True)
class Renumbered:
    """Pieces by our ids, and the ids that they have in the Marian model."""

    pieces: list[str]
    ids: Tensor
    """(V,); -1 for `<s>`, if theirs has no such piece."""

    @classmethod
    def of(cls, theirs: list[str]) -> "Renumbered":
        """Ours of theirs."""
        special = set(SPECIAL_PIECES)
        pieces = [*SPECIAL_PIECES, *(piece for piece in theirs if piece not in special)]
        places = {piece: number for number, piece in enumerate(theirs)}
        return cls(pieces, torch.tensor([places.get(piece, -1) for piece in pieces]))

    def rows(self, table: Tensor, new: float = 0.0) -> Tensor:
        """Rows of theirs (V, ...) in our order; those of a piece that is new hold one value."""
        found = table[self.ids]
        found[self.ids < 0] = new
        return found

    def to_theirs(self, ids: Sequence[int]) -> list[int]:
        """Ids as theirs."""
        return self.ids[list(ids)].tolist()

    def to_ours(self, ids: Sequence[int]) -> list[int]:
        """Their ids as ours."""
        places = {number: place for place, number in enumerate(self.ids.tolist())}
        return [places[number] for number in ids]


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


class Original:
    """A Marian folder as transformers runs it, in float32 on the CPU, with our ids: an `Other` of export.proof."""

    def __init__(self, theirs: MarianFolder, vocabularies: Sequence[Renumbered]) -> None:
        transformers = optional("transformers", "huggingface")
        try:
            self._model = transformers.MarianMTModel.from_pretrained(
                theirs.path, dtype=torch.float32, local_files_only=True
            ).eval()
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).split("\n", 1)[0]
            raise UserError(f"transformers cannot load {theirs.path}: {reason}") from None
        for part in (self._model.model.encoder, self._model.model.decoder):
            with torch.no_grad():  # those of a file may be rounded, which the model was not trained with
                part.embed_positions.weight.copy_(marian_positions(theirs.config))
        self._source, self._target = vocabularies[0], vocabularies[-1]
        self._start = theirs.config["decoder_start_token_id"]
        self._pad, self._end = theirs.config["pad_token_id"], theirs.config["eos_token_id"]

    def logits(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        """For each pair what may come after the start symbol and after each piece of the target: (T + 1, V)."""
        found = []
        for first in range(0, len(sources), TOGETHER):
            some = targets[first : first + TOGETHER]
            begun = [[self._start, *self._target.to_theirs(row)] for row in some]
            given = {"decoder_input_ids": padded(begun, self._pad, torch.device("cpu"))}
            logits = self._model(**self._read(sources[first : first + TOGETHER]), **given).logits
            found += [logits[number, : len(row)] for number, row in enumerate(begun)]
        return [self._target.rows(row.T, NEVER).T for row in found]

    def greedy(self, sources: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
        """The output of each source that takes the likeliest piece again and again; at most so many pieces."""
        forbidden = [number for number in self._target.to_theirs(FORBIDDEN) if number >= 0]
        self._model.generation_config = optional("transformers", "huggingface").GenerationConfig(
            num_beams=1, do_sample=False, max_new_tokens=limit, suppress_tokens=forbidden, pad_token_id=self._pad,
            eos_token_id=self._end, decoder_start_token_id=self._start,
        )  # fmt: skip
        outputs = []
        for first in range(0, len(sources), TOGETHER):
            for row in self._model.generate(**self._read(sources[first : first + TOGETHER])).tolist():
                pieces = row[1 : row.index(self._end, 1)] if self._end in row[1:] else row[1:]
                outputs.append(self._target.to_ours(pieces))
        return outputs

    def _read(self, sources: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """A padded batch with its mask."""
        rows = [[*self._source.to_theirs(row), self._end] for row in sources]
        mask = padded([[1] * len(row) for row in rows], 0, torch.device("cpu"))
        return {"input_ids": padded(rows, self._pad, torch.device("cpu")), "attention_mask": mask}


def compare_tokenizers(
    theirs: MarianFolder, ours: Tokenizer, vocabularies: Sequence[Renumbered], sentences: Sequence[str]
) -> list[str]:
    """Compares ids of sentences of both languages with those of their MarianTokenizer.

    Returns warnings: where it cannot be loaded, and where the white space and unseen characters that we leave out make
    a difference. Raises RunError for any other one.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sacremoses, which it asks for and never uses
            transformers = optional("transformers", "huggingface")
            tokenizer = transformers.MarianTokenizer.from_pretrained(theirs.path, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, ImportError, RuntimeError) as error:
        return [f"MarianTokenizer cannot be loaded and was not compared: {str(error).split(chr(10), 1)[0]}"]
    folded: list[str] = []
    for text in sentences:
        for key, encode, vocabulary in (
            ("text", ours.encode_source, vocabularies[0]),
            ("text_target", ours.encode_target, vocabularies[-1]),
        ):
            (found,) = encode([text])
            wanted = [*vocabulary.to_theirs(found), theirs.config["eos_token_id"]]
            if list(tokenizer(**{key: text})["input_ids"]) == wanted:
                continue
            if list(tokenizer(**{key: normalize(text)})["input_ids"]) != wanted:
                raise RunError(
                    f"{theirs.path}: MarianTokenizer cuts {text!r} into other pieces; nothing was kept of it"
                )
            folded.append(text)
    if not folded:
        return []
    return [
        f"{len(folded)} sentences get other ids by MarianTokenizer, since here white space is folded, and NFC applied, "
        f"before a text is cut: {folded[0]!r}"
    ]

"""Models on disk: writing a deployable `model/`, and finding and loading the model that a person means.

Weights are safetensors, everything else YAML and JSON: nothing we write needs pickle to be read.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from transformer_mt.config import Config, Decoding, Languages, Model
from transformer_mt.config.file import problems
from transformer_mt.data.tokenizer import BOS, EOS, PAD, Tokenizer
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Transformer

FORMAT = 1
WEIGHTS = "model.safetensors"
START = {"bos": BOS, "eos": EOS, "pad": PAD}


def build(settings: Model, source_size: int, target_size: int) -> Transformer:
    """A new model for vocabularies of these sizes; weights are drawn from torch's generator."""
    numbers = settings.model_dump(exclude={"preset", "start_symbol"})
    return Transformer(source_vocabulary=source_size, target_vocabulary=target_size, pad=PAD, **numbers)


def weights(model: Transformer) -> dict[str, Tensor]:
    """The parameters by name; tied ones stand there once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def bare_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by the names they have in a model that nothing is wrapped around."""
    return {name.replace("module.", "").replace("_orig_mod.", ""): tensor for name, tensor in tensors.items()}


def load_weights(model: Transformer, tensors: Mapping[str, Tensor], origin: Path) -> None:
    """Copies tensors into the model; names may carry the prefixes of wrappers, but must be those of this model."""
    found = bare_names(tensors)
    wanted = dict(model.named_parameters())
    problems = [f"{origin} lacks {name}" for name in wanted.keys() - found.keys()]
    problems += [f"{origin} has {name}, unknown to this model" for name in found.keys() - wanted.keys()]
    for name in wanted.keys() & found.keys():
        if wanted[name].shape != found[name].shape:
            shapes = f"{tuple(found[name].shape)}, wanted {tuple(wanted[name].shape)}"
            problems.append(f"{origin}: {name} has shape {shapes}")
    if problems:
        raise UserError(*sorted(problems)[:10])
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(found[name])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, on the CPU."""
    if not path.is_file():
        raise UserError(f"{path} not found")
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise UserError(f"{path} is no readable safetensors file: {error}") from None


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes a safetensors file, with the metadata that other readers of PyTorch weights look for."""
    save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})


def model_settings(config: Config, steps: Sequence[int]) -> dict[str, Any]:
    """What a model folder's config.yaml holds; `steps` are those of the checkpoints whose mean it is."""
    return {
        "format": FORMAT,
        "languages": config.languages.model_dump(mode="json"),
        "model": config.model.model_dump(mode="json"),
        "decoding": config.decoding.model_dump(mode="json"),
        "steps": sorted(steps),
    }


def read_model_settings(folder: Path) -> dict[str, Any] | None:
    """What a model folder's config.yaml holds, None where there is none."""
    path = folder / "config.yaml"
    if not (folder / WEIGHTS).is_file() or not path.is_file():
        return None
    settings: dict[str, Any] | None = yaml.safe_load(path.read_text("utf-8"))
    if settings:
        with suppress(ValidationError):  # keys that there were not yet when it was written get their defaults
            for name, section in (("model", Model), ("decoding", Decoding)):
                settings[name] = section.model_validate(settings.get(name)).model_dump(mode="json")
    return settings


def write_model(
    folder: Path, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], tokenizer_folder: Path, card: str
) -> None:
    """Fills a folder with all that translating needs, and no path of this machine."""
    save_tensors(tensors, folder / WEIGHTS)
    for file in Tokenizer(tokenizer_folder).files:
        shutil.copyfile(file, folder / file.name)
    text = yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True)
    (folder / "config.yaml").write_text(text, "utf-8")
    (folder / "README.md").write_text(card, "utf-8")


def is_model(folder: Path) -> bool:
    """Whether a folder is a model that `write_model` made, and no checkpoint."""
    settings = read_model_settings(folder)
    return settings is not None and "format" in settings and not (folder / "state.json").exists()


@dataclass(frozen=True)
class Loaded:
    """A model with what belongs to it, ready to translate."""

    model: Transformer
    tokenizer: Tokenizer
    languages: Languages
    decoding: Decoding
    start: int
    """The id that the decoder's input begins with."""
    origin: Path
    """The folder it was loaded from."""


def locate(folder: Path) -> Path:
    """The model or checkpoint folder that a path means: itself, or a run's model/, best or newest checkpoint."""
    if (folder / WEIGHTS).is_file():
        return folder
    if not folder.is_dir():
        raise UserError(f"model folder {folder} not found")
    checkpoints = sorted(folder.glob("checkpoints/step-*/" + WEIGHTS))
    for candidate in [folder / "model", folder / "checkpoints" / "best", *(path.parent for path in checkpoints[::-1])]:
        if (candidate / WEIGHTS).is_file():
            return candidate.resolve() if candidate.is_symlink() else candidate
    wanted = "a run folder with model/ or checkpoints/, a model folder or a checkpoint folder"
    raise UserError(f"{folder} holds no model: wanted {wanted}")


def tokenizer_folder(origin: Path) -> Path:
    """Where the tokenizer of a model folder is: in it; of a checkpoint: in its run."""
    return origin.resolve().parent.parent / "tokenizer" if (origin / "state.json").is_file() else origin


def load(folder: Path, device: torch.device, dtype: torch.dtype = torch.float32) -> Loaded:
    """Loads what `locate` finds, in evaluation mode."""
    origin = locate(folder)
    state = origin / "state.json"
    settings = _read_settings(state if state.is_file() else origin / "config.yaml")
    tokenizer = Tokenizer(tokenizer_folder(origin))
    try:
        shape = Model.model_validate(settings.get("model"))
        languages = Languages.model_validate(settings.get("languages"))
        decoding = Decoding.model_validate(settings.get("decoding"))
    except ValidationError as error:
        raise UserError(*problems(error.errors(), settings, str(state if state.is_file() else origin))) from None
    model = build(shape, tokenizer.source_size, tokenizer.target_size)
    load_weights(model, read_tensors(origin / WEIGHTS), origin / WEIGHTS)
    return Loaded(
        model.to(device, dtype).eval(),
        tokenizer,
        languages,
        decoding,
        START[shape.start_symbol],
        origin,
    )


def _read_settings(path: Path) -> dict[str, Any]:
    """The configuration that a model folder (config.yaml) or a checkpoint (state.json) carries."""
    if not path.is_file():
        raise UserError(f"{path} not found: not a folder that this program wrote")
    text = path.read_text("utf-8")
    try:
        settings = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(settings, dict):
        raise UserError(f"{path} holds no settings: not a file that this program wrote")
    if settings.get("format") != FORMAT:
        raise UserError(f"{path} has format {settings.get('format')}, this program reads {FORMAT}")
    config: dict[str, Any] = settings.get("config", settings)
    return config

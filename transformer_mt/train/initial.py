"""Fine-tuning: the weights of another model as those that training begins with, and a list of what was taken."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from transformer_mt.data.tokenizer import Tokenizer
from transformer_mt.errors import UserError
from transformer_mt.model.folder import WEIGHTS, bare_names, locate, read_tensors, tokenizer_folder
from transformer_mt.model.transformer import Transformer

SHOWN = 20
"""Names in a list at the most."""


def take_weights(model: Transformer, tokenizer: Tokenizer, path: Path) -> list[str]:
    """Copies what fits from a model, run or checkpoint folder; says in sentences what was taken and what was not.

    Weights of the same name and shape are taken whole. Rows that belong to pieces go by the piece, so that two
    vocabularies may differ. Raises UserError where nothing fits.
    """
    origin = locate(path)
    theirs, found = Tokenizer(tokenizer_folder(origin)), bare_names(read_tensors(origin / WEIGHTS))
    whole, by_piece, new = [], [], []
    for name, parameter in model.named_parameters():
        pieces = _pieces(name, model, tokenizer)
        if name not in found or found[name].shape[1:] != parameter.shape[1:]:
            new.append(name if name not in found else f"{name} (another shape there: {tuple(found[name].shape)})")
        elif pieces is not None and (old := _pieces(name, model, theirs)) != pieces:
            by_piece.append(f"{name}: {_copy_rows(parameter, found[name], pieces, old or [])} of {len(pieces)} pieces")
        elif found[name].shape == parameter.shape:
            with torch.no_grad():
                parameter.copy_(found[name])
            whole.append(name)
        else:
            new.append(f"{name} (another shape there: {tuple(found[name].shape)})")
    if not by_piece and all(found[name].dim() < 2 for name in whole):
        raise UserError(f"training.initial_model: nothing in {origin} has the names and shapes of this model")
    unused = sorted(found.keys() - {name for name, _ in model.named_parameters()})
    return [
        f"initial weights from {origin}: {len(whole)} of {len(list(model.parameters()))} tensors taken whole",
        *(f"initial weights by piece, {line}" for line in by_piece),
        *_listed("initial weights that are new", new),
        *_listed("not taken, since this model has no such weights", unused),
    ]


def _pieces(name: str, model: Transformer, tokenizer: Tokenizer) -> Sequence[str] | None:
    """The pieces that the rows of a parameter belong to, None if they belong to none."""
    parameter = model.get_parameter(name)
    if any(parameter is bound for bound in (model.output.weight, model.output_bias)):
        return tokenizer.target_pieces()
    if parameter is model.source_embedding.tokens.weight:
        return tokenizer.source_pieces()
    return tokenizer.target_pieces() if parameter is model.target_embedding.tokens.weight else None


def _copy_rows(parameter: Tensor, found: Tensor, pieces: Sequence[str], old: Sequence[str]) -> int:
    """Copies the rows of pieces that both vocabularies have; how many."""
    places = {piece: row for row, piece in enumerate(old)}
    rows = [(row, places[piece]) for row, piece in enumerate(pieces) if piece in places]
    ours, theirs = torch.tensor(rows, dtype=torch.long).reshape(-1, 2).T
    with torch.no_grad():
        parameter[ours] = found[theirs].to(parameter)
    return len(rows)


def _listed(what: str, names: Sequence[str]) -> list[str]:
    """A line that lists names, the first ones of many; none where there are none."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"{what}: {', '.join(names[:SHOWN])}{more}"] if names else []

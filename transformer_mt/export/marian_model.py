"""A Marian model as the library transformers runs it, asked in our ids.

Letters in shapes: V vocabulary, T target length.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transformer_mt.data.tokenizer import SPECIAL_PIECES
from transformer_mt.decode.models import padded

NEVER = -1e3
"""Output bias of a `<s>` that Marian has not: its probability is 0, even in float64. Label smoothing takes the mean of
all logits, so that a much lower one would shift that loss."""
TOGETHER = 4
"""Lines in a batch, of unequal lengths."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Renumbered:
    """Pieces by our ids, and the ids that they have in the Marian model."""

    pieces: list[str]
    ids: Tensor
    """(V,); -1 for `<s>`, if theirs has no such piece."""

    @classmethod
    def of(cls, theirs: list[str]) -> "Renumbered":
        """Ours of theirs: the special pieces first, then the others in their order."""
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


class MarianModel:
    """A MarianMTModel as `proof.prove` asks it, some padded lines at a time: an `Other`."""

    def __init__(self, model: Any, start: int, source: Renumbered, target: Renumbered) -> None:
        """`start`: the id, theirs, that outputs begin with."""
        self._model, self._start, self._source, self._target = model.eval(), start, source, target
        self._pad, self._end = model.config.pad_token_id, model.config.eos_token_id

    @torch.no_grad()
    def logits(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        """For each pair what may come after the start symbol and after each piece of the target: (T + 1, V)."""
        found: list[Tensor] = []
        for place in range(0, len(sources), TOGETHER):
            rows = [[self._start, *self._target.to_theirs(row)] for row in targets[place : place + TOGETHER]]
            batch = self._batch(sources[place : place + TOGETHER])
            logits = self._model(**batch, decoder_input_ids=padded(rows, self._pad, CPU), use_cache=False).logits
            found += [logits[number, : len(row)] for number, row in enumerate(rows)]
        return [self._target.rows(row.T, NEVER).T for row in found]

    @torch.no_grad()
    def greedy(self, sources: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
        """The output of each source that takes the likeliest piece again and again; at most so many pieces."""
        plain = {
            "num_beams": 1, "do_sample": False, "min_length": 0, "no_repeat_ngram_size": 0, "early_stopping": False,
        }  # fmt: skip
        outputs = []
        for place in range(0, len(sources), TOGETHER):
            batch = self._batch(sources[place : place + TOGETHER])
            for row in self._model.generate(**batch, **plain, max_new_tokens=limit).tolist():
                pieces = row[1 : row.index(self._end, 1)] if self._end in row[1:] else row[1:]
                outputs.append(self._target.to_ours(pieces))
        return outputs

    def _batch(self, sources: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        rows = [[*self._source.to_theirs(row), self._end] for row in sources]
        mask = padded([[1] * len(row) for row in rows], 0, CPU)
        return {"input_ids": padded(rows, self._pad, CPU), "attention_mask": mask}


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Keeps the library's progress bars and advice from the terminal."""
    settings = transformers.utils.logging
    level, bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity(logging.CRITICAL)
    settings.disable_progress_bar()
    try:
        yield
    finally:
        settings.set_verbosity(level)
        if bars:
            settings.enable_progress_bar()

"""The engine that leaves the search to CTranslate2; limits, ranking and what may not be produced stay ours.

How its search differs from ours, whatever its options: probabilities are those among the pieces that are allowed, so
they are a little higher than those of forced decoding; and a sentence is done when beam_size hypotheses are finished.
"""

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transformer_mt.atomic import read_json
from transformer_mt.config import Decoding
from transformer_mt.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from transformer_mt.decode.engine import Source
from transformer_mt.decode.search import Hypothesis, LengthPenalty
from transformer_mt.errors import UserError
from transformer_mt.libraries import optional

RECORD = "transformer-mt.json"
"""The file of a converted model's folder that says what was converted, and which positions it has."""
ALMOST_ZERO = 1e-9
"""For a length penalty of 0, with which CTranslate2 stops by another rule: n to this power is 1 in float32."""
LOWEST = -6e4
"""No output has so low a log-probability, in any precision, unless it holds a piece that is ruled out."""
SENTENCES_ON_CPU = 64
"""Most sentences of a batch there."""
BATCHES_AHEAD = 4
"""Batches that wait or run for each worker: with so many, none is idle while results are read."""


class CTranslate2Engine:
    """A converted model and the settings of its search."""

    def __init__(
        self, folder: Path, tokenizer: Tokenizer, settings: Decoding, precision: str = "float32", *,
        workers: int = 1, threads: int = 0, device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        """`precision`: float32, int8 and what else the device has. `workers` batches are searched side by side.

        `threads`: for each worker; 0 lets CTranslate2 choose.
        """
        if settings.sampling is not None:
            raise UserError("decoding.sampling: CTranslate2 cannot draw by seed and line number; our own engine can")
        self.settings, self._workers = settings, workers
        self._on_cpu = torch.device(device).type == "cpu"
        self.positions: int = (read_json(folder / RECORD) or {}).get("positions") or sys.maxsize
        self._penalty = LengthPenalty(settings.length_penalty.form, settings.length_penalty.alpha)
        self._translator = _opened(folder, precision, workers, threads, torch.device(device))
        self._source_pieces, self._target_pieces = tokenizer.source_pieces(), tokenizer.target_pieces()
        self._ids = {piece: number for number, piece in enumerate(self._target_pieces)}
        self._end = self._target_pieces[EOS]
        never = (PAD, BOS) if settings.allow_unknown else (PAD, BOS, UNK)
        self._never = frozenset(self._target_pieces[token] for token in never)

    def search(self, sources: Sequence[Source]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """As `Engine.search`. What does not fit into memory is tried again, half as much together.

        Prefixes are refused: CTranslate2 leaves their pieces out of its scores. So are required phrases.
        """
        for name, given in (
            ("target prefixes", any(source.prefix for source in sources)),
            ("required phrases", any(source.phrases for source in sources)),
        ):
            if given:
                raise UserError(f"{name}: CTranslate2 cannot search with them; our own engine can")
        waiting, running = self._batches(sources)[::-1], deque[tuple[_Batch, list[Any]]]()
        while waiting or running:
            while waiting and len(running) < BATCHES_AHEAD * self._workers:
                batch = waiting.pop()
                running.append((batch, self._start(batch)))
            batch, promises = running.popleft()
            try:
                outputs = [(found.hypotheses, found.scores) for found in (promise.result() for promise in promises)]
            except RuntimeError as error:
                if len(batch.rows) == 1 or "out of memory" not in str(error):
                    raise
                waiting += batch.halves()
                continue
            done, again = batch.divide(outputs)
            waiting += again
            yield from self._ranked(done)

    def _batches(self, sources: Sequence[Source]) -> list["_Batch"]:
        """Those of similar length together, longest first, within batch_size and batch_tokens.

        On a CPU no more than keep its caches warm, and so many batches that the workers end at about the same time.
        """
        share = self.settings.batch_size
        if self._on_cpu:
            share = min(SENTENCES_ON_CPU, max(8, -(-len(sources) // (BATCHES_AHEAD * self._workers))))
        batches: list[_Batch] = []
        room = 0
        for place in sorted(range(len(sources)), key=lambda place: (-len(sources[place].ids), place)):
            source = sources[place]
            if room == 0:
                batches.append(_Batch([]))
                fitting = self.settings.batch_tokens // (len(source.ids) * self.settings.beam_size)
                room = min(self.settings.batch_size, share, max(1, fitting))
            pieces = [self._source_pieces[token] for token in source.ids]
            batches[-1].rows.append(_Row(place, pieces, source.limit))
            room -= 1
        return batches

    def _start(self, batch: "_Batch") -> list[Any]:
        """Gives a batch to the workers: a promise for each source."""
        settings = self.settings
        promises: list[Any] = self._translator.translate_batch(
            [row.pieces for row in batch.rows],
            asynchronous=True,
            max_input_length=0,
            max_decoding_length=batch.limit,
            min_decoding_length=min(settings.min_length, batch.limit),
            beam_size=settings.beam_size,
            num_hypotheses=settings.beam_size,  # all that are finished: it is we who rank them
            length_penalty=self._power(),
            no_repeat_ngram_size=settings.no_repeat_ngram,
            suppress_sequences=[[piece] for piece in self._never],
            return_scores=True,
            return_end_token=True,  # what has none was cut off at the limit
        )
        return promises

    def _power(self) -> float:
        """That of CTranslate2's own length penalty, n^power: the one that is nearest to ours."""
        penalty = self.settings.length_penalty
        return {"none": 0.0, "average": 1.0}.get(penalty.form, penalty.alpha) or ALMOST_ZERO

    def _ranked(self, outputs: Sequence["_Done"]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The n_best outputs of each source by our length penalty, with the places of the sources."""
        finished = self._finished(outputs)
        longest = max((len(one.pieces) for found in finished for one in found), default=0)
        penalties = self._penalty(torch.arange(longest + 2, dtype=torch.float64)).tolist()  # by length, with `</s>`
        for (row, _), found in zip(outputs, finished, strict=True):
            scored = [(one.log_probability / penalties[len(one.pieces) + 1], one) for one in found]
            scored.sort(key=lambda pair: pair[0], reverse=True)
            yield row.place, [self._hypothesis(*pair) for pair in scored[: self.settings.n_best]]

    def _hypothesis(self, score: float, found: "_Finished") -> Hypothesis:
        return Hypothesis(tuple(self._ids[piece] for piece in found.pieces), found.log_probability, score)

    def _finished(self, outputs: Sequence["_Done"]) -> list[list["_Finished"]]:
        """What CTranslate2 gave for each source and is an output indeed, in its order."""
        power, least = self._power(), self.settings.min_length
        found: list[list[_Finished]] = []
        cut: list[tuple[_Row, _Finished]] = []
        for row, (hypotheses, scores) in outputs:
            found.append([])
            for pieces, score in zip(hypotheses, scores, strict=True):
                ended = pieces[-1] == self._end
                one = _Finished(pieces[:-1] if ended else pieces, score * len(pieces) ** power)
                allowed = self._never.isdisjoint(pieces) and (not ended or len(one.pieces) >= least)
                # Where all pieces are ruled out it takes one that is; and what is no number is no output either.
                if allowed and one.log_probability > LOWEST:
                    found[-1].append(one)
                    if not ended:
                        cut.append((row, one))
        self._end_all(cut)
        return found

    def _end_all(self, cut: Sequence[tuple["_Row", "_Finished"]]) -> None:
        """Adds the `</s>` that our search puts after the last piece that the limit allows, with its probability."""
        if cut:
            sources, targets = [row.pieces for row, _ in cut], [one.pieces for _, one in cut]
            most = max(1, self.settings.batch_tokens // max(map(len, sources + targets)))
            scored = self._translator.score_batch(sources, targets, max_batch_size=most, max_input_length=0)
            for (_, one), result in zip(cut, scored, strict=True):
                one.log_probability += result.log_probs[-1]


def _opened(folder: Path, precision: str, workers: int, threads: int, device: torch.device) -> Any:
    """CTranslate2's translator for a device; what it lacks is told by the options' names."""
    engine = optional("ctranslate2", "ctranslate2")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"--device {device.type}: CTranslate2 runs on cpu and cuda only")
    supported = engine.get_supported_compute_types(device.type)
    if precision not in supported:
        there = ", ".join(sorted(supported))
        raise UserError(f"--precision {precision}: found none such, CTranslate2 has {there} on this {device.type}")
    before = torch.get_num_threads()
    try:
        return engine.Translator(
            str(folder), device.type, device_index=device.index or 0, compute_type=precision,
            inter_threads=workers, intra_threads=threads,
        )  # fmt: skip
    finally:
        torch.set_num_threads(before)  # both set the number of the same library's threads


@dataclass(frozen=True)
class _Row:
    """A source in a batch."""

    place: int
    """Among all sources."""
    pieces: list[str]
    """Without `</s>`."""
    limit: int


@dataclass
class _Finished:
    pieces: list[str]
    """Without `</s>`."""
    log_probability: float
    """With `</s>`."""


_Output = tuple[list[list[str]], list[float]]
"""A source's hypotheses as pieces, with `</s>` unless they were cut off, and CTranslate2's scores of them."""
_Done = tuple[_Row, _Output]


@dataclass(frozen=True)
class _Batch:
    rows: list[_Row]

    @property
    def limit(self) -> int:
        """The largest of its sources: CTranslate2 takes one for all."""
        return max(row.limit for row in self.rows)

    def halves(self) -> list["_Batch"]:
        """The same sources in two batches."""
        middle = len(self.rows) // 2
        return [_Batch(self.rows[middle:]), _Batch(self.rows[:middle])]

    def divide(self, outputs: Sequence[_Output]) -> tuple[list[_Done], list["_Batch"]]:
        """Sources with outputs that are also what their own limits give; the others, to be searched again.

        With limit L the last step is the one that chooses piece L. A search that ended before that step never saw the
        limit, so a larger one gives the same. CTranslate2 ends it at the first step with beam_size finished hypotheses
        and returns so many: one of those returned is of that step, since before it there were fewer. If all have fewer
        than L pieces, `</s>` counted, the search ended before; if not, it may have been another one under limit L.
        """
        done: list[_Done] = []
        again: dict[int, list[_Row]] = {}
        limit = self.limit
        for row, output in zip(self.rows, outputs, strict=True):
            if row.limit == limit or max(map(len, output[0])) < row.limit:
                done.append((row, output))
            else:
                again.setdefault(row.limit, []).append(row)
        return done, [_Batch(rows) for rows in again.values()]

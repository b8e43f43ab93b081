"""Whether another program says what our model says: real sentences, their logits and greedy outputs, on both sides.

Letters in shapes: T target length, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from transformer_mt.data.tokenizer import EOS, Tokenizer
from transformer_mt.errors import RunError
from transformer_mt.model.transformer import Transformer

SENTENCES = (
    "The committee met on Tuesday and agreed to publish its report before the end of the year.",
    "Why did nobody tell us that the last train had already left?",
    "Mix 250 g of flour with two eggs, add salt, and leave the dough to rest for 30 minutes.",
    "“Wait!” she said – but the door (the red one) was closed, and 3.5 % of the water was gone…",
    "Der Hund, den wir gestern im Park gesehen haben, gehört der Nachbarin aus dem dritten Stock.",
    "Größere Änderungen müssen mindestens zwei Wochen vorher schriftlich angekündigt werden.",
    "Les élèves ont visité le musée, puis ils sont rentrés à l'école à pied malgré la pluie.",
    "¿Cuánto cuesta el billete de ida y vuelta a Málaga?",
    "Поезд отправляется в семь часов утра с третьего пути.",
    "会議は明日の午後三時に始まります。",
    "See https://example.org/a?b=1&c=2 or write to info@example.org.",
    "Press <b>OK</b> to delete {count} files named %s, or Ctrl+C.",
    "OK",
)
"""Sentences of several languages, with what texts have in them; used where no others are given."""
LONG = 200
"""Pieces of the longest source."""
LONGEST_OUTPUT = 64
"""Most pieces of a greedy output."""
TOLERANCE = 1e-4
"""Largest difference of a logit, in float32; where the largest logit is above 1, as a share of it."""


def apart(theirs: Tensor, ours: Tensor) -> tuple[float, float]:
    """The largest difference of logits; and what it may be."""
    scale = max(1.0, float(ours.abs().max()))
    return float((theirs - ours).abs().max()), TOLERANCE * scale


class Other(Protocol):
    """A model as another program runs it, in float32. Ids are ours, without the start symbol and without `</s>`."""

    def logits(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Tensor]:
        """For each pair what may come after the start symbol and after each piece of the target: (T + 1, V)."""
        ...

    def greedy(self, sources: Sequence[Sequence[int]], limit: int) -> list[list[int]]:
        """The output of each source that takes the likeliest piece again and again; at most so many pieces."""
        ...


@dataclass(frozen=True)
class Proof:
    """What was compared, and how far it was apart."""

    outputs: int
    pieces: int
    """Pieces of all outputs, `</s>` counted."""
    ties: int
    """Pieces of theirs that ours finds no worse than its own by more than the tolerance, though it takes another."""
    largest_difference: float
    """Of a logit."""

    def record(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return asdict(self)


def probes(tokenizer: Tokenizer, sentences: Sequence[str] = SENTENCES, room: int = LONG) -> list[list[int]]:
    """Sources: an empty one, one of a single piece, one of 200 (as many as `room` allows), then the sentences."""
    return _probes(tokenizer.encode_source(list(sentences)), room)


def probe_targets(tokenizer: Tokenizer, sentences: Sequence[str] = SENTENCES, room: int = LONG) -> list[list[int]]:
    """The same of the target language, in the opposite order: a short source meets a long target."""
    return _probes(tokenizer.encode_target(list(sentences)), room)[::-1]


def _probes(encoded: Sequence[Sequence[int]], room: int) -> list[list[int]]:
    rows = [list(ids[:room]) or [EOS + 1] for ids in encoded] or [[EOS + 1]]
    joined = [token for ids in rows for token in ids]
    long = (joined * (LONG // len(joined) + 1))[: min(LONG, room)]
    return [[], rows[0][:1], long, *rows]


@torch.no_grad()
def prove(
    model: Transformer, start: int, other: Other, sources: Sequence[list[int]], forbidden: Sequence[int], room: int,
    where: str,
) -> Proof:  # fmt: skip
    """Compares another program's logits and greedy outputs with the model's, in float32 on the CPU.

    forbidden: ids that neither side may produce; room: most positions of a target. `where` names the other program.
    Raises RunError if anything differs: a logit by more than TOLERANCE, or a piece of a greedy output that is not, by
    ours, the likeliest one after those before it.
    """
    outputs = other.greedy(sources, min(LONGEST_OUTPUT, room - 1))
    theirs = other.logits(sources, outputs)
    largest, far, ties, wrong = 0.0, 0, 0, 0
    for source, output, found in zip(sources, outputs, theirs, strict=True):
        expected = model.logits(model(torch.tensor([[*source, EOS]]), torch.tensor([[start, *output]]))[0])
        if found.shape != expected.shape:
            raise RunError(f"{where}: logits have shape {tuple(found.shape)}, ours {tuple(expected.shape)}")
        difference, allowed = apart(found, expected)
        largest = difference if not difference <= largest else largest  # what is no number stays
        far += not difference <= allowed
        expected[:, list(forbidden)] = -torch.inf
        ended = len(output) < min(LONGEST_OUTPUT, room - 1)
        said = torch.tensor([*output, EOS][: len(output) + ended])
        gaps = expected[: len(said)].amax(1) - expected[: len(said)].gather(1, said[:, None])[:, 0]
        ties += int((gaps > 0).sum())
        wrong += not bool((gaps <= allowed).all())
    if wrong or far:
        raise RunError(
            f"{where} does not say what this model says: {wrong} of {len(outputs)} greedy outputs differ, and logits "
            f"of {far} by more than {TOLERANCE:g} of the largest one (by {largest:.2g}); nothing was kept of it"
        )
    return Proof(len(outputs), sum(map(len, outputs)) + len(outputs), ties, largest)

"""Small models, stores, trainers and search problems that the tests of the mathematics share."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transformer_mt.config import Model, Training
from transformer_mt.data.batching import Batch
from transformer_mt.data.store import Store, StoreWriter
from transformer_mt.data.tokenizer import BOS
from transformer_mt.decode.beam import BeamSearch
from transformer_mt.decode.search import PAPERS_PENALTY, Hypothesis, LengthPenalty, Live, Rules, Steps, search
from transformer_mt.distributed import Process
from transformer_mt.model.folder import build
from transformer_mt.model.transformer import Transformer
from transformer_mt.train.checkpoint import Progress
from transformer_mt.train.loop import NO_SUMS, Trainer

torch.set_num_threads(1)  # the models are so small that threads only wait for each other

VOCABULARY = 20
CPU = Process(0, 1, torch.device("cpu"))


def model(vocabulary: int = VOCABULARY, seed: int = 0, dtype: torch.dtype = torch.float64, **keys: Any) -> Transformer:
    """A model in evaluation mode, small unless told otherwise, without dropout unless told otherwise."""
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "model_size": 16, "feedforward_size": 24, "heads": 4}
    torch.manual_seed(seed)
    return build(Model(**{"dropout": 0.0, **sizes, **keys}), vocabulary, vocabulary).to(dtype).eval()


def pairs(lengths: Sequence[tuple[int, int]], seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Random ids for pairs of these lengths."""
    generator = np.random.default_rng(seed)
    return [(ids(generator, source), ids(generator, target)) for source, target in lengths]


def ids(generator: np.random.Generator, length: int) -> list[int]:
    return [int(number) for number in generator.integers(4, VOCABULARY, length)]


def store(folder: Path, lengths: Sequence[tuple[int, int]], name: str = "train", seed: int = 0) -> Store:
    with StoreWriter(folder, name, VOCABULARY) as writer:
        writer.write(pairs(lengths, seed))
    return Store(folder, name)


def uneven(count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Lengths of pairs between 1 and 12."""
    generator = np.random.default_rng(seed)
    return [(int(one), int(other)) for one, other in generator.integers(1, 13, (count, 2))]


def whole(data: Store) -> Batch:
    """All pairs of a store as one update."""
    lengths = data.lengths()
    longest = lengths.max(0)
    return Batch(np.arange(len(data)), int(longest[0]), int(longest[1]), int(lengths[:, 1].sum()))


def trainer(net: Transformer, data: Store, process: Process = CPU, **keys: Any) -> Trainer:
    settings = Training(**{"max_steps": 10, "precision": "float32", "batch_tokens": 256, **keys})
    return Trainer(net, data, settings, BOS, process)


def progress(device_tokens: int = 1 << 20) -> Progress:
    return Progress(sums=dict(NO_SUMS), device_tokens=device_tokens)


def gradients(net: Transformer) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest difference of two sets of tensors, relative to the norm of the first."""
    assert one.keys() == other.keys()
    size = math.sqrt(sum(float(tensor.double().square().sum()) for tensor in one.values()))
    return max(float((one[name] - other[name]).abs().max()) for name in one) / size


class Table:
    """Steps whose logits are a function of the tokens so far: `logits_of(sentence, prefix)`; it keeps no cache."""

    def __init__(self, logits_of: Callable[[int, tuple[int, ...]], Tensor], sentences: int, beam_size: int) -> None:
        self.logits_of, self.count, self.beam_size = logits_of, sentences, beam_size
        self.sentences: list[int] = []
        self.prefixes: list[list[tuple[int, ...]]] = []
        self.steps = self.rows = self.most_slots = 0

    def resize(self, kept: Sequence[int], slots: int) -> None:
        empty = slots - len(kept)
        self.sentences = [self.sentences[slot] for slot in kept] + [-1] * empty
        self.prefixes = [self.prefixes[slot] for slot in kept] + [[()] * self.beam_size] * empty
        self.most_slots = max(self.most_slots, slots)

    def admit(self, slots: Sequence[int], numbers: Sequence[int]) -> None:
        for slot, number in zip(slots, numbers, strict=True):
            self.sentences[slot], self.prefixes[slot] = number, [()] * self.beam_size

    def leave(self, slot: int) -> None:
        self.sentences[slot] = -1

    def step(self, tokens: Tensor, rows: Tensor | None) -> Tensor:
        assert tokens.shape == (len(self.sentences), self.beam_size)
        living = range(tokens.numel()) if rows is None else rows.tolist()
        self.steps, self.rows = self.steps + 1, self.rows + len(living)
        grid = zip(self.prefixes, tokens.tolist(), strict=True)
        self.prefixes = [[(*prefix, token) for prefix, token in zip(*pair, strict=True)] for pair in grid]
        asked = [divmod(row, self.beam_size) for row in living]
        return torch.stack(
            [self.logits_of(self.sentences[slot], self.prefixes[slot][beam][1:]) for slot, beam in asked]
        )

    def reorder(self, parents: Tensor) -> None:
        self.prefixes = [
            [prefixes[parent] for parent in row] for prefixes, row in zip(self.prefixes, parents.tolist(), strict=True)
        ]


def random_table(vocabulary: int, seed: int, scale: float = 2.0) -> Callable[[int, tuple[int, ...]], Tensor]:
    """Random logits for each prefix, the same each time they are asked for."""
    known: dict[tuple[int, tuple[int, ...]], Tensor] = {}

    def logits_of(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        key = (sentence, prefix)
        if key not in known:
            number = hash((seed, sentence, *prefix)) % (1 << 63)
            generator = torch.Generator().manual_seed(number)
            known[key] = scale * torch.randn(vocabulary, dtype=torch.float64, generator=generator)
        return known[key]

    return logits_of


def every_output(
    logits_of: Callable[[tuple[int, ...]], Tensor], words: Sequence[int], eos: int, limit: int, penalty: LengthPenalty
) -> list[tuple[float, float, tuple[int, ...]]]:
    """(score, log-probability, tokens) of every output of 1 to `limit` words, best first."""
    found = []
    for length in range(1, limit + 1):
        divisor = float(penalty(torch.tensor(length + 1.0, dtype=torch.float64)))
        for tokens in itertools.product(words, repeat=length):
            total = sum(
                float(logits_of(tokens[:place]).log_softmax(-1)[token]) for place, token in enumerate((*tokens, eos))
            )
            found.append((total / divisor, total, tokens))
    return sorted(found, key=lambda item: (-item[0], item[2]))


def beam_search(
    steps: Steps, limits: Sequence[int], *, start: int, beam_size: int, rules: Rules, n_best: int = 1,
    penalty: LengthPenalty = PAPERS_PENALTY, room: Callable[[int], int] = lambda number: 1 << 30,
) -> Iterator[tuple[int, list[Hypothesis]]]:  # fmt: skip
    """Beam search over steps alone: number and hypotheses of each sentence, as it is done."""
    live = Live(beam_size, torch.device("cpu"))
    return search(steps, BeamSearch(live, n_best, penalty), live, limits, start=start, rules=rules, room=room)

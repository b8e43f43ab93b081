"""Outputs drawn at random: from the right distribution, the same for the same numbers, alone or among others."""

import math
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.tiny import Table, random_table
from transformer_mt.decode.sample import Sampling
from transformer_mt.decode.search import Hypothesis, LengthPenalty, Live, Rules, search

EOS, START = 3, 2
RULES = Rules(EOS, (0, 1, 2), min_length=0)


def uniform(lines: Sequence[int], samples: int, seed: int = 0):
    """Uniform numbers of (seed, line, step), for each sample."""

    def draws(numbers: Sequence[int], lengths: Sequence[int]) -> Tensor:
        rows = []
        for number, step in zip(numbers, lengths, strict=True):
            generator = torch.Generator().manual_seed(hash((seed, lines[number], step)) % (1 << 62))
            rows.append(torch.rand(samples, generator=generator, dtype=torch.float64))
        return torch.stack(rows)

    return draws


def drawn(logits_of, limits: list[int], samples: int, lines: Sequence[int] | None = None, room: int = 99, **keys):
    lines = lines if lines is not None else range(len(limits))
    table = Table(lambda s, p: logits_of(lines[s], p), len(limits), samples)
    live, rules = Live(samples, torch.device("cpu")), keys.pop("rules", RULES)
    numbers = uniform(lines, samples, keys.pop("seed", 0))
    strategy = Sampling(live, numbers, keys.pop("penalty", LengthPenalty("none")), **keys)
    found = dict(search(table, strategy, live, limits, start=START, rules=rules, room=lambda number: room))
    return [found[number] for number in range(len(limits))]


def first_tokens(found: list[Hypothesis]) -> Counter[int]:
    return Counter(item.tokens[0] if item.tokens else EOS for item in found)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, [0.1, 0.2, 0.3, 0.4]),
        ({"temperature": 0.5}, [0.01, 0.04, 0.09, 0.16]),
        ({"top_k": 2}, [0, 0, 0.3, 0.4]),
        ({"top_p": 0.65}, [0, 0, 0.3, 0.4]),
        ({"top_p": 0.71}, [0, 0.2, 0.3, 0.4]),
        ({"top_p": 0.001}, [0, 0, 0, 1]),
        ({"top_k": 3, "top_p": 0.5}, [0, 0, 0.3, 0.4]),
    ],
)
def test_shares_are_those_of_the_distribution(keys: dict, expected: list[float]) -> None:
    """Tokens 3 (`</s>`) to 6 with probabilities .1 to .4; what is forbidden has probability too, and never comes."""
    logits = torch.tensor([0.5, 0.5, 0.5, 0.1, 0.2, 0.3, 0.4]).log()
    count = 20_000
    found = first_tokens(drawn(lambda s, p: logits, [1], count, **keys)[0])
    total = sum(expected)
    for token, share in zip(range(3, 7), expected, strict=True):
        error = 4 * math.sqrt(max(share / total * (1 - share / total), 0) / count)
        assert abs(found[token] / count - share / total) <= error + 1e-9
    assert not found.keys() - set(range(3, 7))


def test_a_line_does_not_depend_on_its_neighbours() -> None:
    logits_of, lines = random_table(9, 1), [4, 0, 7, 2, 9]
    together = drawn(logits_of, [5, 9, 7, 3, 8], 3, lines)
    alone = [drawn(logits_of, [limit], 3, [line])[0] for line, limit in zip(lines, [5, 9, 7, 3, 8], strict=True)]
    assert together == alone == drawn(logits_of, [5, 9, 7, 3, 8], 3, lines, room=2)
    assert drawn(logits_of, [5, 9, 7, 3, 8], 3, lines, seed=1) != together


def test_scores_are_the_models_and_the_best_comes_first() -> None:
    logits_of, penalty = random_table(9, 2), LengthPenalty()
    for item in (found := drawn(logits_of, [6], 8, penalty=penalty, temperature=0.3, top_k=4)[0]):
        forced = [*item.tokens, EOS]
        total = sum(
            float(logits_of(0, item.tokens[:place]).log_softmax(-1)[token]) for place, token in enumerate(forced)
        )
        assert item.log_probability == pytest.approx(total, abs=1e-9)
        assert item.score == pytest.approx(total / ((5 + len(forced)) / 6) ** 0.6, abs=1e-9)
        assert len(item.tokens) <= 6
    assert [item.score for item in found] == sorted((item.score for item in found), reverse=True)


def test_rules_hold() -> None:
    rules = Rules(EOS, (0, 1, 2), min_length=3, no_repeat_ngram=1, prefixes=[(5,), ()])
    for sentence, found in enumerate(drawn(random_table(9, 3), [5, 4], 20, rules=rules)):
        for item in found:
            assert 3 <= len(item.tokens) <= (5, 4)[sentence] and len(set(item.tokens)) == len(item.tokens)
            assert sentence or item.tokens[0] == 5


def test_a_tiny_top_p_is_greedy_and_broken_scores_end() -> None:
    logits_of = random_table(9, 4)
    (item,) = drawn(logits_of, [6], 1, top_p=1e-9)[0]
    for place, token in enumerate(item.tokens):
        logits = logits_of(0, item.tokens[:place]).clone()
        logits[:3] = -torch.inf
        assert token == int(logits.argmax())
    assert drawn(lambda s, p: torch.full((9,), math.nan, dtype=torch.float64), [6], 1) == [[]]

"""Beam search for outputs that hold phrases, on tables of probabilities: equal to exhaustive search."""

import itertools
import random
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.tiny import Table, every_output, random_table
from transformer_mt.decode.constrained import ConstrainedBeamSearch, Phrase, Progress
from transformer_mt.decode.search import Hypothesis, LengthPenalty, Live, Rules
from transformer_mt.decode.search import search as run

EOS, START, WORDS, LIMIT = 3, 2, (4, 5, 6), 5
RULES = Rules(EOS, (0, 1, 2))
ALL = 3**LIMIT
"""Beams enough for all outputs."""


def search(
    table: Table, phrases: Sequence[Sequence[Phrase]], limits: Sequence[int], n_best: int = 1, **keys
) -> list[list[Hypothesis]]:
    live = Live(table.beam_size, torch.device("cpu"))
    strategy = ConstrainedBeamSearch(live, phrases, n_best, keys.pop("penalty", LengthPenalty()))
    found = dict(run(table, strategy, live, limits, start=START, rules=keys.pop("rules", RULES), **keys))
    return [found[number] for number in range(len(limits))]


def holds(tokens: tuple[int, ...], phrases: Sequence[Phrase], taken: frozenset[int] = frozenset()) -> bool:
    """Whether the phrases are all there, none of them in a place of another."""
    if not phrases:
        return True
    for way, begin in itertools.product(phrases[0], range(len(tokens))):
        places = frozenset(range(begin, begin + len(way)))
        here = tokens[begin : begin + len(way)] == way and not places & taken
        if here and holds(tokens, phrases[1:], taken | places):
            return True
    return False


def lacking(tokens: tuple[int, ...], phrases: Sequence[Phrase], most: int) -> int:
    """Fewest tokens that have to follow until the phrases are there."""
    for count in range(most):
        if any(holds((*tokens, *more), phrases) for more in itertools.product(WORDS, repeat=count)):
            return count
    return most


def drawn(generator: random.Random, count: int, longest: int) -> tuple[Phrase, ...]:
    def way() -> tuple[int, ...]:
        return tuple(generator.choices(WORDS, k=generator.randint(1, longest)))

    return tuple(tuple(dict.fromkeys(way() for _ in range(generator.randint(1, 2)))) for _ in range(count))


def test_progress_is_what_looking_at_the_whole_output_says() -> None:
    generator = random.Random(1)
    for _ in range(600):
        phrases = drawn(generator, generator.randint(1, 3), 3)
        tokens = tuple(generator.choices((*WORDS, 7), k=generator.randint(0, 8)))
        progress = Progress.start(phrases)
        for token in tokens:
            brings_further = token in progress.next_tokens()
            progress = progress.after(token if brings_further else None)
        assert (progress.needed == 0) == holds(tokens, phrases), (phrases, tokens)


def test_what_is_needed_is_the_fewest_tokens_that_do() -> None:
    generator = random.Random(2)
    for _ in range(60):
        phrases = drawn(generator, 2, 2)
        tokens = tuple(generator.choices(WORDS, k=generator.randint(0, 5)))
        progress = Progress.start(phrases)
        for token in tokens:
            progress = progress.after(token)
        assert progress.needed == lacking(tokens, phrases, 5), (phrases, tokens)
        if progress.needed:
            further = [progress.after(token).needed for token in progress.next_tokens()]
            assert min(further) == progress.needed - 1


def test_readings_do_not_pile_up() -> None:
    """Twelve phrases of the same words: what has all of another and more is enough."""
    progress = Progress.start(tuple((((4, 5),) if number % 2 else ((5, 4, 6),)) for number in range(12)))
    for token in (4, 5, 4, 6) * 10:
        progress = progress.after(token)
        assert len(progress.readings) < 30
    assert Progress.start([((4,),)] * 12).after(4).readings == {((((4,),),) * 11, ())}


PHRASES = {
    "one token": (((4,),),),
    "several tokens": (((4, 5, 5),),),
    "two phrases": (((4, 6),), ((5,),)),
    "the same twice": (((4, 5),), ((4, 5),)),
    "alternatives": (((4, 4, 4), (6, 5)), ((5,), (6, 6))),
    "one begins as the other": (((4, 5),), ((4,),)),
    "one within the other": (((4, 5, 6),), ((5,),)),
    "one ends as the other begins": (((4, 5),), ((5, 4),)),
    "begins again within itself": (((4, 4, 5),),),
    "as long as the limit": (((4, 5, 6),), ((6, 4),)),
}


@pytest.mark.parametrize("phrases", PHRASES.values(), ids=PHRASES)
@pytest.mark.parametrize("penalty", [LengthPenalty(), LengthPenalty("average")], ids=str)
def test_a_wide_beam_equals_exhaustive_search(phrases: tuple[Phrase, ...], penalty: LengthPenalty) -> None:
    for seed in range(2):
        logits_of = random_table(7, seed)
        found = search(Table(logits_of, 1, ALL), [phrases], [LIMIT], n_best=4, penalty=penalty)[0]
        every = every_output(partial(logits_of, 0), WORDS, EOS, LIMIT, penalty)
        best = [item for item in every if holds(item[2], phrases)][:4]
        assert [item.tokens for item in found] == [tokens for *_, tokens in best]
        assert [item.score for item in found] == pytest.approx([score for score, *_ in best], abs=1e-12)
        assert [item.log_probability for item in found] == pytest.approx([total for _, total, _ in best], abs=1e-12)


@pytest.mark.parametrize("beam_size", [1, 2, 5])
def test_phrases_are_held_within_the_limit_by_however_few_beams(beam_size: int) -> None:
    """Even where the limit leaves room for nothing else; and scores are those of forced decoding."""
    generator = random.Random(3)
    for seed in range(20):
        phrases = drawn(generator, generator.randint(1, 3), 3)
        least = Progress.start(phrases).needed
        limits = [least, least + 1, least + 4]
        logits_of = random_table(8, seed)
        for number, items in enumerate(search(Table(logits_of, 3, beam_size), [phrases] * 3, limits, n_best=beam_size)):
            assert items
            for item in items:
                assert holds(item.tokens, phrases) and len(item.tokens) <= limits[number]
                rows = [logits_of(number, item.tokens[:place]).log_softmax(-1) for place in range(len(item.tokens) + 1)]
                total = sum(float(row[token]) for row, token in zip(rows, (*item.tokens, EOS), strict=True))
                assert item.log_probability == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_model_that_wants_no_phrase_and_one_that_wants_no_end(beam_size: int) -> None:
    hates = torch.tensor([0, 0, 0, 9.0, -50, 5, 5], dtype=torch.float64)
    phrase = ((4, 4),)
    (item,) = search(Table(lambda s, p: hates, 1, beam_size), [[phrase]], [9], penalty=LengthPenalty("none"))[0]
    assert item.tokens == (4, 4)
    endless = torch.tensor([0, 0, 0, -torch.inf, 0, 5, 5], dtype=torch.float64)
    (item,) = search(Table(lambda s, p: endless, 1, beam_size), [[phrase]], [9])[0]
    assert len(item.tokens) == 9 and holds(item.tokens, [phrase])


def test_several_outputs_differ() -> None:
    items = search(Table(random_table(7, 4), 1, 6), [[((4,),), ((5, 6),)]], [7], n_best=6)[0]
    assert len({item.tokens for item in items}) == len(items) == 6
    scores = [item.score for item in items]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("phrase", "limit"), [(((1,),), 4), (((4, 2),), 4), (((4, 5, 6, 4),), 3)], ids=["forbidden", "in part", "too long"]
)
@pytest.mark.parametrize("beam_size", [1, 3])
def test_what_cannot_be_held_costs_neither_the_output_nor_an_end(phrase: Phrase, limit: int, beam_size: int) -> None:
    logits_of = random_table(7, 5)
    table = Table(logits_of, 2, beam_size)
    found = search(table, [[phrase], [((4,),)]], [limit, 5])
    assert len(found[0]) == 1 and len(found[0][0].tokens) == limit
    assert table.steps <= 6
    alone = search(Table(lambda s, p: logits_of(1, p), 1, beam_size), [[((4,),)]], [5])
    assert alone[0] == found[1]


def test_impossible_phrases_do_not_spoil_what_holds_them() -> None:
    """A model that can say the phrase at the beginning alone: later on nothing without it is taken for an output."""

    def logits_of(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        row = torch.tensor([0.0, 0, 0, 1, 0, 3, 3], dtype=torch.float64)
        row[4] = -6.0 if not prefix else -torch.inf
        return row

    (item,) = search(Table(logits_of, 1, 4), [[((4,),)]], [9], penalty=LengthPenalty("none"))[0]
    assert item.tokens == (4,)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_sentences_together_equal_each_alone(beam_size: int) -> None:
    generator, logits_of = random.Random(6), random_table(8, 6)
    phrases = [drawn(generator, count, 2) for count in (1, 0, 3, 2, 1, 2)]
    limits = [6, 4, 9, 5, 12, 7]
    together = search(Table(logits_of, 6, beam_size), phrases, limits, beam_size, room=lambda number: 3)
    for number, limit in enumerate(limits):
        alone = Table(lambda s, prefix, n=number: logits_of(n, prefix), 1, beam_size)
        assert search(alone, [phrases[number]], [limit], beam_size) == [together[number]]


def test_a_prefix_and_a_phrase() -> None:
    rules = Rules(EOS, (0, 1, 2), prefixes=[(5, 4)])
    for beam_size in (1, 3):
        (item,) = search(Table(random_table(7, 8), 1, beam_size), [[((4, 6),)]], [4], rules=rules)[0]
        assert item.tokens[:2] == (5, 4) and holds(item.tokens, [((4, 6),)])


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_logits_that_are_no_numbers_end_the_search_of_that_sentence_alone(value: float) -> None:
    good, bad = random_table(8, 9), torch.full((8,), value, dtype=torch.float64)
    table = Table(lambda s, prefix: bad if s == 0 else good(s, prefix), 2, 3)
    found = search(table, [[((4,),)]] * 2, [50, 5])
    assert found[0] == [] and holds(found[1][0].tokens, [((4,),)])
    assert table.steps <= 7

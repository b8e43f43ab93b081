"""Beam search on tables of probabilities (fidelity item 12: GNMT's form, alpha 0.6; beam = exhaustive)."""

import itertools
import math
from functools import partial

import pytest
import torch

from tests.tiny import Table, beam_search, every_output, random_table
from transformer_mt.config import Decoding
from transformer_mt.decode.beam import top
from transformer_mt.decode.search import Hypothesis, LengthPenalty, Rules

EOS, START, FORBIDDEN = 3, 2, (0, 1, 2)
PENALTIES = [
    LengthPenalty("none"),
    LengthPenalty("average"),
    *(LengthPenalty(form, alpha) for form in ("power", "gnmt") for alpha in (0.6, 0.0, 1.0, 1.7, -0.5)),
]


def search(table: Table, limits: list[int], **keys) -> list[list[Hypothesis]]:
    ruled = {key: keys.pop(key) for key in ("forbidden", "min_length", "no_repeat_ngram", "prefixes") if key in keys}
    rules = Rules(**{"eos": EOS, "forbidden": FORBIDDEN, **ruled})
    options = {"start": START, "beam_size": table.beam_size, **keys}
    found = dict(beam_search(table, limits, rules=rules, **options))
    return [found[number] for number in range(len(limits))]


def constant(logits: list[float]) -> Table:
    """The same probabilities whatever went before; one sentence, beam 4."""
    row = torch.tensor(logits, dtype=torch.float64)
    return Table(lambda sentence, prefix: row, 1, 4)


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
@pytest.mark.parametrize("n_best", [1, 4])
def test_item_12_beam_equals_exhaustive_search(penalty: LengthPenalty, n_best: int) -> None:
    words, limits = (4, 5), [4, 1, 2]
    for seed in range(3):
        logits_of = random_table(6, seed)
        found = search(Table(logits_of, 3, 16), limits, penalty=penalty, n_best=n_best)
        for number, limit in enumerate(limits):
            best = every_output(partial(logits_of, number), words, EOS, limit, penalty)
            assert [item.tokens for item in found[number]] == [tokens for _, _, tokens in best[:n_best]]
            for item, (score, total, _) in zip(found[number], best, strict=False):
                assert item.score == pytest.approx(score, abs=1e-12)
                assert item.log_probability == pytest.approx(total, abs=1e-12)


def test_item_12_defaults_are_the_papers() -> None:
    assert LengthPenalty() == LengthPenalty("gnmt", 0.6)
    settings = Decoding()
    assert (settings.beam_size, settings.length_penalty.form, settings.length_penalty.alpha) == (4, "gnmt", 0.6)
    assert (settings.max_length.factor, settings.max_length.extra) == (1.0, 50)
    assert float(LengthPenalty()(torch.tensor(7.0))) == pytest.approx(2**0.6)


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
@pytest.mark.parametrize("min_length", [0, 1, 3])
def test_a_printed_score_is_the_formula_and_counts_the_end(penalty: LengthPenalty, min_length: int) -> None:
    for item in search(Table(random_table(9, 5), 1, 3), [8], penalty=penalty, n_best=3, min_length=min_length)[0]:
        assert len(item.tokens) >= min_length
        divisor = float(penalty(torch.tensor(len(item.tokens) + 1.0, dtype=torch.float64)))
        assert item.score == pytest.approx(item.log_probability / divisor, abs=1e-14)


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
def test_the_stop_rule_is_exact(penalty: LengthPenalty) -> None:
    """Never too early: the same outputs as without stopping. And in time: at the first step the bound allows."""
    for seed in range(6):
        logits_of = random_table(6, seed, scale=1.5)
        for n_best in (1, 2):
            stopping = Table(logits_of, 1, 2)
            found = search(stopping, [7], penalty=penalty, n_best=n_best)[0]
            expected, steps = _to_the_end(logits_of, 7, 2, n_best, penalty)
            assert [item.tokens for item in found] == expected
            assert stopping.steps == steps


def _to_the_end(logits_of, limit: int, beam: int, n_best: int, penalty: LengthPenalty):
    """A plain beam search that goes to the limit; and the first step at which the rest could not matter any more."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[tuple[float, tuple[int, ...]]] = []
    decided = None
    for length in range(limit + 1):
        candidates = []
        for total, prefix in live:
            row = logits_of(0, prefix).log_softmax(-1).tolist()
            for token in range(3, len(row)):
                if (token == EOS and (length > 0 or limit == 0)) or (token != EOS and length < limit):
                    candidates.append((total + row[token], (*prefix, token)))
        candidates.sort(key=lambda item: -item[0])
        candidates = candidates[: 2 * beam]
        score = float(penalty(torch.tensor(length + 1.0, dtype=torch.float64)))
        finished += [(total / score, tokens[:-1]) for total, tokens in candidates if tokens[-1] == EOS]
        finished.sort(key=lambda item: -item[0])
        live = [item for item in candidates if item[1][-1] != EOS][:beam]
        ends = [float(penalty(torch.tensor(n, dtype=torch.float64))) for n in (length + 2.0, limit + 1.0)]
        worst = finished[n_best - 1][0] if len(finished) >= n_best else -math.inf
        if decided is None and (not live or max(live[0][0] / end for end in ends) <= worst):
            decided = length + 1
    return [tokens for _, tokens in finished[:n_best]], decided


def test_a_sure_ending_stops_the_search_at_once() -> None:
    logits = [-9, -9, -9, 9.0, 0, 0, 0]
    for penalty, min_length, steps in ((LengthPenalty(), 0, 1), (LengthPenalty("none"), 1, 2)):
        table = constant(logits)
        assert len(search(table, [500], penalty=penalty, min_length=min_length)[0][0].tokens) == min_length
        assert table.steps == steps


def test_equal_scores_go_to_the_lower_beam_then_the_lower_id() -> None:
    table = constant([0.0] * 8)
    found = search(table, [2], n_best=4, penalty=LengthPenalty("none"))[0]
    assert [item.tokens for item in found] == [(4,), (5,), (4, 4), (4, 5)]
    found = search(constant([0.0] * 8), [2], n_best=4, min_length=2, penalty=LengthPenalty("none"))[0]
    assert [item.tokens for item in found] == [(4, 4), (4, 5), (4, 6), (4, 7)]


def test_top_equals_a_stable_sort() -> None:
    generator = torch.Generator().manual_seed(0)
    for levels, width, count in itertools.product((1, 2, 5, 1000), (1, 3, 8, 50, 128, 1000), (1, 2, 7, 9)):
        scores = torch.randint(levels, (6, width), generator=generator).double()
        scores[0] = -torch.inf
        values, indices = top(scores, count)
        ordered = scores.sort(dim=1, descending=True, stable=True)
        assert torch.equal(values, ordered.values[:, :count])
        assert torch.equal(indices[1:], ordered.indices[1:, :count])
        assert all(len(set(row)) == len(row) for row in indices[1:].tolist())


@pytest.mark.parametrize("unwanted", FORBIDDEN)
@pytest.mark.parametrize("beam_size", [1, 4])
def test_forbidden_ids_are_never_produced(unwanted: int, beam_size: int) -> None:
    logits = torch.zeros(8, dtype=torch.float64)
    logits[unwanted] = 100.0
    found = search(Table(lambda sentence, prefix: logits, 1, beam_size), [4], n_best=beam_size)[0]
    assert found and all(item.tokens and not set(item.tokens) & set(FORBIDDEN) for item in found)
    assert found[0].log_probability < -100  # a forbidden id keeps its probability: scores are the model's


@pytest.mark.parametrize("beam_size", [1, 4])
def test_no_output_is_empty_unless_it_may_be(beam_size: int) -> None:
    logits = torch.tensor([0.0, 0, 0, 100, 0, 0], dtype=torch.float64)
    assert len(search(Table(lambda s, p: logits, 1, beam_size), [4])[0][0].tokens) == 1
    assert search(Table(lambda s, p: logits, 1, beam_size), [4], min_length=0)[0][0].tokens == ()
    assert len(search(Table(lambda s, p: logits, 1, beam_size), [2], min_length=9)[0][0].tokens) == 2


def test_beam_one_is_greedy() -> None:
    for seed in range(20):
        logits_of = random_table(9, seed)
        tokens: list[int] = []
        while len(tokens) < 12:
            row = logits_of(0, tuple(tokens)).clone()
            row[list(FORBIDDEN) + ([EOS] if not tokens else [])] = -torch.inf
            if int(row.argmax()) == EOS:
                break
            tokens.append(int(row.argmax()))
        table = Table(logits_of, 1, 1)
        assert search(table, [12])[0][0].tokens == tuple(tokens)
        assert table.steps == len(tokens) + 1


@pytest.mark.parametrize("n_best", [1, 20])
def test_a_beam_larger_than_the_vocabulary(n_best: int) -> None:
    found = search(Table(random_table(12, 0), 2, 20), [6, 3], n_best=n_best)
    assert [len(items) for items in found] == [n_best, n_best]
    # There may be fewer outputs than are wanted: of one word, once or twice.
    found = search(Table(random_table(5, 0), 1, 20), [2], n_best=20)
    assert sorted(item.tokens for item in found[0]) == [(4,), (4, 4)]


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_logits_that_are_no_numbers_end_the_search_of_that_sentence_alone(value: float, beam_size: int) -> None:
    good = random_table(9, 1)
    bad = torch.full((9,), value, dtype=torch.float64)
    table = Table(lambda sentence, prefix: bad if sentence == 1 else good(sentence, prefix), 3, beam_size)
    found = search(table, [6, 1000, 6])
    assert table.steps < 10
    assert not any(math.isnan(item.score) for items in found for item in items)
    alone = Table(lambda sentence, prefix: good(2 * sentence, prefix), 2, beam_size)
    assert [found[0], found[2]] == search(alone, [6, 6])


def test_one_broken_hypothesis_does_not_win_over_the_others() -> None:
    logits_of = random_table(9, 3)
    broken = search(Table(logits_of, 1, 3), [6])[0][0].tokens[:1]
    nan = torch.full((9,), math.nan, dtype=torch.float64)
    found = search(Table(lambda s, prefix: nan if prefix[:1] == broken else logits_of(s, prefix), 1, 3), [6], n_best=3)[
        0
    ]
    assert len(found) == 3 and all(item.tokens[:1] != broken and math.isfinite(item.score) for item in found)


def test_a_model_without_an_end_reaches_the_limit_and_says_so() -> None:
    logits = torch.tensor([0.0, 0, 0, -math.inf, 1, 0], dtype=torch.float64)
    found = search(Table(lambda s, p: logits, 1, 2), [5])[0][0]
    assert found.tokens == (4,) * 5 and found.log_probability <= -1e29


def test_limit_zero_gives_the_empty_output() -> None:
    assert search(Table(random_table(9, 0), 2, 2), [0, 2])[0][0].tokens == ()


def test_no_sentences() -> None:
    assert search(Table(random_table(9, 0), 0, 2), []) == []


def test_a_sentence_is_searched_alike_alone_and_among_others() -> None:
    logits_of = random_table(10, 7)
    limits = [5, 12, 1, 30, 8, 3]
    together = search(Table(logits_of, 6, 4), limits, n_best=4)
    for number, limit in enumerate(limits):
        alone = search(Table(lambda s, prefix, n=number: logits_of(n, prefix), 1, 4), [limit], n_best=4)
        assert alone == [together[number]]


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("gram", [1, 2, 3])
def test_no_ngram_comes_twice(gram: int, beam_size: int) -> None:
    """A model in love with one token; without the rule it says nothing else."""
    logits = torch.tensor([0, 0, 0, 0, 8, 7, 1, 1.0])
    table = lambda: Table(lambda s, p: logits, 1, beam_size)  # noqa: E731
    for item in search(table(), [6], no_repeat_ngram=gram, min_length=4)[0]:
        grams = [item.tokens[place : place + gram] for place in range(len(item.tokens) - gram + 1)]
        assert len(set(grams)) == len(grams) >= 4 - gram + 1
    assert len(set(search(table(), [6], min_length=4)[0][0].tokens)) == 1


def test_ngram_blocking_equals_exhaustive_search() -> None:
    logits_of = random_table(7, 3)
    words = (4, 5, 6)
    allowed = [
        item
        for item in every_output(partial(logits_of, 0), words, EOS, 4, LengthPenalty())
        if len({item[2][place : place + 2] for place in range(len(item[2]) - 1)}) == max(0, len(item[2]) - 1)
    ]
    found = search(Table(logits_of, 1, 81), [4], no_repeat_ngram=2, n_best=5)[0]
    assert [item.tokens for item in found] == [tokens for _, _, tokens in allowed[:5]]


@pytest.mark.parametrize("beam_size", [1, 3, 81])
def test_a_prefix_is_kept_and_costs_what_the_model_says(beam_size: int) -> None:
    """Even one of forbidden tokens, and one as long as the limit; a free neighbour is not touched."""
    logits_of, penalty = random_table(7, 5), LengthPenalty()
    prefixes = [(5, 1), (), (6, 6, 6, 6)]
    found = search(Table(logits_of, 3, beam_size), [4, 4, 4], prefixes=prefixes, penalty=penalty)
    free = search(Table(lambda s, p: logits_of(1, p), 1, beam_size), [4], penalty=penalty)
    assert found[1] == free[0]
    for sentence, prefix in ((0, (5, 1)), (2, (6, 6, 6, 6))):
        best = found[sentence][0]
        assert best.tokens[: len(prefix)] == prefix
        forced = [*best.tokens, EOS]
        total = sum(
            float(logits_of(sentence, best.tokens[:place]).log_softmax(-1)[token]) for place, token in enumerate(forced)
        )
        assert best.log_probability == pytest.approx(total, abs=1e-9)
    if beam_size == 81:
        every = every_output(partial(logits_of, 0), range(1, 7), EOS, 4, penalty)
        legal = [t for *_, t in every if t[:2] == (5, 1) and not {1, 2, 3} & set(t[2:])]
        assert found[0][0].tokens == legal[0]

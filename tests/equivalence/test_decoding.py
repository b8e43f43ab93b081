"""Decoding step by step equals decoding at once, and sentences searched together equal each alone."""

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import tiny
from transformer_mt.data.tokenizer import BOS, EOS, PAD, UNK
from transformer_mt.decode.beam import Hypothesis, LengthPenalty, Rules, beam_search
from transformer_mt.model.transformer import Decoding, Transformer

RULES = Rules(EOS, (PAD, UNK, BOS))
KINDS = pytest.mark.parametrize(
    "keys",
    [
        {},
        {"norm": "pre", "positions": "learned", "max_positions": 64},
        {"positions": "rotary", "attention_bias": True},
        {"key_size": 2, "value_size": 6, "activation": "swiglu", "output_bias": True, "tie_embeddings": "none"},
        {"encoder_layers": 1, "decoder_layers": 3, "tie_embeddings": "decoder"},
    ],
    ids=["paper", "pre-norm learned", "rotary", "sizes apart", "depths apart"],
)


def lively(seed: int = 0, **keys) -> Transformer:
    """A model whose probabilities differ much from step to step, without being trained."""
    net = tiny.model(seed=seed, **keys)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.5).add_(0.2 * torch.randn_like(parameter))
    return net


def sources(count: int, seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [tiny.ids(generator, int(length)) for length in generator.integers(1, 15, count)]


def padded(rows: list[list[int]]) -> Tensor:
    longest = max(map(len, rows)) + 1
    return torch.tensor([[*row, EOS] + [PAD] * (longest - 1 - len(row)) for row in rows])


@torch.no_grad()
def search(net: Transformer, rows: list[list[int]], beam_size: int = 4, **keys) -> list[list[Hypothesis]]:
    limits = torch.tensor([len(row) + 8 for row in rows])
    options = {"start": BOS, "rules": RULES, "beam_size": beam_size, **keys}
    return beam_search(Decoding(net, padded(rows)), limits, **options)


@KINDS
@torch.no_grad()
def test_cached_steps_equal_the_whole_sequence(keys: dict[str, object]) -> None:
    """40 steps, so that the buffers grow; beams change places, and sentences leave, at every few steps."""
    net = lively(**keys)
    rows, beams = sources(5), 3
    generator = torch.Generator().manual_seed(1)
    state, numbers = Decoding(net, padded(rows)), torch.arange(5)
    prefixes = torch.full((5 * beams, 1), BOS)
    for step in range(40):
        cached = state.step(prefixes[:, -1])
        source = padded(rows)[numbers].repeat_interleave(beams, 0)
        torch.testing.assert_close(cached, net.logits(net(source, prefixes)[:, -1]), rtol=1e-9, atol=1e-9)
        order = torch.randint(beams, (len(numbers), beams), generator=generator)
        stays = torch.arange(len(numbers))
        if step in (7, 20, 33):
            stays = stays[stays != step % len(numbers)]
        places = (torch.arange(len(numbers))[:, None] * beams + order)[stays].flatten()
        if step % 3:
            places = (stays[:, None] * beams + torch.arange(beams)).flatten()
        leaves = len(stays) < len(numbers)
        state.select(None if not leaves and step % 3 else places, stays if leaves else None)
        numbers, prefixes = numbers[stays], prefixes[places]
        new = torch.randint(4, tiny.VOCABULARY, (len(prefixes), 1), generator=generator)
        prefixes = torch.cat([prefixes, new], 1)
    assert len(numbers) == 2


@KINDS
@pytest.mark.parametrize("beam_size", [1, 4])
def test_sentences_together_equal_each_alone(keys: dict[str, object], beam_size: int) -> None:
    net, rows = lively(**keys), sources(9)
    together = search(net, rows, beam_size, n_best=beam_size)
    assert len({len(items[0].tokens) for items in together}) > 2
    for row, items in zip(rows, together, strict=True):
        (alone,) = search(net, [row], beam_size, n_best=beam_size)
        assert [item.tokens for item in alone] == [item.tokens for item in items]
        assert [item.score for item in alone] == pytest.approx([item.score for item in items], abs=1e-9)


def test_in_float32_scores_agree_and_texts_differ_only_where_scores_do_not() -> None:
    net, rows = lively().float(), sources(20)
    for row, items in zip(rows, search(net, rows), strict=True):
        (alone,) = search(net, [row])
        assert alone[0].score == pytest.approx(items[0].score, abs=1e-4)


@KINDS
@pytest.mark.parametrize("penalty", [LengthPenalty(), LengthPenalty("average"), LengthPenalty("none")], ids=str)
@torch.no_grad()
def test_a_score_is_what_forced_decoding_gives(keys: dict[str, object], penalty: LengthPenalty) -> None:
    net, rows = lively(**keys), sources(6)
    for row, items in zip(rows, search(net, rows, n_best=4, penalty=penalty), strict=True):
        for item in items:
            target_input, labels = torch.tensor([[BOS, *item.tokens]]), torch.tensor([*item.tokens, EOS])
            found = net.logits(net(padded([row]), target_input)[0]).log_softmax(-1)
            total = found.gather(1, labels[:, None]).sum().item()
            assert item.log_probability == pytest.approx(total, abs=1e-9)
            divisor = float(penalty(torch.tensor(float(len(labels)), dtype=torch.float64)))
            assert item.score == pytest.approx(total / divisor, abs=1e-9)


@torch.no_grad()
def test_beam_one_is_the_greedy_path() -> None:
    net = lively()
    for row, items in zip(sources(6), search(net, sources(6), 1), strict=True):
        tokens = [BOS]
        while len(tokens) <= len(row) + 8:
            logits = net.logits(net(padded([row]), torch.tensor([tokens]))[0, -1])
            logits[[PAD, UNK, BOS] + ([EOS] if len(tokens) == 1 else [])] = -torch.inf
            if int(logits.argmax()) == EOS:
                break
            tokens.append(int(logits.argmax()))
        assert items[0].tokens == tuple(tokens[1:])


@torch.no_grad()
def test_memory_of_the_source_is_not_copied_per_beam() -> None:
    state = Decoding(lively(), padded(sources(3)))
    state.step(torch.full((3 * 50,), BOS))
    for cache in state.caches:
        assert cache.memory.keys.shape[0] == 3
        assert cache.past is not None and cache.past.keys.shape[0] == 150


@torch.no_grad()
def test_rows_leave_the_model_with_their_sentences() -> None:
    net, rows = lively(), sources(12)
    counts: list[int] = []
    original = Decoding.step

    class Counting(Decoding):
        def step(self, tokens: Tensor) -> Tensor:
            counts.append(len(tokens))
            assert len(self.caches[0].memory.keys) * 4 == len(tokens)
            return original(self, tokens)

    limits = torch.tensor([len(row) + 8 for row in rows])
    options = {"start": BOS, "rules": RULES, "beam_size": 4}
    beam_search(Counting(net, padded(rows)), limits, **options)
    assert counts == sorted(counts, reverse=True) and counts[-1] < counts[0]
    together, alone = sum(counts), 0
    for row in rows:
        state = Counting(net, padded([row]))
        beam_search(state, torch.tensor([len(row) + 8]), **options)
        alone += 4 * state.position
    assert together == alone


@pytest.mark.parametrize("unwanted", [PAD, UNK, BOS])
def test_specials_are_never_produced_however_likely(unwanted: int) -> None:
    net = lively(output_bias=True)
    with torch.no_grad():
        net.output_bias[unwanted] = 100.0
    for items in search(net, sources(4), n_best=4):
        assert all(item.tokens and min(item.tokens) > EOS for item in items)


def test_weights_that_are_no_numbers_give_no_hypotheses() -> None:
    net = lively()
    with torch.no_grad():
        next(net.decoder.parameters()).fill_(torch.nan)
    assert search(net, sources(3)) == [[], [], []]

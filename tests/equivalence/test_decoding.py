"""Decoding step by step equals decoding at once, and sentences searched together equal each alone."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import tiny
from tests.tiny import beam_search
from transformer_mt.data.tokenizer import BOS, EOS, PAD, UNK
from transformer_mt.decode.models import ModelSteps
from transformer_mt.decode.search import Hypothesis, LengthPenalty, Rules
from transformer_mt.model.recorded import RecordedStepDecoder
from transformer_mt.model.stepwise import StepDecoder
from transformer_mt.model.transformer import Transformer

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
    options = {"start": BOS, "rules": RULES, "beam_size": beam_size, **keys}
    steps = ModelSteps([net], [[*row, EOS] for row in rows], beam_size)
    found = dict(beam_search(steps, [len(row) + 8 for row in rows], **options))
    return [found[number] for number in range(len(rows))]


class Recordings:
    """Stands in for CUDA graphs: a recording sees the memory that it was made on, and nothing else."""

    def __init__(self) -> None:
        self.made = self.repeated = 0

    def __call__(self, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        self.made += 1
        state = cast(RecordedStepDecoder, cast(Any, work).__self__)
        memory, results, longest = self.memory(state), [torch.zeros(0)], state.longest

        def repeat() -> Tensor:
            assert self.memory(state) == memory
            self.repeated += 1
            results[0].fill_(torch.nan)  # what the last repetition gave is overwritten
            now, state.longest = state.longest, longest  # sizes are those of the recording
            results[0] = work()
            state.longest = now
            return results[0]

        return repeat

    @staticmethod
    def memory(state: RecordedStepDecoder) -> list[tuple[int, torch.Size]]:
        tensors = [part for part in vars(state).values() if isinstance(part, Tensor)]
        tensors += [part for layer in state.layers for part in (*layer.cells, *layer.source)]
        return [(part.data_ptr(), part.shape) for part in tensors]


@KINDS
@pytest.mark.parametrize("recorded", [False, True], ids=["", "recorded"])
@torch.no_grad()
def test_cached_steps_equal_the_whole_sequence(keys: dict[str, object], recorded: bool) -> None:
    """60 steps: beams change places and die, sentences leave, others take their slots, slots become fewer and more."""
    net, rows, beams = lively(**keys), sources(12), 3
    generator = torch.Generator().manual_seed(1)
    recordings = Recordings()
    state = RecordedStepDecoder(net, beams, recordings) if recorded else StepDecoder(net, beams)
    waiting = list(range(12))
    inside: list[int] = []
    prefixes: list[Tensor] = []

    def let_in(slots: list[int]) -> None:
        numbers = [waiting.pop(0) for _ in slots]
        state.admit(slots, padded([rows[number] for number in numbers]))
        for slot, number in zip(slots, numbers, strict=True):
            inside[slot], prefixes[slot] = number, torch.full((beams, 1), BOS)

    def resize(kept: list[int], slots: int) -> None:
        state.resize(kept, slots)
        inside[:] = [inside[slot] for slot in kept] + [-1] * (slots - len(kept))
        prefixes[:] = [prefixes[slot] for slot in kept] + [torch.full((beams, 1), BOS)] * (slots - len(kept))

    resize([], 4)
    let_in([0, 1, 2, 3])
    for step in range(60):
        alive = torch.rand(len(inside), beams, generator=generator) < (0.7 if step % 3 else 1.1)
        alive[[slot for slot, number in enumerate(inside) if number < 0]] = False
        flat = alive.flatten().nonzero()[:, 0]
        tokens = torch.stack([prefix[:, -1] for prefix in prefixes])
        cached = state.step(tokens, None if alive.all() else flat)
        for row, place in enumerate(flat.tolist()):
            slot, beam = divmod(place, beams)
            whole = net.logits(net(padded([rows[inside[slot]]]), prefixes[slot][beam : beam + 1])[0, -1])
            torch.testing.assert_close(cached[row], whole, rtol=1e-9, atol=1e-9)
        # A beam that was not computed has no past, so that none may continue it.
        parents = torch.zeros(len(inside), beams, dtype=torch.long)
        for slot, living in enumerate(alive):
            able = living.nonzero()[:, 0] if living.any() else torch.zeros(1, dtype=torch.long)
            parents[slot] = able[torch.randint(len(able), (beams,), generator=generator)]
        state.reorder(parents)
        new = torch.randint(4, tiny.VOCABULARY, (len(inside), beams, 1), generator=generator)
        for slot, chosen in enumerate(parents):
            prefixes[slot] = torch.cat([prefixes[slot][chosen], new[slot]], 1)
            if not alive[slot].any() and inside[slot] >= 0:
                waiting.append(inside[slot])  # it cannot go on: it begins anew, later
                inside[slot] = -1
        if step in (11, 25, 40):
            resize([slot for slot, number in enumerate(inside) if number >= 0][:: 1 if step == 40 else 2], 6)
        free = [slot for slot, number in enumerate(inside) if number < 0]
        if step % 5 == 4 and free and waiting:
            let_in(free[: len(waiting)])
    assert max(prefix.shape[1] for prefix in prefixes) > 15
    assert not recorded or (recordings.made >= 3 and recordings.repeated >= 40)


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
def test_memory_of_the_source_is_not_copied_per_beam_and_pasts_are_shared() -> None:
    """50 beams that all continue one: after 100 steps there is one cell for each token that they share."""
    state, beams = StepDecoder(lively(), 50), 50
    state.resize([], 3)
    state.admit([0, 1, 2], padded(sources(3)))
    for _ in range(100):
        state.step(torch.full((3, beams), BOS), None)
        state.reorder(torch.zeros(3, beams, dtype=torch.long))
    for layer in state.layers:
        assert all(part.shape[0] == 3 for part in (*layer.source, *layer.cells))
        assert layer.cells[0].shape[2] <= 100 + 8 * beams


@torch.no_grad()
def test_rows_leave_the_model_as_soon_as_they_cannot_win() -> None:
    """And nothing is computed for a sentence beside others that is not computed for it alone."""
    net, rows = lively(), sources(12)
    counts: list[int] = []

    class Counting(ModelSteps):
        def step(self, tokens: Tensor, rows: Tensor | None) -> Tensor:
            counts.append(tokens.numel() if rows is None else len(rows))
            return super().step(tokens, rows)

    def counted(*rows: list[int]) -> list[int]:
        counts.clear()
        steps = Counting([net], [[*row, EOS] for row in rows], 4)
        for _ in beam_search(steps, [len(row) + 8 for row in rows], start=BOS, rules=RULES, beam_size=4):
            pass
        return counts.copy()

    together, alone = counted(*rows), [counted(row) for row in rows]
    assert sum(together) == sum(map(sum, alone))
    assert together[0] == 12 and max(together) <= 48  # all beams begin alike: one is enough
    assert sum(map(sum, alone)) < 0.95 * sum(4 * len(steps) for steps in alone)


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

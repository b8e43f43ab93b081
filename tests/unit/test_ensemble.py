"""Several models that speak with one voice: the mean of their probabilities, in search, sampling and scores."""

import dataclasses

import pytest
import torch
from torch import Tensor

from tests import tiny
from tests.unit.test_translator import LINES, learned, translator
from transformer_mt.data.tokenizer import BOS, EOS, Tokenizer
from transformer_mt.decode.models import ModelSteps, mean_of
from transformer_mt.decode.translator import Translator
from transformer_mt.model.transformer import Transformer

MODELS = [{}, {"norm": "pre", "decoder_layers": 2}, {"positions": "rotary", "model_size": 24}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return learned(tmp_path_factory.mktemp("tokenizer"))


def together(*members: Translator, **keys) -> Translator:
    settings = members[0].settings.model_copy(update=keys)
    return Translator([member.models[0] for member in members], members[0].tokenizer, settings)


def several(tokenizer: Tokenizer, **keys) -> list[Translator]:
    found = [translator(tokenizer, model, **keys) for model in MODELS]
    for seed, member in enumerate(found):
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in member.models[0].eval().parameters():
                parameter.mul_(1.5).add_(0.2 * torch.randn_like(parameter))
    return found


@torch.no_grad()
def shares(model: Transformer, source: list[int], given: list[int]) -> Tensor:
    """Probabilities after each of the given tokens, by the whole model at once: (T, V)."""
    return model.logits(model(torch.tensor([[*source, EOS]]), torch.tensor([[BOS, *given]]))[0]).softmax(-1)


def test_the_mean_of_probabilities() -> None:
    logits = [torch.tensor([[0.0, 1.0, -torch.inf]]), torch.tensor([[3.0, 0.0, 0.0]])]
    expected = (logits[0].softmax(-1) + logits[1].softmax(-1)) / 2
    torch.testing.assert_close(mean_of(logits).exp(), expected)
    assert mean_of([each.bfloat16() for each in logits]).dtype == torch.float32


@torch.no_grad()
def test_each_step_is_the_mean_over_models_while_beams_change_and_sentences_leave() -> None:
    nets = [tiny.model(seed=1), tiny.model(seed=2, norm="pre", decoder_layers=1), tiny.model(seed=3, model_size=32)]
    sources, generator = [[5, 6, 7], [8] * 9, [9, 4]], torch.Generator().manual_seed(0)
    steps = ModelSteps(nets, [[*source, EOS] for source in sources], 2)
    steps.resize([], 2)
    steps.admit([0, 1], [0, 1])
    inside, pasts = [0, 1], [[[], []], [[], []]]
    for step in range(14):
        if step == 5:
            steps.leave(0)
            steps.admit([0], [2])
            inside[0], pasts[0] = 2, [[], []]
        if step == 9:
            steps.resize([1], 1)
            inside, pasts = inside[1:], pasts[1:]
        tokens = torch.tensor([[past[-1] if past else BOS for past in beams] for beams in pasts])
        rows = torch.arange(1, tokens.numel()) if step % 3 == 2 else None
        living = range(tokens.numel()) if rows is None else rows.tolist()
        found = steps.step(tokens, rows).softmax(-1)
        for row, place in enumerate(living):
            slot, beam = divmod(place, 2)
            expected = sum(shares(net, sources[inside[slot]], pasts[slot][beam])[-1] for net in nets) / 3
            torch.testing.assert_close(found[row], expected, rtol=1e-9, atol=1e-9)
        parents = torch.randint(2, tokens.shape, generator=generator)
        parents[0, :] = torch.where(torch.tensor(rows is not None), torch.ones(2, dtype=torch.long), parents[0])
        steps.reorder(parents)
        new = torch.randint(4, tiny.VOCABULARY, tokens.shape, generator=generator).tolist()
        pasts = [
            [[*beams[parent], token] for parent, token in zip(chosen, added, strict=True)]
            for beams, chosen, added in zip(pasts, parents.tolist(), new, strict=True)
        ]


def test_scores_are_forced_decoding_of_the_mean_and_searches_find_the_same(tokenizer: Tokenizer) -> None:
    members = several(tokenizer, beam_size=3, n_best=3)
    ours, alone = together(*members), [member.translate(LINES) for member in members]
    found = ours.translate(LINES)
    assert len({tuple(line.text for line in each) for each in (found, *alone)}) == 4
    texts = [line.text for line in found]
    scored = ours.score(LINES, texts)
    for source, text, line, forced in zip(LINES, texts, found, scored, strict=True):
        ids, target = tokenizer.encode_source([source])[0], tokenizer.encode_target([text])[0]
        assert forced.length == (len(target) + 1 if ids else 0)
        if ids:
            mean = sum(shares(member.models[0], ids, target) for member in members) / 3
            total = float(mean.log().gather(1, torch.tensor([*target, EOS])[:, None]).sum())
            assert forced.log_probability == pytest.approx(total, abs=1e-9)
            if forced.length == line.candidates[0].length:  # else it has another way to be cut into pieces
                assert line.candidates[0].log_probability == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize("keys", [{"n_best": 2}, {"sampling": {"temperature": 1.5, "seed": 3}, "n_best": 3}], ids=str)
def test_a_model_and_itself_are_that_model(tokenizer: Tokenizer, keys: dict[str, object]) -> None:
    one = several(tokenizer, **keys)[0]
    alone, both = one.translate(LINES), together(one, one).translate(LINES)
    for mine, theirs in zip(both, alone, strict=True):
        assert [item.text for item in mine.candidates] == [item.text for item in theirs.candidates]
        scores = [item.score for item in theirs.candidates]
        assert [item.score for item in mine.candidates] == pytest.approx(scores, abs=1e-9)


@pytest.mark.parametrize("keys", [{}, {"sampling": {"seed": 3}, "n_best": 2}], ids=str)
def test_the_order_of_models_and_the_company_of_lines_change_nothing(
    tokenizer: Tokenizer, keys: dict[str, object]
) -> None:  # fmt: skip
    members = several(tokenizer, **keys)
    found, other = together(*members).translate(LINES), together(*reversed(members)).translate(LINES)
    assert [line.text for line in found] == [line.text for line in other]
    for number, line in enumerate(LINES):
        (alone,) = together(*members, batch_size=1).translate([line], first=number)
        for mine, theirs in zip(alone.candidates, found[number].candidates, strict=True):
            assert dataclasses.astuple(mine)[0::2] == pytest.approx(dataclasses.astuple(theirs)[0::2])


def test_all_members_are_evaluated_without_dropout_and_left_as_they_were(tokenizer: Tokenizer) -> None:
    members = [translator(tokenizer, {"dropout": 0.5}), translator(tokenizer, {"dropout": 0.5})]
    ours = together(*members)
    ours.models[0].eval()
    ours.models[1].train()
    assert ours.translate(LINES) == ours.translate(LINES)
    assert ours.score(LINES, LINES) == ours.score(LINES, LINES)
    assert [model.training for model in ours.models] == [False, True]


def test_the_fewest_positions_count(tokenizer: Tokenizer) -> None:
    bounded = [translator(tokenizer, {"positions": "learned", "max_positions": most}) for most in (30, 12)]
    assert together(*bounded, translator(tokenizer)).engine.positions == 12


def test_alignments_are_of_the_mean_attention_of_models_of_any_depth(tokenizer: Tokenizer) -> None:
    members = several(tokenizer)
    found = together(*members).translate(LINES, align=True)
    assert [bool(line.alignment) for line in found] == [bool(line.strip()) for line in LINES]
    one = members[0].translate(LINES, align=True)
    assert [line.alignment for line in together(members[0], members[0]).translate(LINES, align=True)] == [
        line.alignment for line in one
    ]

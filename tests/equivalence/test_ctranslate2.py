"""CTranslate2 behind our engine's call: where the searches are the same, so are all that they report."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.test_export_ctranslate2 import KINDS, write_folder, write_tokenizer
from transformer_mt.config import Decoding
from transformer_mt.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from transformer_mt.decode import ctranslate2 as engine
from transformer_mt.decode.ctranslate2 import CTranslate2Engine
from transformer_mt.decode.engine import Source
from transformer_mt.decode.search import LengthPenalty
from transformer_mt.decode.translator import EMPTY, Translator
from transformer_mt.distributed import Process
from transformer_mt.errors import RunError, UserError
from transformer_mt.export.ctranslate2 import convert

pytest.importorskip("ctranslate2")

LINES = [
    "ein Hund bellt", "two dogs bark at the moon", "", "a", "ein 語 Mond", " \t ", "moon " * 300, "dogs and a house",
    "der Mond und das Haus " * 4, "語", "bark bark",
]  # fmt: skip
NEVER = {PAD: -90.0, UNK: -90.0, BOS: -90.0}
"""With these the model itself gives nothing to what is ruled out, so that both engines have the same probabilities."""


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def lively(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> tuple[Path, Path]:
    """A model whose outputs end sometimes before and sometimes at the limits, and its conversion."""
    return pair(tmp_path_factory.mktemp("lively"), tokenizer, bias={**NEVER, EOS: 3.5})


def pair(folder: Path, tokenizer: Path, **keys: Any) -> tuple[Path, Path]:
    origin = write_folder(folder / "model", tokenizer, **keys)
    convert(origin, folder / "converted")
    return origin, folder / "converted"


def settings(**keys: Any) -> Decoding:
    return Decoding.model_validate({"max_length": {"factor": 0.2, "extra": 6}, "min_length": 0, **keys})


def ours(folders: tuple[Path, Path], **keys: Any) -> Translator:
    return Translator.load(folders[0], "cpu", "float64", settings(**keys))


def theirs(folders: tuple[Path, Path], *, precision: str = "float32", workers: int = 1, **keys: Any) -> Translator:
    tokenizer, search = Tokenizer(folders[0]), settings(**keys)
    engine = CTranslate2Engine(folders[1], tokenizer, search, precision, workers=workers, threads=1)
    return Translator([], tokenizer, search, engine=engine)


def close(value: float) -> Any:
    return pytest.approx(value, abs=2e-3)


def test_it_leaves_pytorch_its_threads(lively: tuple[Path, Path]) -> None:
    """Both set the number of the same library's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        theirs(lively)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_outputs_and_all_that_is_reported_are_ours(tmp_path: Path, tokenizer: Path, kind: str) -> None:
    """Greedy search is the same search; so limits, cuts, counts, scores and text are the same too."""
    folders = pair(tmp_path, tokenizer, **KINDS[kind], bias={**NEVER, EOS: 3.5})
    keys = {"beam_size": 1, "max_source_tokens": 100, "long_lines": "cut"}
    expected, found = ours(folders, **keys).translate(LINES), theirs(folders, **keys).translate(LINES)
    for one, other in zip(expected, found, strict=True):
        assert (other.text, other.source_length, other.unknown) == (one.text, one.source_length, one.unknown)
        assert (other.cut_to, other.hit_limit) == (one.cut_to, one.hit_limit)
        assert other.candidates[0].length == one.candidates[0].length
        assert other.candidates[0].log_probability == close(one.candidates[0].log_probability)
        assert other.candidates[0].score == close(one.candidates[0].score)
    assert found[2] == found[5] == EMPTY
    room = KINDS[kind].get("max_positions", 101) - 1
    assert found[6].cut_to == room < found[6].source_length and found[4].unknown > 0


def test_a_line_of_300_pieces_is_read_whole(lively: tuple[Path, Path]) -> None:
    keys = {"beam_size": 1, "min_length": 12}
    (expected,), (found,) = ours(lively, **keys).translate(LINES[6:7]), theirs(lively, **keys).translate(LINES[6:7])
    assert found.source_length >= 300 and found.cut_to is None and found.candidates[0].length > 12
    assert found.text == expected.text


def test_no_piece_of_a_long_line_is_left_out(tmp_path: Path, tokenizer: Path) -> None:
    """CTranslate2 by itself would read 1024 pieces and say nothing, in searching and in scoring."""
    folders = pair(tmp_path, tokenizer, bias={**NEVER, EOS: -20.0})
    keys = {"beam_size": 1, "max_source_tokens": None, "max_length": {"factor": 0, "extra": 5}}
    (expected,), (found,) = (make(folders, **keys).translate(["moon " * 1100]) for make in (ours, theirs))
    assert found.source_length > 1090 and found.cut_to is None and found.hit_limit
    assert found.text == expected.text
    assert found.candidates[0].log_probability == pytest.approx(expected.candidates[0].log_probability, abs=1e-4)


def test_limits_are_met_and_missed(lively: tuple[Path, Path]) -> None:
    """What the other tests here are about does happen."""
    found = theirs(lively, beam_size=1).translate(LINES)
    assert {line.hit_limit for line in found if line != EMPTY} == {True, False}


class Numbers(Tokenizer):
    """Writes ids where text would be, so that an output can be given to the model again."""

    def decode(self, ids: Sequence[int], unknown_marker: str = "") -> str:
        return " ".join(map(str, ids))


@torch.no_grad()
def forced(translator: Translator, source: list[int], target: list[int]) -> float:
    hidden = translator.models[0](torch.tensor([[*source, EOS]]), torch.tensor([[translator.start, *target]]))
    scores = translator.models[0].logits(hidden[0]).log_softmax(-1)
    return float(scores.gather(1, torch.tensor([*target, EOS])[:, None]).sum())


@pytest.mark.parametrize("form", ["none", "average", "power", "gnmt"])
def test_every_candidate_has_the_score_of_forced_decoding(lively: tuple[Path, Path], form: str) -> None:
    """Cut off or not; divided by our penalty, with `</s>` counted; best first; and one line's are all different."""
    penalty = {"form": form, "alpha": 0.8}
    translator = theirs(lively, beam_size=4, n_best=4, length_penalty=penalty)
    translator.tokenizer = Numbers(lively[0])
    assert translator.engine._power() > 0  # with 0 CTranslate2 would stop by another rule
    native, divisor = ours(lively), LengthPenalty(form, 0.8)
    lines = [line for line in LINES if line.strip() and len(line) < 300]
    cut = 0
    for line, found in zip(lines, translator.translate(lines), strict=True):
        (source,) = native.tokenizer.encode_source([line])
        assert len({candidate.text for candidate in found.candidates}) == len(found.candidates) == 4
        for candidate in found.candidates:
            target = [int(token) for token in candidate.text.split()]
            assert not {PAD, UNK, BOS, EOS} & set(target)
            assert candidate.length == len(target) + 1 <= int(0.2 * len(source)) + 7
            assert candidate.log_probability == close(forced(native, source, target))
            length = torch.tensor(float(candidate.length), dtype=torch.float64)
            assert candidate.score == pytest.approx(candidate.log_probability / float(divisor(length)))
            cut += candidate.length == int(0.2 * len(source)) + 7
        scores = [candidate.score for candidate in found.candidates]
        assert scores == sorted(scores, reverse=True)
    assert cut > 0


def test_the_best_ones_are_given(lively: tuple[Path, Path]) -> None:
    every = theirs(lively, n_best=4).translate(LINES)
    for count in (1, 2):
        found = theirs(lively, n_best=count).translate(LINES)
        assert [line.candidates for line in found] == [line.candidates[:count] for line in every]


def test_ranking_is_by_our_penalty(lively: tuple[Path, Path]) -> None:
    """A penalty that loves long outputs and one that loves short ones choose differently among the same hypotheses."""
    translator = theirs(lively, beam_size=4, n_best=4)
    lengths = []
    for alpha in (-4.0, 4.0):
        translator.engine._penalty = LengthPenalty("gnmt", alpha)
        lengths.append([line.candidates[0].length for line in translator.translate(LINES)])
    assert sum(lengths[0]) < sum(lengths[1])


@pytest.mark.parametrize("beam_size", [1, 4])
def test_lines_together_are_as_each_alone(
    lively: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, beam_size: int
) -> None:
    """One batch of lines of unlike limits: those that may have gone further than theirs are translated again."""
    again: list[int] = []
    divide = engine._Batch.divide

    def spied(batch: engine._Batch, outputs: Any) -> Any:
        done, more = divide(batch, outputs)
        again.extend(row.limit for part in more for row in part.rows)
        return done, more

    lines = [" ".join(LINES[number % 2 :: 2][: 1 + number % 5])[: 5 + 3 * number] for number in range(40)]
    keys = {"beam_size": beam_size, "n_best": beam_size, "batch_tokens": 1 << 20}
    translator = theirs(lively, **keys)
    alone = [translator.translate([line])[0] for line in lines]
    monkeypatch.setattr(engine._Batch, "divide", spied)
    together = translator.translate(lines)
    assert 0 < len(again) < len(lines)
    for one, other in zip(alone, together, strict=True):
        assert [found.text for found in one.candidates] == [found.text for found in other.candidates]
        assert one.candidates[0].score == close(other.candidates[0].score)
        assert one.hit_limit == other.hit_limit


@pytest.mark.parametrize("keys", [{"batch_size": 1}, {"batch_size": 3}, {"batch_tokens": 100}], ids=str)
@pytest.mark.parametrize("workers", [1, 2])
def test_batches_and_workers_change_nothing(lively: tuple[Path, Path], keys: dict[str, int], workers: int) -> None:
    expected = theirs(lively).translate(LINES)
    counted: list[int] = []
    found = theirs(lively, workers=workers, **keys).translate(LINES, progress=counted.append)
    assert [line.text for line in found] == [line.text for line in expected]
    assert sum(counted) == sum(bool(line.strip()) for line in LINES) and len(counted) > 2


def test_batches_are_bounded_and_keep_all_workers_busy(lively: tuple[Path, Path]) -> None:
    sources = [Source([5] * length, limit) for length, limit in ((3, 6), (9, 12), (30, 33), (4, 7), (1, 90), (3, 6))]
    batches = theirs(lively, batch_tokens=60, beam_size=4).engine._batches(sources)
    for batch in batches:
        assert len(batch.rows) == 1 or len(batch.rows) * len(batch.rows[0].pieces) * 4 <= 60
        assert batch.limit == max(row.limit for row in batch.rows)
    assert sorted(row.place for batch in batches for row in batch.rows) == list(range(6))
    assert max(len(batch.rows) for batch in theirs(lively, batch_size=2).engine._batches(sources)) == 2
    many = [Source([5], 6)] * 640
    assert [len(theirs(lively, workers=workers).engine._batches(many)) for workers in (1, 3, 100)] == [10, 12, 80]


def test_ranks_share_the_lines(lively: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each does its part, and the parts are all the lines."""
    parts: list[dict[int, Any]] = []
    monkeypatch.setattr("transformer_mt.decode.translator.gather", lambda value: parts.append(value) or parts)
    translator = theirs(lively, batch_size=2)
    for rank in (0, 1):
        found = translator.translate(LINES, Process(rank, 2, torch.device("cpu")))
    assert [line.text for line in found] == [line.text for line in theirs(lively).translate(LINES)]
    assert sorted(map(len, parts)) == [4, 5]


def test_an_interrupted_translation_stops(lively: tuple[Path, Path]) -> None:
    asked: Iterator[bool] = iter([False, False, True])
    counted: list[int] = []
    theirs(lively, batch_size=1).translate(LINES, None, counted.append, lambda: next(asked))
    assert 1 <= sum(counted) <= 3


@pytest.mark.parametrize("token", [PAD, UNK, BOS, EOS])
def test_what_may_not_be_produced(tmp_path: Path, tokenizer: Path, token: int) -> None:
    """However much a model loves it; `</s>` may not come first."""
    translator = theirs(pair(tmp_path, tokenizer, bias={token: 90.0}), min_length=1, n_best=4)
    for found in translator.translate(["ein Hund", "a"]):
        for candidate in found.candidates:
            assert candidate.length >= 2 and candidate.text.strip() and "⁇" not in candidate.text
            assert candidate.log_probability > -1000
            assert not any(mark in candidate.text for mark in ("<pad>", "<s>", "</s>", "<unk>"))


def test_unknown_where_it_is_allowed(tmp_path: Path, tokenizer: Path) -> None:
    folders = pair(tmp_path, tokenizer, bias={UNK: 90.0})
    keys = {"allow_unknown": True, "unknown_marker": "[?]", "beam_size": 1}
    assert "[?]" in theirs(folders, **keys).translate(["ein"])[0].text


def test_shortest_outputs(lively: tuple[Path, Path]) -> None:
    for least in (4, 100):
        for line in theirs(lively, min_length=least, n_best=4).translate(["ein Hund", "a"]):
            wanted = min(least, int(0.2 * line.source_length) + 6) + 1
            assert all(candidate.length >= wanted for candidate in line.candidates)


def test_no_sequence_comes_twice(lively: tuple[Path, Path]) -> None:
    translator = theirs(lively, no_repeat_ngram=2, min_length=30, max_length={"factor": 0, "extra": 40})
    translator.tokenizer = Numbers(lively[0])
    for line in translator.translate(["ein Hund", "a moon"]):
        tokens = line.text.split()
        pairs = list(pairwise(tokens))
        assert len(tokens) >= 30 and len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_vocabulary_that_is_used_up(lively: tuple[Path, Path], beam_size: int) -> None:
    """Where all that is left is ruled out, CTranslate2 goes on with padding, or ends too early: no candidates."""
    length = {"min_length": 100, "max_length": {"factor": 0, "extra": 100}}
    keys = {"beam_size": beam_size, "no_repeat_ngram": 1, **length}
    with pytest.raises(RunError, match="no output"):
        theirs(lively, **keys).translate(["a"])


@pytest.mark.parametrize("score", [float("nan"), float("-inf"), -3e38])
def test_scores_that_are_no_numbers(lively: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, score: float) -> None:
    class Promise:
        hypotheses, scores = [["a", "</s>"]], [score]

        def result(self) -> "Promise":
            return self

    translator = theirs(lively)
    monkeypatch.setattr(translator.engine, "_start", lambda batch: [Promise()])
    with pytest.raises(RunError, match="not finite"):
        translator.translate(["a"])


def test_a_batch_without_memory_is_halved_until_it_fits(
    lively: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    translator, sizes = theirs(lively, batch_tokens=1 << 20), []
    expected, start = translator.translate(LINES), translator.engine._start

    class Full:
        def result(self) -> None:
            raise RuntimeError(message)

    def small(batch: engine._Batch) -> list[Any]:
        sizes.append(len(batch.rows))
        return start(batch) if len(batch.rows) <= room else [Full() for _ in batch.rows]

    monkeypatch.setattr(translator.engine, "_start", small)
    room, message = 2, "CUDA failed with error out of memory"
    assert [line.text for line in translator.translate(LINES)] == [line.text for line in expected]
    assert max(sizes) == 8
    room = 0
    with pytest.raises(RuntimeError, match="out of memory"):
        translator.translate(LINES)
    room, message = 2, "another error"
    with pytest.raises(RuntimeError, match="another error"):
        translator.translate(LINES)


def test_what_it_cannot_do_is_refused_by_name(lively: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match=r"decoding\.sampling"):
        theirs(lively, sampling={})
    with pytest.raises(UserError, match="target prefixes"):
        theirs(lively).translate(["ein", "a"], prefixes=["", "moon"])
    with pytest.raises(UserError, match="required phrases"):
        list(theirs(lively).engine.search([Source([5], 9, phrases=[[[6]]])]))
    assert theirs(lively, min_length=1).translate(["ein"], prefixes=[" "])[0].text
    with pytest.raises(UserError, match=r"--precision int3: .* has float32.* on this cpu"):
        theirs(lively, precision="int3")
    with pytest.raises(UserError, match="--device mps"):
        CTranslate2Engine(lively[1], Tokenizer(lively[0]), settings(), device="mps")


def test_alignments_and_scores_are_ours(lively: tuple[Path, Path]) -> None:
    """They come from the same model, whatever looked for the translations."""
    both, native = ours(lively, beam_size=1), ours(lively, beam_size=1)
    both.engine = theirs(lively, beam_size=1).engine
    lines = ["ein Hund bellt", "moon", ""]
    for one, other in zip(*(each.translate(lines, align=True) for each in (both, native)), strict=True):
        assert (one.text, one.alignment) == (other.text, other.alignment)
    assert both.score(lines, lines) == native.score(lines, lines)


def test_int8_says_nearly_the_same(lively: tuple[Path, Path]) -> None:
    exact = theirs(lively, beam_size=1).translate(["ein Hund bellt"])[0]
    small = theirs(lively, precision="int8", beam_size=1)
    found = small.translate(["ein Hund bellt"])[0].candidates[0]
    assert found.score != exact.candidates[0].score
    assert found.score == pytest.approx(exact.candidates[0].score, rel=0.5)

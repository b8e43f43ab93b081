"""Our BPE-dropout beside SentencePiece: the same ids without dropout, the same distribution with it."""

import io
import random
import struct
from collections import Counter
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import sentencepiece

from transformer_mt.data import bpe_dropout
from transformer_mt.data.batching import mix
from transformer_mt.data.bpe_dropout import BpeDropout
from transformer_mt.data.model_file import read_model
from transformer_mt.errors import UserError

WORDS = [
    *("wohnung", "garten", "wohngarten", "gartenhaus", "hausboot", "bootsfahrt", "fahrtwind", "windhose"),
    *("flat", "garden", "gardening", "greenhouse", "houseboat", "boating", "sailing", "tornado", "2026", "1999"),
]
LINES = [
    *("", "a", "▁", "▁▁▁", "wohn▁garten", "▁▁garten haus▁", "haus  boot ", " hausboot"),
    *("</s>", "a </s><unk> garten</s>", "<pad> <s>", "<0x41><0x0A>", "garten<sep>haus <sep> <2de>wohnung hausboot"),
    *("日本", "日本 語garten日 ꙮ 𝔘ß😀", "garten日", "日boot", "本日 日本", "12345 20261999", "ﬁ ½ Å GARTEN ﬂat"),
    *("x" * 40, "wohngarten" * 30, "bootsfahrtwindhose" * 3 + " " + "gartenhausboot" * 3, "gardeninggreenhouses"),
]
VARIANTS: dict[str, dict[str, Any]] = {
    "bytes": {"byte_fallback": True},
    "unknown": {"character_coverage": 0.98},
    "unknown-first": {"character_coverage": 0.98, "add_dummy_prefix": False},
    "folded": {"normalization_rule_name": "nmt_nfkc_cf", "byte_fallback": True},
    "across": {"split_by_whitespace": False},
    "suffix": {"treat_whitespace_as_suffix": True},
    "symbols": {"user_defined_symbols": ["<2de>", "<sep>", "haus", "hausb", "1"], "byte_fallback": True},
    "symbols, folded": {
        "user_defined_symbols": ["<½>", "GARTEN", ","], "normalization_rule_name": "nmt_nfkc_cf", "byte_fallback": True,
    },
    "control": {"control_symbols": ["<sep>", "x"], "character_coverage": 0.98},
}  # fmt: skip


def sentences(count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, 9))) for _ in range(count)]


@lru_cache
def trained(variant: str, algorithm: str = "bpe") -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*sentences(400, 1), "q" * 3, "jy"]),
        **{
            **{"model_writer": model, "model_type": algorithm, "vocab_size": 500, "hard_vocab_limit": False},
            **{"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "minloglevel": 2},
            **{"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, "num_threads": 1, **VARIANTS[variant]},
        },
    )
    return model.getvalue()


def processor(content: bytes) -> sentencepiece.SentencePieceProcessor:
    model = sentencepiece.SentencePieceProcessor()
    model.LoadFromSerializedProto(content)
    return model


def segment(model: BpeDropout, lines: list[str], rate: float, seed: int = 1) -> list[list[int]]:
    ids, lengths = model.segment(lines, mix(seed, np.arange(len(lines), dtype=np.uint64)), rate)
    assert len(lengths) == len(lines) and len(ids) == lengths.sum()
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] if lines else []


# Without dropout


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_dropout_the_ids_are_those_of_sentencepiece(variant: str) -> None:
    model = processor(trained(variant))
    ours, lines = BpeDropout(model), LINES + sentences(200, 2)
    for some in (lines, lines[::-1], *([line] for line in LINES), []):
        assert segment(ours, some, 0.0) == model.encode(some)
    ids = {number for ids in model.encode(LINES) for number in ids}
    assert (model.unk_id() in ids) == ("byte_fallback" not in VARIANTS[variant])


@pytest.mark.parametrize("variant", ["bytes", "across"])
def test_the_leftmost_of_equal_scores_is_first(variant: str) -> None:
    content = trained(variant)
    for number in range(0, 400, 4):
        for above in range(1, 4):
            score, equal = (b"\x15" + struct.pack("<f", -n) for n in (number + above, number))
            content = content.replace(score, equal)
    model, plain = processor(content), processor(trained(variant))
    lines = LINES + sentences(200, 2)
    assert segment(BpeDropout(model), lines, 0.0) == model.encode(lines) != plain.encode(lines)


def test_whole_lines_are_words_only_where_pieces_hold_blanks() -> None:
    by_word = {variant: BpeDropout(processor(trained(variant)))._by_word for variant in VARIANTS}
    assert by_word == {variant: variant not in ("across", "suffix") for variant in VARIANTS}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_model_file_is_read_as_the_library_reads_it(variant: str) -> None:
    model, found = processor(trained(variant)), read_model(trained(variant))
    numbers = range(model.get_piece_size())
    assert found.pieces == [model.id_to_piece(number) for number in numbers]
    assert found.scores == [model.get_score(number) for number in numbers]
    kinds = {2: model.is_unknown, 3: model.is_control, 5: model.is_unused, 6: model.is_byte}
    plain = [number for number in numbers if found.types[number] in (1, 4)]
    assert all(kinds[found.types[number]](number) for number in numbers if number not in plain)
    assert not any(kind(number) for number in plain for kind in kinds.values())
    assert found.byte_fallback == ("byte_fallback" in VARIANTS[variant]) and found.algorithm == "BPE"
    symbols = [found.pieces[number] for number in plain if found.types[number] == 4]
    assert symbols == VARIANTS[variant].get("user_defined_symbols", [])


@pytest.mark.parametrize("algorithm, name", [("unigram", "unigram"), ("char", "character"), ("word", "word")])
def test_other_models_are_refused(algorithm: str, name: str) -> None:
    with pytest.raises(UserError, match=rf"training\.subword_sampling: found a {name} model, wanted a BPE model"):
        BpeDropout(processor(trained("unknown", algorithm)))


def test_unused_pieces_are_refused() -> None:
    content = trained("bytes")
    first = content.index(b"\x15" + struct.pack("<f", -3.0))  # a score; in front of it are the piece and lengths
    start = content.rindex(b"\n", 0, content.rindex(b"\n", 0, first))
    size = content[start + 1]
    piece = content[start + 2 : start + 2 + size] + b"\x18\x05"
    changed = content[:start] + b"\n" + bytes([size + 2]) + piece + content[start + 2 + size :]
    assert [number for number in range(400) if processor(changed).is_unused(number)] != []
    with pytest.raises(UserError, match="found a BPE model with unused pieces, wanted a BPE model without"):
        BpeDropout(processor(changed))


# With dropout


def unlikeliness(one: Counter[tuple[int, ...]], other: Counter[tuple[int, ...]]) -> float:
    """How many standard deviations two samples of one size are apart (chi-squared; Wilson and Hilferty 1931)."""
    cells = [key for key in one | other if one[key] + other[key] >= 20]
    rare = [sum(sample.values()) - sum(sample[key] for key in cells) for sample in (one, other)]
    both = [*((one[key], other[key]) for key in cells), *([tuple(rare)] if sum(rare) >= 20 else [])]
    freedom = max(1, len(both) - 1)
    chi = sum((a - b) ** 2 / (a + b) for a, b in both)
    return float(((chi / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / (2 / (9 * freedom)) ** 0.5)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("variant", ["bytes", "unknown", "across", "symbols"])
def test_with_dropout_pieces_are_distributed_as_those_of_sentencepiece(variant: str, rate: float) -> None:
    model, count = processor(trained(variant)), 6000
    ours = BpeDropout(model)
    for line in ("garten", "bootsfahrt", "日houseboat", "a gar"):
        theirs = model.encode([line] * count, enable_sampling=True, alpha=rate, nbest_size=-1, num_threads=1)
        found = segment(ours, [line] * count, rate)
        assert unlikeliness(Counter(map(tuple, found)), Counter(map(tuple, theirs))) < 5
        sizes = [np.array([len(ids) for ids in sample]) for sample in (found, theirs)]
        assert abs(sizes[0].mean() - sizes[1].mean()) <= 5 * np.sqrt((sizes[0].var() + sizes[1].var()) / count)


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_cut_is_the_same_text_and_depends_on_its_line_and_key_alone(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, lines = processor(trained(variant)), LINES + sentences(100, 3)
    found = segment(BpeDropout(model), lines, 0.4)
    if "byte_fallback" in VARIANTS[variant]:
        assert [model.decode(ids) for ids in found] == [model.decode(ids) for ids in model.encode(lines)]
    monkeypatch.setattr(bpe_dropout, "KEPT_ENTRIES", 0)
    ours, keys = BpeDropout(model), mix(1, np.arange(len(lines), dtype=np.uint64))
    for order in (range(len(lines)), range(len(lines) - 1, -1, -1), range(3, 40, 5), [7]):
        ids, lengths = ours.segment([lines[number] for number in order], keys[list(order)], 0.4)
        assert ids.tolist() == [token for number in order for token in found[number]]
        assert lengths.tolist() == [len(found[number]) for number in order]
        assert ours._table.size == 1 and not ours._words  # memory does not grow from call to call


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("variant", ["symbols", "symbols, folded"])
def test_symbols_are_never_cut_nor_merged(variant: str, rate: float) -> None:
    model, symbols = processor(trained(variant)), VARIANTS[variant]["user_defined_symbols"]
    generator = random.Random(4)
    parts = [*symbols, " ", "garten", "haus", "½", "<", "sep", "wohnung", ",", "b"]
    lines = ["".join(generator.choices(parts, k=9)) for _ in range(400)]
    wanted, numbers = model.encode(lines), {model.piece_to_id(symbol) for symbol in symbols}
    for found, right in zip(segment(BpeDropout(model), lines, rate), wanted, strict=True):
        assert [n for n in found if n in numbers] == [n for n in right if n in numbers]
    assert {n for ids in wanted for n in ids} >= numbers


def test_words_of_a_line_are_cut_each_by_itself() -> None:
    model = processor(trained("bytes"))
    ids = segment(BpeDropout(model), ["bootsfahrt " * 200], 0.5)[0]
    pieces = "".join(f"|{model.id_to_piece(number)}" for number in ids).split("|▁")
    assert len(set(pieces)) > 50

"""The report on a vocabulary beside counts made line by line."""

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from transformer_mt.config import Languages
from transformer_mt.data import vocabulary_report
from transformer_mt.data.clean import normalize
from transformer_mt.data.sides import Side
from transformer_mt.data.tokenizer import SPECIAL_PIECES, UNK, VOCABULARY, Tokenizer, write_vocabulary
from transformer_mt.data.vocabulary_report import lines, report, report_of_run, report_side, short_lines
from transformer_mt.errors import UserError

WORDS = ["haus", "hund", "garten", "bellt", "der", "die", "am", "im", "mond", "sonne", "hundehaus", "gartenhaus", "und"]
KINDS: dict[str, dict[str, Any]] = {
    "bytes": {"byte_fallback": True},
    "unknown": {"byte_fallback": False},
    "unigram": {"model_type": "unigram", "byte_fallback": True},
    "symbols": {"user_defined_symbols": ["<bt>", "語"], "byte_fallback": True},
    "no blank before": {"add_dummy_prefix": False, "byte_fallback": True},
    "blanks behind": {"treat_whitespace_as_suffix": True, "byte_fallback": True},
    "across": {"split_by_whitespace": False, "byte_fallback": True},
}


def sentences(count: int, seed: int) -> list[str]:
    """Words, some with characters that no piece has; some lines are empty, some as no cleaned text is."""
    generator = random.Random(seed)
    words = [*WORDS * 3, "日本", "本", "☃haus", "<bt>", "haus☃☃", "語"]
    made = [" ".join(generator.choices(words, k=generator.randint(0, 7))) for _ in range(count)]
    return [*made, "", "  ", " der\thund\u2028bellt  ", "☃", "本☃", "x", "日"]


def learned(path: Path, **keys: Any) -> None:
    generator = random.Random(1)
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([" ".join(generator.choices(WORDS, k=6)) for _ in range(300)]), model_writer=file,
            **{
                **{"model_type": "bpe", "vocab_size": 340, "hard_vocab_limit": False, "minloglevel": 2},
                **{"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "num_threads": 1},
                **{"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, **keys},
            },
        )  # fmt: skip


def tokenizer(folder: Path, **keys: Any) -> Tokenizer:
    learned(folder / "spm.model", **keys)
    return Tokenizer(folder)


def counted(side: Side, given: list[str], *, behind: bool = False) -> dict[str, Any]:
    """The same as a report's entry, by the places of pieces in the text."""
    processor, texts = side.processor, [normalize(line) for line in given]
    total: Counter[str] = Counter(lines=len(given), characters=sum(map(len, texts)))
    rare: Counter[tuple[str, str]] = Counter()
    used = set()
    for text in texts:
        spelled = processor.normalize(text).encode()
        spans, place = [], 0
        for piece, number in zip(processor.encode(text, out_type=str), processor.encode(text), strict=True):
            length = 1 if processor.is_byte(number) else len(piece.encode())
            spans.append((place, place + length, number))
            place += length
            used.add(number)
        assert place == len(spelled)
        total["pieces"] += len(spans)
        total["bytes"] += sum(processor.is_byte(number) for *_, number in spans)
        total["unknown"] += sum(number == UNK for *_, number in spans)
        for begin, end in characters(spelled):
            kinds = {number for first, last, number in spans if first < end and last > begin}
            if any(map(processor.is_byte, kinds)) or UNK in kinds:
                rare[spelled[begin:end].decode(), "unknown" if UNK in kinds else "bytes"] += 1
        for found in re.finditer(WORD_BEFORE_BLANK if behind else WORD, spelled):
            within = [span for span in spans if span[0] < found.end() and span[1] > found.start()]
            total["words"] += 1
            total["one"] += [span[:2] for span in within] == [found.span()] and within[0][2] != UNK
    words, pieces, size = total["words"], total["pieces"], processor.get_piece_size()
    return {
        "lines": total["lines"],
        "words": words,
        "characters": total["characters"],
        "pieces": pieces,
        "pieces_per_word": pieces / words,
        "pieces_per_line": pieces / len(given),
        "one_piece_words": total["one"] / words,
        "unknown_pieces": total["unknown"] / pieces,
        "byte_pieces": total["bytes"] / pieces,
        "vocabulary": size,
        "vocabulary_used": len(used),
        "vocabulary_coverage": len(used) / size,
        "rare_characters": [
            {"character": text, "code": f"U+{ord(text):04X}", "count": count, "written_as": how}
            for (text, how), count in sorted(rare.items(), key=lambda item: (-item[1], item[0]))[:10]
        ],
    }


BLANK = "▁".encode()
WORD = re.compile(b"(?:%b)?((?!%b).)+" % (BLANK, BLANK), re.DOTALL)
"""A word with the blank that its first piece has, in UTF-8."""
WORD_BEFORE_BLANK = re.compile(b"((?!%b).)+(?:%b)?" % (BLANK, BLANK), re.DOTALL)


def characters(spelled: bytes) -> Iterator[tuple[int, int]]:
    """Where each character begins and ends."""
    begin = 0
    for character in spelled.decode():
        yield begin, begin + len(character.encode())
        begin += len(character.encode())


@pytest.mark.parametrize("chunk", [1, 7, 2000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_report_is_what_line_by_line_counting_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, chunk: int
) -> None:
    monkeypatch.setattr(vocabulary_report, "CHUNK_LINES", chunk)
    ours, given = tokenizer(tmp_path, **KINDS[kind]), sentences(200, 2)
    found = report_side(ours.sides[0], given)
    assert found == counted(ours.sides[0], given, behind=kind == "blanks behind")
    assert json.loads(json.dumps(found)) == found
    assert (found["unknown_pieces"] > 0) == (kind == "unknown") and found["one_piece_words"] > 0.2
    assert (found["byte_pieces"] > 0) == (kind != "unknown") and found["rare_characters"]


def test_words_of_one_piece_are_those_that_are_so_by_themselves(tmp_path: Path) -> None:
    (side, _) = tokenizer(tmp_path, byte_fallback=True).sides
    given = [line.replace("<bt>", "") for line in sentences(200, 3)]
    words = [word for line in given for word in normalize(line).split()]
    assert report_side(side, given)["one_piece_words"] == sum(map(side.is_one_piece, words)) / len(words)


def test_both_languages_have_their_own_entry(tmp_path: Path) -> None:
    learned(tmp_path / "source.model", byte_fallback=True)
    learned(tmp_path / "target.model", vocab_size=300, byte_fallback=True)
    ours, one, other = Tokenizer(tmp_path), sentences(50, 1), sentences(70, 2)
    found = report(ours, iter(one), iter(other))
    assert found == {"source": counted(ours.sides[0], one), "target": counted(ours.sides[1], other)}
    assert found["source"]["vocabulary"] != found["target"]["vocabulary"]


def test_a_vocabulary_of_its_own_is_reported_by_its_ids(tmp_path: Path) -> None:
    for name in ("source", "target"):
        learned(tmp_path / f"{name}.model", byte_fallback=True)
    plain = Side(sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "source.model")), UNK)
    pieces = [piece for piece in plain.pieces()[4:] if piece != "▁hund"]
    write_vocabulary(tmp_path / VOCABULARY, [[*SPECIAL_PIECES, ">>deu<<", *pieces[::-1]]])
    given = [">>deu<< der hund bellt", "am mond 日", "hund und hund"]
    found = report_side(Tokenizer(tmp_path).sides[0], given)
    assert (found["words"], found["vocabulary"]) == (10, len(pieces) + 5)
    assert found["pieces"] == 13 and found["byte_pieces"] == 3 / 13 and found["unknown_pieces"] == 3 / 13
    assert found["one_piece_words"] == 6 / 10  # >>deu<<, der, bellt, am, mond, und
    rare = [(one["character"], one["count"], one["written_as"]) for one in found["rare_characters"]]
    assert rare == [("d", 3, "unknown"), ("h", 3, "unknown"), ("n", 3, "unknown"), ("u", 3, "unknown"),
                    ("日", 1, "bytes")]  # fmt: skip


def test_lines_are_never_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_report, "CHUNK_LINES", 50)
    (side, _) = tokenizer(tmp_path, byte_fallback=True).sides
    read = encoded = 0
    whole = Side.encode

    def encode(self: Side, lines: list[str]) -> list[list[int]]:
        nonlocal encoded
        assert 0 < len(lines) <= 50 and read - encoded <= 50  # nothing is read ahead
        encoded += len(lines)
        return whole(self, lines)

    def given() -> Iterator[str]:
        nonlocal read
        for line in sentences(1000, 1):
            read += 1
            yield line

    monkeypatch.setattr(Side, "encode", encode)
    assert report_side(side, given())["lines"] == read == encoded == 1007


@pytest.mark.parametrize("given", [[], ["", "  "]])
def test_nothing_to_divide_by(tmp_path: Path, given: list[str]) -> None:
    ours = tokenizer(tmp_path, byte_fallback=True)
    found = report(ours, given, given)
    assert found["source"]["pieces"] == 0 and found["source"]["pieces_per_word"] is None
    assert found["source"]["one_piece_words"] is None and found["source"]["vocabulary_coverage"] == 0
    assert "pieces a word" in "\n".join(lines(found)) and "- pieces a word" in short_lines(found)[0]


# Of a run


def corpus(folder: Path, count: int) -> Path:
    folder.mkdir()
    for language, seed in (("en", 1), ("de", 2)):
        texts = [f"{normalize(line)} z{number}" for number, line in enumerate(sentences(count, seed))]
        (folder / f"train.{language}").write_text("".join(f"{line}\n" for line in texts), "utf-8")
    return folder


def test_a_run_s_report_reads_so_many_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, languages = corpus(tmp_path / "corpus", 493), Languages(source="en", target="de")
    ours = tokenizer(tmp_path, byte_fallback=True)
    found = report_of_run(folder, tmp_path, languages, 10_000)
    texts = [(folder / f"train.{language}").read_text("utf-8").splitlines() for language in ("en", "de")]
    assert found == {
        "split": "train", "lines_of_corpus": 500,
        "source": {"language": "en", **counted(ours.sides[0], texts[0])},
        "target": {"language": "de", **counted(ours.sides[1], texts[1])},
    }  # fmt: skip
    seen: list[list[str]] = []
    monkeypatch.setattr(vocabulary_report, "report_side", lambda side, some: seen.append(list(some)) or {})
    assert report_of_run(folder, tmp_path, languages, 100)["lines_of_corpus"] == 500
    numbers = [[int(line.rpartition("z")[2]) for line in side] for side in seen]
    assert numbers[0] == numbers[1] and len(set(numbers[0])) == 100  # pairs, not any lines
    assert 25 < sum(number < 250 for number in numbers[0]) < 75


def test_a_corpus_that_is_not_there_is_told(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    with pytest.raises(UserError, match=r"test\.en not found: run `download` or `train`"):
        report_of_run(tmp_path, tmp_path, Languages(source="en", target="de"), 10, "test")


def test_the_table(tmp_path: Path) -> None:
    ours = tokenizer(tmp_path, byte_fallback=True)
    found = report(ours, ["der hund ☃\x00"] * 2000, ["日 der"])
    found["target"]["language"] = "de"
    table = lines(found)
    assert table[0].split() == ["source", "de"] and len({len(row) for row in table[:13]}) == 1
    rows = {row[:23].strip(): row[23:].split() for row in table[1:13]}
    assert rows["lines"] == ["2,000", "1"] and rows["words"] == ["6,000", "2"] and rows["pieces"] == ["12,000", "5"]
    assert rows["pieces a word"] == ["2.00", "2.50"] and rows["words of one piece"] == ["66.67%", "50.00%"]
    assert rows["byte pieces"] == ["50.00%", "60.00%"] and rows["unknown pieces"] == ["0.00%", "0.00%"]
    assert table[13:] == ["written as bytes in source: ☃ U+2603 2,000", "written as bytes in de: 日 U+65E5 1"]
    share = f"{found['target']['vocabulary_coverage']:.2%}"
    assert short_lines(found)[1] == (
        f"de: 2.50 pieces a word, 50.00% of the words are one piece; 60.00% of the pieces are bytes; {share} of the "
        "vocabulary occurs"
    )


def test_the_table_tells_what_is_unknown(tmp_path: Path) -> None:
    found = report(tokenizer(tmp_path, byte_fallback=False), ["☃ der ☃☃日"], [])
    assert "unknown in source: ☃ U+2603 3, 日 U+65E5 1" in lines(found)
    assert "33.33% of the pieces are unknown" not in short_lines(found)[1]
    assert "of the pieces are unknown" in short_lines(found)[0]
    assert lines({"source": found["source"]})[0].split() == ["source"]

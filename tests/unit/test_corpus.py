"""From sources to a corpus: the same files for any number of processes and any size of chunks; nothing lost unseen."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transformer_mt.config import Config
from transformer_mt.data import corpus
from transformer_mt.data.clean import normalize
from transformer_mt.errors import UserError


def config(folder: Path, train: list[dict[str, Any]], **data: Any) -> Config:
    """Of a run on these training sources, whose paths are relative to the folder."""
    (folder / "valid.en").write_text("a held out line\n", "utf-8")
    (folder / "valid.de").write_text("eine Zeile\n", "utf-8")
    keys = ("source", "target", "tsv", "jsonl", "parquet", "tmx", "po")
    train = [{key: str(folder / value) if key in keys else value for key, value in one.items()} for one in train]
    validation = [{"source": str(folder / "valid.en"), "target": str(folder / "valid.de")}]
    plain = {"name": "x", "languages": {"source": "en", "target": "de"}}
    return Config.model_validate({**plain, "data": {"train": train, "validation": validation, **data}})


def make(config: Config, folder: Path, **keys: Any) -> tuple[dict[str, Any], list[str], dict[str, bytes]]:
    """The record, what was said, and the files."""
    folder.mkdir()
    told: list[str] = []
    record = corpus.make_corpus(config, folder, told.append, **keys)
    return record, told, {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def dirty(tmp_path: Path) -> Config:
    """Three files that hold what every filter drops; the third repeats the first, the second has another kind."""
    generator = np.random.default_rng(0)
    words = ["alpha", "beta", "gamma", "delta", "epsilon"]
    rows = [[" ".join(generator.choice(words, generator.integers(0, 4))) for _ in range(2)] for _ in range(150)]
    rows[7], rows[9] = ["a held out line", "x"], ["w " * 300, "y"]
    rows[11], rows[13] = ["z" * 5000, "y"], ["w " * 40, "y"]
    (tmp_path / "1.en").write_text("".join(f"{one}\n" for one, _ in rows), "utf-8")
    (tmp_path / "1.de").write_bytes("".join(f"{other}\n" for _, other in rows).encode() + b"")
    (tmp_path / "2.tsv").write_bytes(b"caf\xe9\ty\n" + "".join(f"{one}\t{other} 2\n" for one, other in rows).encode())
    (tmp_path / "3.en").write_text((tmp_path / "1.en").read_text("utf-8"), "utf-8")
    (tmp_path / "3.de").write_text((tmp_path / "1.de").read_text("utf-8"), "utf-8")
    train = [{"source": "[13].en", "target": "[13].de"}, {"tsv": "2.tsv", "tag": "<bt>"}]
    return config(tmp_path, train, on_bad_bytes="skip_pair")


def expected(folder: Path) -> list[tuple[str, str, int, int]]:
    """Source, target, line and file of the pairs that stay, by a plain loop."""
    rows = []
    for file in (0, 1):
        sides = [(folder / f"{'13'[file]}.{language}").read_text("utf-8").split("\n")[:-1] for language in ("en", "de")]
        rows += [(*pair, line, file) for line, pair in enumerate(zip(*sides, strict=True), 1)]
    lines = (folder / "2.tsv").read_bytes().split(b"\n")[1:-1]
    rows += [(*line.decode().split("\t"), number, 2) for number, line in enumerate(lines, 2)]  # type: ignore[misc]
    seen, kept = set(), []
    for source, target, line, file in rows:
        one, other = normalize(source), normalize(target)
        good = one and other and len(one) <= 4000 and one.count(" ") < 250 and (one, other) not in seen
        if good and one != "a held out line" and not (one.count(" ") > 8 and other.count(" ") < 3):
            seen.add((one, other))
            kept.append((f"<bt> {one}" if file == 2 else one, other, line, file))
    return kept


def test_the_corpus_is_that_of_a_plain_loop(dirty: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For one process and three, and whatever the chunks."""
    results = []
    for number, (chunk, workers) in enumerate([(20_000, 1), (7, 1), (7, 3), (150, 2)]):
        monkeypatch.setattr(corpus, "CHUNK_PAIRS", chunk)
        results.append(make(dirty, tmp_path / f"out-{number}", workers=workers))
    (record, told, files), rows = results[0], expected(tmp_path)
    assert files["train.en"].decode() == "".join(f"{source}\n" for source, *_ in rows)
    assert files["train.de"].decode() == "".join(f"{target}\n" for _, target, *_ in rows)
    assert np.frombuffer(files["train.lines"], "<i8").tolist() == [line for *_, line, _ in rows]
    origins = json.loads(files["train.sources.json"])
    assert [origin["end"] for origin in origins] == [sum(row[3] <= file for row in rows) for file in range(3)]
    assert [origin["of"] for origin in origins] == [0, 0, 1]
    for other in results[1:]:
        assert other[2] == files and other[1] == told
        assert other[0]["train"]["dropped"] == record["train"]["dropped"]
    train = record["train"]
    assert train["bad_bytes"] == 1 and train["read"] == 450 and train["pairs"] == len(rows)
    assert train["read"] == train["pairs"] + sum(train["dropped"].values())
    reasons = {"test_overlap", "too_many_words", "too_many_characters", "length_ratio", "duplicate", "empty_source"}
    assert reasons < set(train["dropped"])


def test_all_that_is_dropped_can_be_kept(dirty: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "CHUNK_PAIRS", 40)
    with (tmp_path / "rejected.jsonl").open("wb") as log:
        record, _, files = make(dirty, tmp_path / "out", workers=2, rejected=log)
    rows = [json.loads(line) for line in (tmp_path / "rejected.jsonl").read_text("utf-8").split("\n")[:-1]]
    counted: dict[str, int] = {}
    for row in rows:
        counted[row["reason"]] = counted.get(row["reason"], 0) + 1
    assert counted == record["train"]["dropped"] | {"bad_bytes": record["train"]["bad_bytes"]}
    kept = set(zip(files["train.en"].decode().split("\n"), files["train.de"].decode().split("\n"), strict=True))
    for row in rows:
        if row["reason"] == "duplicate":
            tag = "<bt> " if row["file"].endswith(".tsv") else ""
            assert (tag + row["source"], row["target"]) in kept or (row["source"], row["target"]) in kept
            assert not row["source"].startswith("<bt>")
        if row["file"].endswith(".de"):
            lines = (tmp_path / row["file"].split("/")[-1]).read_text("utf-8").split("\n")
            assert normalize(lines[row["line"] - 1]) == row["target"]
    for reason, examples in record["train"]["examples"].items():
        if reason == "identical":  # off, so none of them is dropped
            assert record["train"]["noticed"]["identical"] > 0 == counted.get("identical", 0)
            continue
        of_reason = [row for row in rows if row["reason"] == reason]
        assert [example["line"] for example in examples] == [row["line"] for row in of_reason[:3]]


def test_one_file_of_many_may_be_empty(tmp_path: Path) -> None:
    for name, text in (("a", ""), ("b", "one\n")):
        (tmp_path / f"{name}.en").write_text(text, "utf-8")
        (tmp_path / f"{name}.de").write_text(text.upper(), "utf-8")
    wanted = config(tmp_path, [{"source": "?.en", "target": "?.de"}])
    assert make(wanted, tmp_path / "out")[2]["train.en"] == b"one\n"
    (tmp_path / "b.en").write_text("", "utf-8")
    (tmp_path / "b.de").write_text("", "utf-8")
    with pytest.raises(UserError, match=r"no pairs in .*\?\.en \+ .*\?\.de$"):
        make(wanted, tmp_path / "other")


@pytest.mark.parametrize("where", ["first", "second"])
def test_each_source_has_pairs(tmp_path: Path, where: str) -> None:
    (tmp_path / "some.tsv").write_text("a\tb\n", "utf-8")
    (tmp_path / "none.jsonl").write_text("\n", "utf-8")
    train = [{"tsv": "some.tsv"}, {"jsonl": "none.jsonl"}]
    with pytest.raises(UserError, match=r"no pairs in .*none\.jsonl"):
        make(config(tmp_path, train if where == "second" else train[::-1]), tmp_path / "out")


def test_nothing_left_is_told_with_the_reasons(tmp_path: Path) -> None:
    (tmp_path / "some.tsv").write_text("\tb\na\t\n", "utf-8")
    with pytest.raises(UserError, match="no usable training pair: 2 read, empty_source 1, empty_target 1"):
        make(config(tmp_path, [{"tsv": "some.tsv"}]), tmp_path / "out")


def test_equal_pairs_may_stay(tmp_path: Path) -> None:
    (tmp_path / "some.tsv").write_text("a\tb\na\tb\n", "utf-8")
    files = make(config(tmp_path, [{"tsv": "some.tsv"}], cleaning={"deduplicate": False}), tmp_path / "out")[2]
    assert files["train.en"] == b"a\na\n" and set(files) == {
        "train.en", "train.de", "train.lines", "train.sources.json", "validation.en", "validation.de",
    }  # fmt: skip


def test_swapped_sides_are_told(tmp_path: Path) -> None:
    english, german = "it is the house of the man", "das ist nicht der Mann und die Frau"
    rows = [(f"{english} {number}", f"{german} {number}") for number in range(30)]
    rows = [pair[::-1] if number % 3 == 0 else pair for number, pair in enumerate(rows)]
    (tmp_path / "some.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in rows), "utf-8")
    told = make(config(tmp_path, [{"tsv": "some.tsv"}]), tmp_path / "out")[1]
    assert told[-1].startswith("warning: 33% of the pairs whose languages can be told (30 of 30 looked at)")


def test_no_two_test_sets_have_one_name(tmp_path: Path) -> None:
    test = [{"source": str(tmp_path / f"{name}.en"), "target": "x", "name": given} for name, given in
            (("a", None), ("b", "test-3"), ("c", "test"), ("d", "validation"), ("e", "test-3"))]  # fmt: skip
    names = corpus.test_names(config(tmp_path, [{"tsv": "t.tsv"}], test=test))
    assert names == ["test", "test-3", "test-4", "validation-4", "test-3-5"]


def test_equal_sources_are_sources_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n", "utf-8")
    (tmp_path / "c.tsv").write_text("c\td\n", "utf-8")
    train = [{"tsv": "a.tsv"}, {"tsv": "c.tsv", "weight": 3}, {"tsv": "a.tsv"}]
    files = make(config(tmp_path, train), tmp_path / "out")[2]
    origins = json.loads(files["train.sources.json"])
    assert [(origin["of"], origin["end"]) for origin in origins] == [(0, 1), (1, 2), (2, 2)]

"""Terms and kept texts through the command: what has to appear does, or a warning, the report and the exit code say."""

import json
from pathlib import Path

import pytest

from tests.running import TRAIN, Trained, assert_plain, inside, write_config

TERMS = "ba\tlo\nso\tvu pa\nnone\tnothing\n"


def missing(folder: Path) -> list[int]:
    return json.loads((folder / "report").read_text())["line_numbers"]["required_text_missing"]


def test_terms_have_their_targets(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "terms").write_text(TERMS)
    lines = ["ba do", "fi gu", "ba do so", "ba do ba", "", "Ba fi"]
    options = ("--terms", "terms", "--report", "report", "--strict")
    rows, done = trained.lines(tmp_path, lines, *options)
    assert done.exit_code == 0, done.stderr
    assert all("lo" in rows[number].casefold().split() for number in (0, 2, 3, 5))
    assert rows[1] == "gu fi" and rows[4] == "" and "vu pa" in rows[2] and rows[3].split().count("lo") == 2
    assert missing(tmp_path) == [] and "required text missing" not in done.stderr
    free, _ = trained.lines(tmp_path, lines)
    assert free[0] == "do ba" and free[1] == rows[1]


def test_terms_that_the_vocabulary_lacks_are_told_of(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "terms").write_text("ba\tzürich\ndo\tlo\n")
    options = ("--terms", "terms", "--report", "report", "--quiet")
    rows, done = trained.lines(tmp_path, ["fi", "ba do", "ba ba gu"], *options)
    assert done.exit_code == 0 and len(rows) == 3 and "lo" in rows[1].split()
    assert done.stderr == (
        "warning: line 2: the translation lacks 'zürich'\nwarning: line 3: the translation lacks 'zürich', 'zürich'\n"
    )
    assert missing(tmp_path) == [2, 3]
    again, done = trained.lines(tmp_path, ["fi", "ba do", "ba ba gu"], *options, "--strict")
    assert done.exit_code == 1 and again == rows
    assert "--strict: required text missing 2 (lines 2, 3)" in done.stderr


def test_bad_lists_and_patterns_are_refused_with_all_that_is_wrong(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "terms").write_text("ba\nso\tmi\nso\tfi\n\tx\n")
    for options, told in (
        (
            ("--terms", "terms"),
            ["line 1: found no tab", "line 3: found 'fi' for 'so'", "line 4: found an empty source"],
        ),
        (("--terms", "none"), ["none"]),
        (("--keep", "tags", "--keep", "dates"), ["found 'dates'; wanted one of tags, placeholders, urls, emails"]),
        (("--keep-pattern", "(", "--keep-pattern", "x*"), ["pattern '('", "pattern 'x*' matches the empty text"]),
    ):
        rows, done = trained.lines(tmp_path, ["ba"], *options)
        assert done.exit_code == 2 and rows == []
        assert all(message in done.stderr for message in told), done.stderr
        assert_plain(done.stderr)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--sample",), ["does not go together with sampling"]),
        (("--no-repeat-ngram", "2"), ["does not go together with --no-repeat-ngram"]),
        (("--sample", "--no-repeat-ngram", "2"), ["with sampling", "with --no-repeat-ngram"]),
    ],
)
def test_searches_that_cannot_hold_texts(
    trained: Trained, tmp_path: Path, options: tuple[str, ...], told: list[str]
) -> None:
    (tmp_path / "terms").write_text(TERMS)
    for name, required in (
        ("--terms", ("--terms", "terms")), ("--keep", ("--keep", "urls")), ("--keep-pattern", ("--keep-pattern", "x")),
    ):  # fmt: skip
        rows, done = trained.lines(tmp_path, ["ba"], *required, *options)
        assert done.exit_code == 2 and rows == []
        assert all(f"error: {name} " in done.stderr and message in done.stderr for message in told), done.stderr


@pytest.fixture(scope="module")
def copying(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model that has hardly learned, whose vocabulary has tags and placeholders, glued to words."""
    folder = tmp_path_factory.mktemp("copying")
    words = ["<b>ba</b>", "do", "{x}", "<i>fi</i>", "%s", "gu:", "a1", "b2"]
    rows = [f"{one} {other}\n" for one in words for other in words]
    for name, part in ((TRAIN, rows), ("valid", rows[3:9]), ("test", rows[9:12])):
        for language in ("en", "de"):
            (folder / f"{name}.{language}").write_text("".join(part))
    write_config(folder, training={"max_steps": 2}, tokenizer={"algorithm": "unigram"})
    done = inside(folder, "train", "-c", "c.yaml")
    assert done.exit_code == 0, done.stderr
    return Trained(folder, 0, [])


def test_what_is_kept_comes_as_often_as_it_is_there(copying: Trained, tmp_path: Path) -> None:
    lines = ["<b>ba</b> do {x} {x}", "do gu", "<b>do</b><b>do</b> %s", "a1 b2 do", ""]
    options = ("--keep", "tags", "--keep", "placeholders", "--keep-pattern", "[a-z][0-9]", "--report", "report")
    rows, done = copying.lines(tmp_path, lines, *options)
    assert done.exit_code == 0, done.stderr
    assert missing(tmp_path) == []
    kept = ["<b> </b> {x} {x}", "", "<b> <b> </b> </b> %s", "a1 b2", ""]
    for row, texts in zip(rows, map(str.split, kept), strict=True):
        assert all(row.count(text) >= texts.count(text) for text in texts)
    free, _ = copying.lines(tmp_path, lines)
    assert free[1] == rows[1] and "{x}" not in free[0] and rows[4] == ""


def test_every_kind_of_search_result_holds_them(copying: Trained, tmp_path: Path) -> None:
    options = ("--keep", "tags", "--n-best", "3", "--beam-size", "3", "--format", "jsonl")
    (row,), done = copying.lines(tmp_path, ["<b>ba</b> do"], *options)
    items = json.loads(row)["translations"]
    assert done.exit_code == 0 and len({item["text"] for item in items}) == 3
    assert all("<b>" in item["text"] and "</b>" in item["text"] for item in items)
    (text,), done = copying.lines(tmp_path, ["<b>Ba</b> do. " * 3], "--keep", "tags", "--split-sentences")
    assert done.exit_code == 0 and "lacks" not in done.stderr and text.count("<b>") >= 3

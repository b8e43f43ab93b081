"""`transformer-mt tokenizer`: what lines become, and what a vocabulary makes of a corpus."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.running import WORDS, assert_plain, command, environment, inside, train, write_config, write_task
from transformer_mt.data.tokenizer import Tokenizer
from transformer_mt.data.vocabulary_report import report

BYTES = {"byte_fallback": True, "vocabulary_size": 400}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a corpus and a tokenizer; rare characters are on the target side."""
    folder = tmp_path_factory.mktemp("prepared")
    write_task(folder)
    with (folder / "train.en").open("a") as source, (folder / "train.de").open("a") as target:
        source.write("ba do\n" * 2)
        target.write("日本 ba\n日 ba do\n")
    write_config(folder, tokenizer=BYTES)
    assert inside(folder, "tokenize", "-c", "c.yaml").exit_code == 0
    return folder


def tell(folder: Path, *arguments: str | Path, stdin: bytes | None = None, code: int = 0) -> str:
    """What is printed; of a failure what is wrong."""
    done = command("tokenizer", *arguments, cwd=folder, stdin=stdin)
    assert done.returncode == code, done.stderr
    assert_plain(done.stderr)
    assert (done.stdout if code else done.stderr) == ""
    return done.stderr if code else done.stdout


def told(folder: Path, *arguments: str | Path) -> str:
    """The same inside this process."""
    done = inside(folder, "tokenizer", *arguments)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def wrong(folder: Path, *arguments: str | Path) -> str:
    """The one line that tells what is wrong."""
    done = inside(folder, "tokenizer", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


# inspect


def test_a_line_is_shown_as_pieces_and_ids(prepared: Path) -> None:
    pieces = Tokenizer(prepared / "run" / "tokenizer").source_pieces()
    shown = told(prepared, "inspect", "-c", "c.yaml", "ba  do", "語", "", "</s>").split("\n")
    assert shown.pop() == ""
    rows = [[part.split() for part in line.split("\t")] for line in shown]
    assert [[pieces[int(number)] for number in ids] for _, ids in rows] == [names for names, _ in rows]
    assert [names for names, _ in rows[:3]] == [["▁ba", "▁do"], ["▁", "<0xE8>", "<0xAA>", "<0x9E>"], []]
    assert "</s>" not in rows[3][0] and len(rows[3][0]) > 3


def test_lines_of_a_pipe_are_shown_one_by_one(prepared: Path) -> None:
    text = "ba\u2028do\r\n\n\tfi  e\u0301 ".encode()
    *shown, end = tell(prepared, "inspect", "-m", "run", "--json", stdin=text).split("\n")
    found = [json.loads(line) for line in shown]
    assert end == "" and [one["text"] for one in found] == ["ba\u2028do", "", "\tfi  e\u0301 "]
    assert [one["normalized"] for one in found] == ["ba do", "", "fi é"]
    assert found[0]["pieces"] == ["▁ba", "▁do"] and found[2]["pieces"] == ["▁fi", "▁", "<0xC3>", "<0xA9>"]
    assert all(set(one) == {"text", "normalized", "pieces", "ids", "unknown"} for one in found)
    ids = Tokenizer(prepared / "run" / "tokenizer").encode_source([one["text"] for one in found])
    assert [one["ids"] for one in found] == ids and [one["unknown"] for one in found] == [[], [], []]


def test_what_is_no_text_is_told(prepared: Path) -> None:
    done = command("tokenizer", "inspect", "-m", "run", cwd=prepared, stdin=b"ba\nfi\xe9 gu\nba\n")
    assert (done.returncode, done.stdout[:3]) == (2, "▁ba")
    assert done.stderr == "error: standard input, line 2: byte 0xE9 at byte offset 2 of the line is not UTF-8\n"
    assert tell(prepared, "inspect", "-m", "run", b"\xe9".decode("utf-8", "surrogateescape"), code=2) == (
        "error: '\\udce9' is not UTF-8\n"
    )


def test_unknown_pieces_and_the_model_s_normalisation_are_told(task: Path) -> None:
    write_config(task, tokenizer={"normalization": "nmt_nfkc"})
    assert inside(task, "tokenize", "-c", "c.yaml").exit_code == 0
    (found,) = map(json.loads, told(task, "inspect", "-c", "c.yaml", "--json", "ba x … 語").splitlines())
    assert found["normalized"] == "ba x ... 語" and found["unknown"] == ["x", "...", "語"]
    assert [number for number in found["ids"] if number == 1] == [1, 1, 1]


def test_each_side_has_its_own_pieces(task: Path) -> None:
    rows = [line.upper() for line in (task / "train.de").read_text().splitlines()]
    (task / "train.de").write_text("".join(f"{line}\n" for line in rows))
    write_config(task, tokenizer={"shared": False}, model={"tie_embeddings": "decoder"})
    assert inside(task, "tokenize", "-c", "c.yaml").exit_code == 0
    assert told(task, "inspect", "-c", "c.yaml", "ba").startswith("▁ba\t")
    assert told(task, "inspect", "-c", "c.yaml", "--side", "target", "BA").startswith("▁BA\t")
    assert "\t4 1" not in told(task, "inspect", "-c", "c.yaml", "ba")
    entry = json.loads(told(task, "report", "-m", "run", "-i", "train.de", "--side", "target", "--json"))
    assert entry["target"]["unknown_pieces"] == 0 and "source" not in entry
    entry = json.loads(told(task, "report", "-m", "run", "-i", "train.de", "--side", "source", "--json"))
    assert entry["source"]["unknown_pieces"] > 0.4 and "target" not in entry


# Where a tokenizer is found


def test_a_tokenizer_is_found_where_a_model_is(task: Path) -> None:
    write_config(task, tokenizer=BYTES)
    train(task)
    run = task / "run"
    shutil.copytree(run / "model", task / "deployed")
    assert (run / "checkpoints" / "best").is_symlink()
    places = ["run", "run/model", "run/checkpoints/step-000000012", "run/checkpoints/best", "run/tokenizer", "deployed"]
    shown = [told(task, "inspect", "--model", place, "ba do") for place in places]
    assert len(set(shown)) == 1 and shown[0].startswith("▁ba ▁do\t")
    assert told(task / "run" / "model", "inspect", "-m", ".", "ba do") == shown[0]
    for gone in ("tokenizer", "corpus"):
        shutil.rmtree(run / gone)
    assert told(task, "inspect", "--model", "run", "ba do") == shown[0]
    shutil.rmtree(run / "model")
    assert "run holds no tokenizer" in wrong(task, "inspect", "--model", "run", "ba")


def test_what_is_missing_is_told(prepared: Path, tmp_path: Path) -> None:
    write_task(tmp_path)
    write_config(tmp_path)
    (tmp_path / "empty").mkdir()
    assert wrong(tmp_path, "inspect", "ba") == "error: give --model or --config"
    assert wrong(tmp_path, "inspect", "--set", "name=x", "-m", "empty") == (
        "error: --set changes a config: give --config"
    )
    assert wrong(tmp_path, "inspect", "-m", "nowhere", "ba") == "error: model folder nowhere not found"
    assert wrong(tmp_path, "inspect", "-m", "empty", "ba") == (
        "error: empty holds no tokenizer: wanted a run, model or checkpoint folder"
    )
    assert "run has no tokenizer yet: run `tokenize`" in wrong(tmp_path, "inspect", "-c", "c.yaml", "ba")
    assert "run has no corpus yet: run `download`" in wrong(tmp_path, "report", "-c", "c.yaml")
    assert inside(tmp_path, "download", "-c", "c.yaml").exit_code == 0
    assert "run has no tokenizer yet: run `tokenize`" in wrong(tmp_path, "report", "-c", "c.yaml")
    assert wrong(prepared, "inspect", "-m", "run", "--side", "en") == "error: --side en: wanted source, target"
    (tmp_path / "empty" / "spm.model").write_text("no model")
    assert "wanted a SentencePiece .model" in wrong(tmp_path, "inspect", "-m", "empty", "ba")


# report


def test_a_report_of_the_corpus(prepared: Path) -> None:
    found = json.loads(told(prepared, "report", "-c", "c.yaml", "--json"))
    corpus = prepared / "run" / "corpus"
    texts = [(corpus / f"train.{language}").read_text("utf-8").splitlines() for language in ("en", "de")]
    wanted = report(Tokenizer(prepared / "run" / "tokenizer"), *texts)
    assert found["split"] == "train" and found["lines_of_corpus"] == len(texts[0]) == 302
    for side, language in (("source", "en"), ("target", "de")):
        assert found[side] == {"language": language, **wanted[side]}
    (rare,) = found["target"]["rare_characters"]
    assert rare == {"character": "本", "code": "U+672C", "count": 1, "written_as": "bytes"}
    assert found["source"]["pieces_per_word"] == 1 and found["source"]["vocabulary_used"] == len(WORDS)


def test_a_report_for_people(prepared: Path) -> None:
    shown = told(prepared, "report", "-c", "c.yaml").splitlines()
    assert shown[0] == "train: all 302 pairs" and shown[1].split() == ["en", "de"]
    rows = {row.split("  ")[0]: row.split()[-2:] for row in shown[2:]}
    assert rows["pieces a word"] == ["1.00", "1.00"] and rows["byte pieces"] == ["0.00%", "0.31%"]
    assert shown[-1] == "written as bytes in de: 本 U+672C 1"
    shown = told(prepared, "report", "-c", "c.yaml", "--lines", "100").splitlines()
    assert shown[0] == "train: 100 of 302 pairs, drawn evenly" and shown[2].split() == ["lines", "100", "100"]


def test_a_report_of_another_split_or_file(prepared: Path, tmp_path: Path) -> None:
    found = json.loads(told(prepared, "report", "-c", "c.yaml", "--split", "test", "--json"))
    assert (found["split"], found["target"]["lines"]) == ("test", 40)
    (tmp_path / "in.txt").write_text("ba do\nba 語\n" * 30, "utf-8")
    shown = told(prepared, "report", "-c", "c.yaml", "-i", tmp_path / "in.txt", "--side", "source", "--lines", "40")
    assert shown.startswith(f"{tmp_path / 'in.txt'}: 40 of 60 lines, drawn evenly\n") and "語 U+8A9E" in shown
    given = ("-i", str(tmp_path / "in.txt"), "--side", "target", "--json")
    assert json.loads(told(prepared, "report", "-m", "run", *given))["target"]["words"] == 120


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-m", "run"), "give --config, whose corpus is read, or --input and --side"),
        (("-m", "run", "-i", "train.de"), "--input needs --side: source or target"),
        (("-c", "c.yaml", "--side", "source"), "--side goes together with --input: without it both sides are told"),
        (("-c", "c.yaml", "-i", "train.de", "--side", "de"), "--side de: wanted source, target"),
        (("-m", "run", "-i", "a", "--side", "target", "--split", "test"), "--input and --split do not go together"),
        (("-c", "c.yaml", "--split", "dev"), "--split dev: run/corpus holds test, train, validation"),
        (("-m", "run", "-i", "nowhere", "--side", "target"), "--input: nowhere does not exist"),
        (("-m", "run", "-i", "empty", "--side", "target"), "--input: empty is empty"),
        (("-m", "run", "-i", "latin", "--side", "target"), "latin, line 2: byte 0xE9 at byte offset 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_report_that_cannot_be(prepared: Path, arguments: tuple[str, ...], message: str) -> None:
    (prepared / "empty").touch()
    (prepared / "latin").write_bytes(b"ba\nf\xe9\n")
    assert wrong(prepared, "report", *arguments).removeprefix("error: ").startswith(message)


def test_nothing_is_read_for_a_report_of_no_lines(prepared: Path) -> None:
    done = inside(prepared, "tokenizer", "report", "-c", "c.yaml", "--lines", "0")
    assert done.exit_code == 2 and "--lines" in done.stderr


# What is loaded


def modules(folder: Path, *arguments: str) -> set[str]:
    """What a command has loaded when it leaves."""
    code = f"""
import sys
from transformer_mt.cli import main
sys.argv = ["transformer-mt", *{arguments!r}]
try:
    main()
except SystemExit as leaving:
    assert not leaving.code
sys.stderr.write(" ".join(sys.modules))
"""
    run: dict[str, Any] = {"cwd": folder, "env": environment(), "capture_output": True, "text": True, "timeout": 120}
    done = subprocess.run([sys.executable, "-c", code], **run)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stderr.split()}


def test_a_tokenizer_needs_no_torch(prepared: Path) -> None:
    assert "sentencepiece" not in modules(prepared, "tokenizer", "inspect", "--help")
    for arguments in (("inspect", "-m", "run", "ba"), ("report", "-c", "c.yaml")):
        loaded = modules(prepared, "tokenizer", *arguments)
        assert "sentencepiece" in loaded and not loaded & {"torch", "datasets", "transformers"}


# Symbols and tags, from the configuration to a translation


def tagged(folder: Path, **tokenizer: Any) -> None:
    """A configuration with a tagged source, a symbol, and text that holds both."""
    write_task(folder)
    for language, form in (("en", "{} <url>\n"), ("de", "<url> {}\n")):
        rows = (folder / f"train.{language}").read_text().splitlines()
        (folder / f"made.{language}").write_text("".join(map(form.format, rows)))
    made = {"source": "made.en", "target": "made.de", "tag": "<bt>"}
    data = {"train": [{"source": "train.en", "target": "train.de"}, made]}
    write_config(folder, data=data, tokenizer={"symbols": ["<url>", "<a,b>"], **tokenizer})


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_symbols_and_tags_are_one_piece_from_text_to_translation(tmp_path: Path, algorithm: str) -> None:
    tagged(tmp_path, algorithm=algorithm)
    said = train(tmp_path)
    assert "warning" not in said
    (found,) = map(json.loads, told(tmp_path, "inspect", "-m", "run", "--json", "<bt> ba<a,b>do <url>").splitlines())
    assert [piece for piece in found["pieces"] if "<" in piece] == ["<bt>", "<a,b>", "<url>"]
    assert found["unknown"] == [] and min(found["ids"]) >= 4
    shown = told(tmp_path, "inspect", "-c", "c.yaml", "--side", "target", "<url> ba").split("\t")[0].split()
    assert shown[:2] == ["▁", "<url>"]
    done = command("translate", "-m", "run", "--strict", cwd=tmp_path, stdin=b"<bt> ba do <url>\n")
    assert len(done.stdout.splitlines()) == 1 and "unknown" not in done.stderr


def test_symbols_that_cannot_be_are_refused_before_any_work(tmp_path: Path) -> None:
    tagged(tmp_path, symbols=["</s>", "<0x41>"])
    done = inside(tmp_path, "tokenize", "-c", "c.yaml")
    assert done.exit_code == 2 and done.stderr.splitlines() == [
        "error: tokenizer.symbols and tags of sources: found '</s>', a special piece, which no text may become",
        "error: tokenizer.symbols and tags of sources: found '<0x41>', which stands for a byte",
    ]
    assert not (tmp_path / "run").exists()


def test_a_given_model_without_the_tag_is_told(tmp_path: Path) -> None:
    tagged(tmp_path)
    assert inside(tmp_path, "tokenize", "-c", "c.yaml").exit_code == 0
    shutil.copy(tmp_path / "run" / "tokenizer" / "spm.model", tmp_path / "tagged.model")
    write_config(tmp_path, tokenizer={"symbols": []})
    assert inside(tmp_path, "tokenize", "-c", "c.yaml").exit_code == 0
    shutil.copy(tmp_path / "run" / "tokenizer" / "spm.model", tmp_path / "plain.model")
    for name, wanted in (("tagged", False), ("plain", True)):
        tagged(tmp_path, model=f"{name}.model")
        done = inside(tmp_path, "tokenize", "-c", "c.yaml")
        assert done.exit_code == 0
        warnings = [line for line in done.stderr.splitlines() if line.startswith("warning")]
        assert bool(warnings) == wanted and all("<bt>" in line and "<url>" in line for line in warnings)

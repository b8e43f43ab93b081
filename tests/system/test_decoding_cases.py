"""What went wrong in other toolkits' decoding, one case each: numbers, order and counts of lines, limits and memory."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests import tiny
from tests.running import COMMAND, Trained, assert_plain, environment, inside, sentences, write_config, write_task
from tests.tiny import beam_search
from transformer_mt.data.tokenizer import BOS, EOS, PAD, UNK
from transformer_mt.decode.models import ModelSteps
from transformer_mt.decode.search import LengthPenalty, Rules
from transformer_mt.model.stepwise import StepDecoder

LINES = [" ".join(row) for row in sentences(100, 77)]


def best(rows: list[str]) -> list[str]:
    """The first translation of each JSON record."""
    return [json.loads(row)["translations"][0]["text"] for row in rows]


def changed_logits(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], None]) -> None:
    """Has every step's logits changed before the search sees them."""
    original = ModelSteps.step

    def step(self: ModelSteps, tokens: Tensor, rows: Tensor | None) -> Tensor:
        logits = original(self, tokens, rows)
        change(logits)
        return logits

    monkeypatch.setattr(ModelSteps, "step", step)


def test_x01_fifty_lines_in_batches_of_1_7_and_64_are_the_same(trained: Trained, tmp_path: Path) -> None:
    found = []
    for size in (1, 7, 64):
        options = ("--beam-size", "4", "--batch-size", str(size))
        texts, done = trained.lines(tmp_path, LINES[:50], *options)
        assert done.exit_code == 0 and len(texts) == 50
        rows, _ = trained.lines(tmp_path, LINES[:50], *options, "--n-best", "4", "--format", "jsonl")
        assert best(rows) == texts
        items = [item for row in rows for item in json.loads(row)["translations"]]
        found.append((texts, [item["text"] for item in items], [item["score"] for item in items]))
    for texts, every, scores in found[1:]:
        assert texts == found[0][0]
        assert scores == pytest.approx(found[0][2], abs=1e-5)
        close = zip(every, found[0][1], found[0][2], strict=True)
        assert all(one == other or score < -5 for one, other, score in close)  # far behind, rounding may decide


@pytest.mark.parametrize(
    ("penalty", "short", "long"),
    [
        (LengthPenalty("none"), -2.0, -4.5),
        (LengthPenalty("average"), -1.0, -0.75),
        (LengthPenalty("gnmt", 0.6), -1.8233, -3.1280),
        (LengthPenalty("power", 0.6), -1.3195, -1.5358),
    ],
)
def test_x02_forms_of_the_length_penalty(penalty: LengthPenalty, short: float, long: float) -> None:
    """Sum -2.0 at length 2 and -4.5 at length 6: by these forms all but the average prefer the short one."""
    lengths = torch.tensor([2.0, 6.0], dtype=torch.float64)
    found = (torch.tensor([-2.0, -4.5]) / penalty(lengths)).tolist()
    assert found == pytest.approx([short, long], abs=1e-4)
    assert (found[0] > found[1]) == (penalty.form != "average")


def test_x02_the_printed_score_is_the_formula_that_the_help_shows(trained: Trained, tmp_path: Path) -> None:
    shown = " ".join(inside(tmp_path, "translate", "--help").stdout.split())
    assert "n counts </s>: none 1, average n, power n^alpha, gnmt ((5+n)/6)^alpha" in shown.replace("│ ", "")
    forms = {
        "none": lambda n: 1,
        "average": lambda n: n,
        "power": lambda n: n**0.5,
        "gnmt": lambda n: ((5 + n) / 6) ** 0.5,
    }
    for form, divisor in forms.items():
        options = ("--format", "jsonl", "--length-penalty", form, "--alpha", "0.5")
        (row,), _ = trained.lines(tmp_path, ["ba do fi"], *options)
        (item,) = json.loads(row)["translations"]
        assert item["length"] == 4
        assert item["score"] == pytest.approx(item["log_probability"] / divisor(item["length"]), rel=1e-5)


@pytest.mark.parametrize(("form", "n_best"), [("text", 1), ("moses", 1), ("moses", 2), ("jsonl", 1), ("jsonl", 2)])
def test_x03_blank_lines_stay_blank(trained: Trained, tmp_path: Path, form: str, n_best: int) -> None:
    """A line separator is white space too."""
    rows, done = trained.lines(tmp_path, ["ba", "", " ", "do", "\u2028"], "--format", form, "--n-best", str(n_best))
    assert done.exit_code == 0 and "5 lines, empty 3" in done.stderr
    found = [(number, row) for number, row in enumerate(rows)]
    if form == "jsonl":
        records = [json.loads(row) for row in rows]
        found = [(record["line"] - 1, item["text"]) for record in records for item in record["translations"]]
    elif form == "moses":
        found = [(int(number), text) for number, text, _ in (row.split(" ||| ") for row in rows)]
    assert [number for number, _ in found] == [*[0] * n_best, 1, 2, *[3] * n_best, 4]
    texts = dict(reversed(found))  # the first of each number
    assert [texts[number] for number in range(5)] == ["ba", "", "", "do", ""]


def test_x03_nothing_in_nothing_out(trained: Trained, tmp_path: Path) -> None:
    rows, done = trained.lines(tmp_path, [])
    assert (done.exit_code, rows, (tmp_path / "out").read_bytes()) == (0, [], b"")


@pytest.mark.parametrize("count", [1, 7, 8, 9, 17])
def test_x04_no_line_is_lost_whatever_their_number(trained: Trained, tmp_path: Path, count: int) -> None:
    (tmp_path / "file").write_text("\n".join(LINES[:count]))  # the last one without its line feed
    arguments = ("-m", trained.model, "-i", "file", "-o", "out", "--batch-size", "8")
    assert inside(tmp_path, "translate", *arguments).exit_code == 0
    assert (tmp_path / "out").read_text().count("\n") == count


@pytest.mark.parametrize("long_lines", ["split", "cut"])
def test_x04_a_line_of_5000_pieces_takes_no_other_with_it(trained: Trained, tmp_path: Path, long_lines: str) -> None:
    lines = [*LINES[:49], "ba do " * 2500, *LINES[50:]]
    options = ("--long-lines", long_lines, "--beam-size", "2", "--max-length-extra", "5")
    rows, done = trained.lines(tmp_path, lines, *options)
    assert done.exit_code == 0 and len(rows) == 100 and rows[49]
    told = {"split": "line 50: 5000 pieces, translated in", "cut": "line 50: source cut 5000→1024 pieces"}
    assert f"warning: {told[long_lines]}" in done.stderr
    alone, _ = trained.lines(tmp_path, [*LINES[:49], *LINES[50:]], *options)
    assert [*rows[:49], *rows[50:]] == alone
    assert trained.lines(tmp_path, [lines[50]], *options)[0] == [rows[50]]


def test_x05_cutting_is_never_silent(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text((trained.folder / "c.yaml").read_text())
    limit = ("--config", "c.yaml", "--set", "decoding.max_source_tokens=10", "--set", f"output={trained.run}")
    line = " ".join(("ba do fi gu ka " * 6).split())
    rows, done = trained.lines(tmp_path, [line, "ba"], *limit, "--long-lines", "cut", "--quiet")
    assert done.exit_code == 0 and len(rows) == 2
    assert done.stderr.startswith("warning: line 1: source cut 30→10 pieces (")
    assert trained.lines(tmp_path, [line[: 10 * 3]], *limit)[0] == rows[:1]
    rows, done = trained.lines(tmp_path, ["ba", line], *limit, "--long-lines", "cut", "--strict")
    assert done.exit_code == 1 and len(rows) == 2
    assert "--strict: source cut 1 (line 2)" in done.stderr and "2 lines, source cut 1" in done.stderr
    rows, done = trained.lines(tmp_path, ["ba", line], *limit, "--strict", "--report", "report")
    assert done.exit_code == 0 and "line 2: 30 pieces, translated in 4 parts" in done.stderr
    assert json.loads((tmp_path / "report").read_text())["line_numbers"]["in_parts"] == [2]
    assert rows[1]


def test_x05_the_positions_of_a_model_bound_what_it_reads(tmp_path: Path) -> None:
    write_task(tmp_path, 30)
    model, training = {"positions": "learned", "max_positions": 11}, {"max_tokens": 11, "max_steps": 1}
    write_config(tmp_path, model=model, training=training)
    assert inside(tmp_path, "train", "-c", "c.yaml").exit_code == 0
    ours = Trained(tmp_path, 0, [])
    rows, done = ours.lines(tmp_path, ["ba", "ba " * 30, "do"], "--long-lines", "cut")
    assert done.exit_code == 0 and len(rows) == 3 and "line 2: source cut 30→10 pieces (" in done.stderr
    rows, done = ours.lines(tmp_path, ["ba", "ba " * 30, "do"])
    assert done.exit_code == 0 and len(rows) == 3 and "line 2: 30 pieces, translated in 4 parts (" in done.stderr


def test_x06_white_space_at_the_end_never_reaches_the_model(trained: Trained, tmp_path: Path) -> None:
    rows, _ = trained.lines(tmp_path, ["no", "no\t \r", " no \u3000", "ba do", "ba\t do \v"], "--format", "jsonl")
    found = [json.loads(row)["translations"] for row in rows]
    assert found[0] == found[1] == found[2] and found[3] == found[4] and found[0][0]["text"]


@pytest.mark.parametrize("beam_size", [1, 4])
def test_x06_without_an_end_the_limit_is_exact_and_told(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beam_size: int
) -> None:
    changed_logits(monkeypatch, lambda logits: logits[:, EOS].fill_(-torch.inf))
    factor = ("--max-length-factor", "2.5", "--max-length-extra", "3", "--beam-size", str(beam_size))
    rows, done = trained.lines(tmp_path, ["ba do fi", ""], *factor, "--format", "jsonl", "--strict")
    assert json.loads(rows[0])["translations"][0]["length"] == int(2.5 * 3) + 3 + 1
    assert "hit length limit 1" in done.stderr
    assert done.exit_code == 1 and "--strict: hit length limit 1 (line 1)" in done.stderr


def test_x06_repeated_words_are_told_of(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformer_mt.data.tokenizer import Tokenizer

    one = Tokenizer(trained.model).target_pieces().index("▁ba")
    changed_logits(monkeypatch, lambda logits: logits[:, one].fill_(50.0))
    _, done = trained.lines(tmp_path, ["do fi", "", "do"], "--max-length-extra", "9", "--report", "report")
    assert "repeats 1" in done.stderr and done.exit_code == 0
    assert json.loads((tmp_path / "report").read_text())["line_numbers"]["repeats"] == [1]


@pytest.mark.parametrize("token", [PAD, BOS, UNK, EOS], ids=["pad", "bos", "unk", "eos"])
def test_x07_what_is_no_text_is_never_produced(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: int
) -> None:
    lines = ["1.", "An introduction to Machine Translation", "ba do"]
    together, _ = trained.lines(tmp_path, lines)
    assert [trained.lines(tmp_path, [line])[0][0] for line in lines] == together and all(together)
    changed_logits(monkeypatch, lambda logits: logits[:, token].add_(100.0))
    rows, done = trained.lines(tmp_path, lines)
    assert done.exit_code == 0 and all(rows) and not any("⁇" in row or "<" in row for row in rows)
    if token == EOS:
        assert trained.lines(tmp_path, lines, "--min-length", "0")[0] == [""] * 3


def test_x08_more_hypotheses_than_beams_are_refused_before_any_work(trained: Trained, tmp_path: Path) -> None:
    _, done = trained.lines(tmp_path, ["ba"], "--beam-size", "4", "--n-best", "10")
    assert done.exit_code == 2 and "found 10, wanted at most beam_size (4)" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_x08_beams_beyond_the_vocabulary(tmp_path: Path) -> None:
    for name, text in (("train", "ab ba\nb a\nba b\nb ab\n"), ("valid", "a b\n"), ("test", "b a b\n")):
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text(text)
    tokenizer = {"vocabulary_size": 12, "vocabulary_limit": "hard", "byte_fallback": False}
    write_config(tmp_path, tokenizer=tokenizer, training={"max_steps": 1})
    assert inside(tmp_path, "train", "-c", "c.yaml").exit_code == 0
    (tmp_path / "in").write_text("ab a\nb\n")
    wide = ("--beam-size", "20", "--n-best", "20", "-i", "in", "-o", "out", "--format", "jsonl")
    done = inside(tmp_path, "translate", "-m", "run", *wide)
    assert done.exit_code == 0, done.stderr
    for row in (tmp_path / "out").read_text().splitlines():
        items = json.loads(row)["translations"]
        assert len(items) == 20 and len({(item["text"], item["score"]) for item in items}) == 20


@pytest.mark.parametrize("options", [(), ("--interactive",)], ids=str)
def test_x09_a_pipe_is_answered_line_by_line(trained: Trained, options: tuple[str, ...]) -> None:
    line = [*COMMAND, "translate", "--model", str(trained.model), *options]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(line, env=environment(), **pipes) as process:
        assert process.stdin and process.stdout
        for text, answer in ((b"ba do\n", b"do ba\n"), (b"\n", b"\n"), (b"fi\n", b"fi\n")):
            process.stdin.write(text)
            process.stdin.flush()
            assert process.stdout.readline() == answer
        process.stdin.close()
        assert process.wait(60) == 0


def test_x09_a_reader_that_leaves_is_no_error(trained: Trained) -> None:
    text = "".join(f"{line}\n" for line in LINES * 100)
    line = " ".join([*COMMAND, "translate", "--model", str(trained.model), "--beam-size", "1"])
    shell = f"{line} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", shell], input=text.encode(), capture_output=True, timeout=200, env=environment()
    )
    first, code = done.stdout.decode().split("\n")[:2]
    assert sorted(first.split()) == sorted(LINES[0].split()) and code == "0"
    assert_plain(done.stderr.decode())
    assert b"BrokenPipe" not in done.stderr


def test_x10_finished_sentences_leave() -> None:
    """Outputs of 5 to 60 words: rows passed to the decoder are at most 1.3 x the real steps x the beam."""
    lengths = [5 + 55 * number // 31 for number in range(32)]

    def ends_at_its_length(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        logits = torch.zeros(8, dtype=torch.float64)
        logits[4] = 20.0
        logits[EOS] = 40.0 if len(prefix) >= lengths[sentence] else -40.0
        return logits

    table = tiny.Table(ends_at_its_length, 32, 4)
    limits, rules = [length + 50 for length in lengths], Rules(EOS, (PAD, UNK, BOS))
    found = dict(beam_search(table, limits, start=BOS, beam_size=4, rules=rules))
    assert [len(found[number][0].tokens) for number in range(32)] == lengths
    assert table.rows <= 1.3 * 4 * sum(length + 1 for length in lengths)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()], ids=repr)
def test_x10_without_memory_for_64_all_lines_are_there(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    expected, _ = trained.lines(tmp_path, LINES)
    sizes, original = [], StepDecoder.step

    def step(self: StepDecoder, tokens: Tensor, rows: Tensor | None) -> Tensor:
        sizes.append(len(tokens))
        if len(tokens) >= 64:
            raise error
        return original(self, tokens, rows)

    monkeypatch.setattr(StepDecoder, "step", step)
    rows, done = trained.lines(tmp_path, LINES, "--batch-size", "64")
    assert done.exit_code == 0 and rows == expected
    assert sizes[0] == 64 and max(sizes[1:]) == 32

"""Models for other programs and from elsewhere, by the command: whole, checked, and refused in sentences."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.running import Trained, assert_plain, example, inside
from transformer_mt.errors import UserError
from transformer_mt.export import ctranslate2

LINES = ["ba do fi", "gu ka lo mi", "ba"]
REVERSED = ["fi do ba", "mi lo ka gu", "ba"]


@pytest.mark.parametrize("form", ["huggingface", "ctranslate2", "onnx"])
def test_an_export_proves_itself_and_is_used_as_its_card_says(trained: Trained, tmp_path: Path, form: str) -> None:
    done = inside(tmp_path, "export", "--model", trained.run, "--format", form, "--output", "out")
    assert done.exit_code == 0, done.stderr
    assert "compared with" in done.stderr and "largest difference" in done.stderr and done.stdout == ""
    assert_plain(done.stderr)
    assert example(tmp_path / "out", LINES[:2]) == REVERSED[:2]
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    own = (trained.model / "README.md").read_text("utf-8")
    assert card.startswith(own.split("## Use")[0]) and card.count("## Use\n") == 1
    for section in ("## Data", "## Training", "## Scores", "## Limits", "## Licence"):
        assert section in card and own.split(section)[1].split("\n## ")[0].strip() in card
    assert str(trained.folder) not in card and str(tmp_path) not in card


def test_small_weights(trained: Trained, tmp_path: Path) -> None:
    sizes = []
    for precision in ("float32", "int8"):
        options = ("--format", "ctranslate2", "--precision", precision, "--output", precision)
        done = inside(tmp_path, "export", "-m", trained.model, *options)
        assert done.exit_code == 0, done.stderr
        sizes.append((tmp_path / precision / "model.bin").stat().st_size)
        assert example(tmp_path / precision, LINES[:2]) == REVERSED[:2]
    (tmp_path / "here").mkdir()
    done = inside(tmp_path / "here", "export", "-m", trained.model, "--format", "ctranslate2", "--output", ".")
    assert done.exit_code == 0 and (tmp_path / "here" / "model.bin").is_file(), done.stderr
    assert sizes[1] < 0.9 * sizes[0]  # the table of positions stays as it is


def test_sentences_to_compare_on(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("ba do\n\nfi gu ka\n")
    options = ("--format", "ctranslate2", "--output", "out", "--sentences", "lines")
    done = inside(tmp_path, "export", "-m", trained.model, *options)
    assert done.exit_code == 0 and "4 greedy outputs" in done.stderr, done.stderr  # one piece, 200 pieces, two lines


def test_all_that_is_wrong_is_told_at_once(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    options = ("--format", "huggingface", "--precision", "int8", "--output", "out", "--sentences", "lines")
    done = inside(tmp_path, "export", "-m", trained.model, *options)
    assert done.exit_code == 2
    assert [line.removeprefix("error: ") for line in done.stderr.splitlines()] == [
        "--output out is there already: give a new folder",
        "--precision does not go together with --format huggingface, whose weights are float32",
        "--sentences: lines does not exist",
    ]
    done = inside(tmp_path, "export", "-m", "nowhere", "--format", "ctranslate2", "--precision", "int3", "-o", "new")
    assert done.exit_code == 2 and "--precision int3: wanted float32" in done.stderr
    assert "model folder nowhere not found" in done.stderr and not (tmp_path / "new").exists()
    done = inside(tmp_path, "export", "-m", trained.model, "--format", "gguf", "--output", "new")
    assert done.exit_code == 2 and "--format gguf: wanted huggingface, ctranslate2, onnx" in done.stderr


def test_a_wrong_weight_ends_it_and_leaves_nothing(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ctranslate2.specification

    def wrong(*arguments: Any) -> Any:
        spec = right(*arguments)
        spec.decoder.projection.weight = spec.decoder.projection.weight + 0.01
        spec.decoder.projection.weight[7] += 0.5
        return spec

    monkeypatch.setattr(ctranslate2, "specification", wrong)
    done = inside(tmp_path, "export", "-m", trained.model, "--format", "ctranslate2", "--output", "out")
    assert done.exit_code == 1 and "is not this one" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["huggingface", "ctranslate2", "onnx"])
def test_nothing_that_is_there_is_replaced(trained: Trained, tmp_path: Path, form: str) -> None:
    """Nor is a folder made inside a file; nor does a program that calls an exporter by itself lose anything."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for output, told in (("folder", "is there already"), ("file", "is there already"), ("file/x", "is a file, wanted")):
        done = inside(tmp_path, "export", "-m", trained.model, "--format", form, "--output", output)
        assert done.exit_code == 2 and told in done.stderr, done.stderr
        module = import_module(f"transformer_mt.export.{form}")
        with pytest.raises(UserError, match=told):
            module.export(trained.model, tmp_path / output)
    assert (tmp_path / "folder" / "mine").read_text() == (tmp_path / "file").read_text() == "mine"


def test_the_card_has_the_scores(trained: Trained) -> None:
    """Of the validation during training, and of the test set once it was evaluated; each with its signature."""
    card = (trained.model / "README.md").read_text("utf-8")
    report = json.loads((trained.run / "scores" / "test.json").read_text())
    assert card.startswith("---\nlanguage:\n- en\n- de\n") and "license: unknown" in card
    assert f"- test test: BLEU {report['bleu']:.2f}, {report['signature']}" in card
    assert "- validation BLEU" in card and "pairs after cleaning" in card and "`train.en` and `train.de`" in card


def test_a_model_from_elsewhere_translates_is_scored_and_goes_on(tmp_path: Path) -> None:
    from tests.equivalence.test_marian_import import write_folder

    theirs = write_folder(tmp_path / "opus-mt-de-en")
    done = inside(tmp_path, "import", theirs, "--output", "ours")
    assert done.exit_code == 0 and "compared with" in done.stderr, done.stderr
    assert_plain(done.stderr)
    again = inside(tmp_path, "import", theirs, "--output", "ours")
    assert again.exit_code == 2 and "is there already" in again.stderr
    (tmp_path / "test.de").write_text("ein Hund\nder Mond\n")
    (tmp_path / "test.en").write_text("a dog\nthe moon\n")
    done = inside(tmp_path, "translate", "-m", "ours", "-i", "test.de", "-o", "out")
    assert done.exit_code == 0 and (tmp_path / "out").read_text().count("\n") == 2, done.stderr
    done = inside(tmp_path, "score", "-m", "ours", "-i", "test.de", "-t", "test.en", "-o", "scores")
    assert done.exit_code == 0 and len((tmp_path / "scores").read_text().splitlines()) == 2
    done = inside(tmp_path, "evaluate", "--hypothesis", "out", "--reference", "test.en", "--target-language", "en")
    assert done.exit_code == 0 and "BLEU" in done.stdout
    done = inside(tmp_path, "export", "-m", "ours", "--format", "ctranslate2", "--output", "further")
    assert done.exit_code == 0 and (tmp_path / "further" / "vocabulary.json").is_file(), done.stderr

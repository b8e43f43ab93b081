"""From files to ids through the command line: what is refused, what is told, what is written."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from tests.running import (
    assert_plain,
    command,
    digests,
    files,
    patched,
    sentences,
    start,
    write_config,
    write_pairs,
    write_task,
)
from transformer_mt.data.store import Store
from transformer_mt.data.tokenizer import Tokenizer


def tokenize(folder: Path, *arguments: str, code: int = 0, **env: str) -> str:
    done = command("tokenize", "-c", "c.yaml", *arguments, cwd=folder, env=env)
    assert done.returncode == code, done.stderr
    assert_plain(done.stderr)
    if code:
        assert re.search("^error: ", done.stderr, re.MULTILINE)
        assert not list(Path(folder).rglob("*.partial"))
    return done.stderr


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_vocabulary_too_large(task: Path, algorithm: str) -> None:
    large = {"algorithm": algorithm, "vocabulary_size": 5000, "vocabulary_limit": "hard"}
    write_config(task, tokenizer=large)
    told = tokenize(task, code=2)
    most = int(told.split("at most ")[1].split()[0])
    assert "tokenizer.vocabulary_size: found 5000" in told and "vocabulary_limit: soft" in told
    assert not (task / "run" / "tokenizer").exists()
    write_config(task, tokenizer={**large, "vocabulary_limit": "soft"})
    tokenize(task)
    assert 20 < Tokenizer(task / "run" / "tokenizer").source_size <= most
    write_config(task, tokenizer={**large, "vocabulary_size": most})
    tokenize(task)
    assert Tokenizer(task / "run" / "tokenizer").source_size == most


def test_training_builds_embeddings_of_the_real_size(task: Path) -> None:
    write_config(task, tokenizer={"vocabulary_size": 5000, "vocabulary_limit": "soft"}, training={"max_steps": 1})
    assert command("train", "-c", "c.yaml", cwd=task).returncode == 0
    size = Tokenizer(task / "run" / "tokenizer").source_size
    header = json.loads((task / "run/model/model.safetensors").read_bytes()[8:].split(b"}}")[0] + b"}}")
    assert size < 1000 and max(item["shape"][0] for key, item in header.items() if "shape" in item) >= size
    assert [size, 32] in [item["shape"] for item in header.values() if "shape" in item]


def test_four_texts_that_nothing_can_be_learned_from(tmp_path: Path) -> None:
    write_task(tmp_path)
    write_config(tmp_path, data={"train": [{"source": "gone.en", "target": "train.de"}]})
    messages = [tokenize(tmp_path, code=2)]
    for name in ("empty.en", "empty.de"):
        (tmp_path / name).write_bytes(b"")
    write_config(tmp_path, data={"train": files("empty")})
    messages.append(tokenize(tmp_path, code=2))
    for name in ("long.en", "long.de"):
        (tmp_path / name).write_text("x" * 9000 + "\n")
    cleaning = {"max_characters": None, "deduplicate": False}
    write_config(tmp_path, data={"train": files("long"), "cleaning": cleaning})
    messages.append(tokenize(tmp_path, code=2))
    write_config(tmp_path, data={"train": files("long")})
    messages.append(tokenize(tmp_path, code=2))
    for message, told in zip(messages, ("gone.en", "0 bytes", "max_line_bytes", "too_many_characters 1"), strict=True):
        assert told in message


def test_comma_in_a_path(tmp_path: Path) -> None:
    write_task(tmp_path)
    for side in ("en", "de"):
        shutil.copy(tmp_path / f"train.{side}", tmp_path / f"a,b c.{side}")
    write_config(tmp_path, data={"train": files("a,b c")})
    assert "300 pairs" in tokenize(tmp_path)


def test_long_line_is_told(task: Path) -> None:
    with (task / "train.en").open("a") as source, (task / "train.de").open("a") as target:
        source.write("ж" * 2200 + "\n")
        target.write("ж\n")
    told = tokenize(task)
    assert "warning: 1 line longer than 4192 bytes left out of learning" in told
    assert "sampled 601 of 602 lines" in told


@pytest.mark.parametrize("policy", ["skip", "truncate", "error"])
def test_too_long_pairs_are_told_by_their_line(tmp_path: Path, policy: str) -> None:
    write_task(tmp_path)
    rows = sentences(20, 9)
    rows[6] = ["ba", "do"] * 40
    rows.insert(2, [])  # an empty pair, which cleaning drops
    write_pairs(tmp_path, "more", rows)
    data = {"train": [*files("train"), *files("more")]}
    write_config(tmp_path, data=data, training={"max_tokens": 50, "too_long": policy})
    told = tokenize(tmp_path, code=2 if policy == "error" else 0)
    assert "1 pair" in told and "training.max_tokens 50" in told
    assert "(line 8 of more.en + more.de)" in told
    if policy == "error":
        assert not (tmp_path / "run" / "ids").exists()
        return
    store = Store(tmp_path / "run" / "ids", "train")
    corpus = json.loads((tmp_path / "run/corpus/stage.json").read_text())["counts"]["train"]
    assert len(store) == corpus["pairs"] - (policy == "skip")
    assert (int(store.lengths().max()) == 50) == (policy == "truncate")


def test_one_source_needs_no_name_and_validation_has_the_same_rule(tmp_path: Path) -> None:
    write_task(tmp_path)
    for name, line in (("train", 7), ("valid", 3)):
        for side in ("en", "de"):
            lines = (tmp_path / f"{name}.{side}").read_text().split("\n")
            lines[line - 1] = "ba " * 80
            (tmp_path / f"{name}.{side}").write_text("\n".join(lines))
    write_config(tmp_path, data={"cleaning": {"remove_test_overlap": False}}, training={"max_tokens": 50})
    told = tokenize(tmp_path)
    assert "train: 1 pair over the limit training.max_tokens 50 left out (line 7)" in told
    assert "validation: 1 pair over the limit training.max_tokens 50 left out (pair 3)" in told


def test_locale_changes_nothing(tmp_path: Path) -> None:
    results = []
    for name, env in (
        ("a", {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
        ("b", {"LC_ALL": "C.UTF-8"}),
    ):
        folder = tmp_path / name
        write_task(folder)
        with (folder / "train.en").open("ab") as source, (folder / "train.de").open("ab") as target:
            source.write("Grüße 你好\n".encode())
            target.write("你好 Grüße\n".encode())
        write_config(folder, training={"max_steps": 2}, name="c.yaml")
        done = command("run", "-c", "c.yaml", cwd=folder, env=env)
        assert done.returncode == 0, done.stderr
        results.append(
            digests(
                folder / "run",
                without=[
                    "stage.json",
                    "train.log",
                    "metrics.jsonl",
                    "state.json",
                    "config.yaml",
                    "README.md",
                    "test.json",
                ],
            )
        )
        line = command("translate", "-m", "run/model", cwd=folder, env=env, stdin="Grüße 你好\n".encode())
        assert line.returncode == 0
        results[-1]["line"] = line.stdout
    assert results[0] == results[1]
    assert "Grüße 你好\n".encode() in (tmp_path / "a/run/corpus/train.en").read_bytes()


SMALL = "from transformer_mt.data import corpus, prepare\ncorpus.CHUNK_PAIRS = prepare.CHUNK_PAIRS = 500\n"


@pytest.mark.parametrize("workers", ["1", "3"])
def test_kill_while_preparing(tmp_path: Path, workers: str) -> None:
    """At the first moment of each stage, and in its midst; how many processes work makes no difference either."""
    whole = tmp_path / "whole"
    write_task(whole, 6000)
    write_config(whole)
    tokenize(whole)
    expected = digests(whole / "run", without=["stage.json", "config.yaml"])
    write_task(tmp_path, 6000)
    write_config(tmp_path)
    env, killed = patched(tmp_path, SMALL), 0
    for name in ("corpus", "corpus/train.en", "tokenizer", "ids", "ids/train.bin"):
        folder, _, file = name.partition("/")
        process = start("tokenize", "-c", "c.yaml", "--workers", workers, cwd=tmp_path, **env)
        path = tmp_path / "run" / f".{folder}.partial" / file
        limit = time.monotonic() + 60
        while not (path.exists() and (not file or path.stat().st_size)) and process.poll() is None:
            assert time.monotonic() < limit
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
    assert killed > 2  # the machine may be too quick for one or the other
    tokenize(tmp_path, "--workers", workers, **env)
    assert digests(tmp_path / "run", without=["stage.json", "config.yaml"]) == expected
    assert not list((tmp_path / "run").glob(".*.partial"))


def test_files_that_were_cut_off_are_made_again(task: Path) -> None:
    tokenize(task)
    expected = digests(task / "run", without=["stage.json"])
    for name in ("corpus/train.de", "tokenizer/spm.model", "ids/train.bin"):
        os.truncate(task / "run" / name, 100)
        tokenize(task)
        assert digests(task / "run", without=["stage.json"]) == expected


def test_a_stage_on_another_disk_stays_there(task: Path) -> None:
    """Its folder is a link; what an earlier kill has left beside it goes, of whatever kind it is."""
    tokenize(task)
    (task / "big").mkdir()
    (task / "run" / "corpus").rename(task / "big" / "corpus")
    (task / "run" / "corpus").symlink_to(task / "big" / "corpus")
    (task / "big" / ".corpus.old").symlink_to(task / "valid.en")
    (task / "big" / ".corpus.partial").write_text("a file", "utf-8")
    for words in (100, 101):
        write_config(task, data={"cleaning": {"max_words": words}})
        tokenize(task)
        assert (task / "run" / "corpus").is_symlink() and (task / "valid.en").is_file()
        assert [path.name for path in (task / "big").iterdir()] == ["corpus"]


def test_two_vocabularies(task: Path) -> None:
    write_config(task, tokenizer={"shared": False}, model={"tie_embeddings": "decoder"}, training={"max_steps": 1})
    done = command("run", "-c", "c.yaml", cwd=task)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (task / "run/model").glob("*.model")} == {"source.model", "target.model"}


def sentencepiece_model(path: Path, text: Path, **options: int) -> None:
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(path.with_suffix("")), vocab_size=40, minloglevel=2,
        hard_vocab_limit=False, **options,
    )  # fmt: skip


def test_given_tokenizer(task: Path) -> None:
    ours = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    sentencepiece_model(task / "good.model", task / "train.en", **ours)
    sentencepiece_model(task / "foreign.model", task / "train.en")
    (task / "cut.model").write_bytes((task / "good.model").read_bytes()[:50])
    wrong = {
        "foreign.model": "pad -1, unk 0, bos 1, eos 2; wanted 0, 1, 2, 3",
        "good.vocab": "is a text file, wanted a SentencePiece .model (a .vocab list?",
        "cut.model": "wanted a SentencePiece .model",
        "none.model": "not found",
    }
    for name, told in wrong.items():
        write_config(task, tokenizer={"model": name})
        message = tokenize(task, code=2)
        assert "tokenizer.model: " in message and name in message and told in message
        assert not (task / "run" / "corpus").exists()
    write_config(task, data={"train": [{"source": "good.model", "target": "train.de"}]})
    assert "looks like a SentencePiece model; wanted UTF-8 text" in tokenize(task, code=2)
    write_config(task, tokenizer={"model": "good.model"})
    assert "spm.model: taken from" in tokenize(task)
    assert (task / "run/tokenizer/spm.model").read_bytes() == (task / "good.model").read_bytes()
    sentencepiece_model(task / "good.model", task / "train.de", **ours, split_digits=1)
    assert "up to date" in tokenize(task)
    assert (task / "run/tokenizer/spm.model").read_bytes() == (task / "good.model").read_bytes()


def test_dirty_files(tmp_path: Path) -> None:
    write_task(tmp_path)
    (tmp_path / "train.en").write_bytes(
        b"\xef\xbb\xbfone two\r\nArbeit.\r Plan ;\r\n\r\ndrei\n  a\t b  \nsame\nsame\nba\nu\xe2\x80\xa8v\nlast"
    )
    (tmp_path / "train.de").write_bytes(b"1 2\nX\ny\n \nA B\ns\ns\nAB\nuv\nl\n")
    (tmp_path / "valid.en").write_bytes("ba\n½ …  x\n".encode())
    (tmp_path / "valid.de").write_bytes("ab\n½ …  “x”\n".encode())
    write_config(tmp_path)
    told = tokenize(tmp_path)
    corpus = tmp_path / "run" / "corpus"
    assert (corpus / "train.en").read_bytes() == b"one two\nArbeit. Plan ;\na b\nsame\nu v\nlast\n"
    assert (corpus / "train.de").read_bytes() == b"1 2\nX\nA B\ns\nuv\nl\n"
    assert (corpus / "validation.de").read_bytes() == (tmp_path / "valid.de").read_bytes()
    assert np.fromfile(corpus / "train.lines", "<i8").tolist() == [1, 2, 5, 6, 9, 10]
    assert "6 pairs kept of 10, duplicate 1, empty_source 1, empty_target 1, test_overlap 1" in told


def test_an_empty_side_of_a_test_set_is_told(task: Path) -> None:
    """It is a reference that nothing matches, and a key that is missing in JSON lines is one as well."""
    rows = [{"en": "ba", "de": "ab"}, {"en": "ba"}, {"en": "ba", "de": " "}, {"en": None, "de": "ab"}]
    (task / "test-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (task / "test-2.jsonl").write_text('{"en": "ba", "de": ""}', "utf-8")
    write_config(task, data={"test": [{"jsonl": "test-*.jsonl"}]})
    told = tokenize(task)
    shown = "line 2 of test-1.jsonl, line 3 of test-1.jsonl, line 4 of test-1.jsonl, ..."
    assert f"warning: test: 4 pairs with an empty side stay: {shown}" in told and "test: 5 pairs\n" in told
    assert (task / "run" / "corpus" / "test.de").read_text("utf-8") == "ab\n\n \nab\n\n"


def test_a_name_that_is_no_text(task: Path) -> None:
    """It is found by a pattern, and told by its bytes."""
    for language in ("en", "de"):
        (task / f"train.{language}").rename(os.fsdecode(os.fsencode(task) + b"/tr\xffain." + language.encode()))
    write_config(task, data={"train": [{"source": "tr*n.en", "target": "tr*n.de"}]}, training={"max_tokens": 12})
    tokenize(task)
    [origin] = json.loads((task / "run/corpus/train.sources.json").read_text("utf-8"))
    assert origin["source"] == r"tr\xffain.en + tr\xffain.de"
    assert r"tr\xffain.en" in command("clean", "-c", "c.yaml", cwd=task).stdout


@pytest.mark.parametrize("split", ["train", "validation"])
def test_why_there_is_no_pair_is_told(task: Path, split: str) -> None:
    for language in ("en", "de"):
        (task / f"bad.{language}").write_bytes(b"caf\xe9\n" * 3)
    bad = [{"source": "bad.en", "target": "bad.de"}]
    write_config(task, data={split: bad, "on_bad_bytes": "skip_pair"})
    assert "no pairs in bad.en + bad.de, bad_bytes 3" in tokenize(task, code=2)


def test_a_language_whose_script_is_not_known_is_told(task: Path) -> None:
    write_config(task, data={"cleaning": {"check_script": True}}, languages={"target": "qaa"})
    told = tokenize(task)
    assert "warning: check_script: the script of qaa is not known" in told and "script of en" not in told


def test_unequal_files_and_bad_bytes(task: Path) -> None:
    lines = (task / "train.de").read_bytes().split(b"\n")
    (task / "train.de").write_bytes(b"\n".join(lines[:-2]) + b"\n")
    told = tokenize(task, code=2)
    assert "300" in told and "299" in told and "train.en" in told and "train.de" in told
    assert not (task / "run" / "corpus").exists()
    lines[1] = b"caf\xe9"
    (task / "train.de").write_bytes(b"\n".join(lines))
    told = tokenize(task, code=2)
    assert "train.de, line 2: byte 0xE9" in told
    write_config(task, data={"on_bad_bytes": "skip_pair"})
    assert "299 pairs kept" in tokenize(task)


def test_download_is_the_first_stage_alone(task: Path) -> None:
    assert command("download", "-c", "c.yaml", cwd=task).returncode == 0
    assert {path.name for path in (task / "run").iterdir()} == {".lock", "corpus", "config.yaml"}

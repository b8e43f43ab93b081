"""Data sets of the hub, through the real client against a stand-in on the loopback interface.

The client reads its environment when it is imported, so each case is a process of its own.
"""

import gzip
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from zstandard import ZstdCompressor

from tests.hub import COMMIT, Hub, Subsets, client_environment
from transformer_mt.config import Languages, UrlSource
from transformer_mt.data import sources
from transformer_mt.errors import UserError

ROOT = Path(__file__).parents[2]
LANGUAGES = Languages(source="en", target="de")
SUBSETS: Subsets = {
    "de-en": {
        "train": [{"de": "Hund", "en": "dog"}, {"de": None, "en": "a\nb"}, {"de": "Katze", "en": "cat"}],
        "test": [{"de": "Maus", "en": "mouse"}],
    },
    "fr-en": {"train": [{"fr": "chien", "en": "dog"}], "test": [{"fr": "souris", "en": "mouse"}]},
}
LOCAL_FILES = "data.train: [{source: train.en, target: train.de}]"
# Answers each question with [subset, revision, pairs, counts] or the words of a refusal.
PROGRAM = """
import json, sys
from collections import Counter
from transformer_mt.config import HubSource, Languages
from transformer_mt.data import hub, sources
from transformer_mt.errors import UserError

def answer(languages, options):
    languages = Languages(source=languages[:2], target=languages[3:])
    counts = Counter()
    try:
        source = hub.resolve_hub(HubSource(hub="wmt/wmt14").model_copy(update=options), languages)
        tally = sources.Tally("error", counts)
        pairs = [tuple(pair) for pair in sources.pairs_of(source, languages, tally)]
        assert tally.share_read == 1.0 or source.streaming
    except UserError as failure:
        return str(failure)
    return [source.subset, source.revision, pairs, counts]

print(json.dumps([answer(*question) for question in json.loads(sys.argv[1])]))
"""


def ask(environment: dict[str, str], folder: Path, *questions: tuple[str, dict[str, Any]]) -> list[Any]:
    """The program's answers to (languages, options of the source); it must not write anything else."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(questions)]
    environment = {**environment, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=100)
    assert (done.stderr, done.returncode) == ("", 0)
    answers: list[Any] = json.loads(done.stdout)
    assert not any("\n" in answer for answer in answers if isinstance(answer, str))
    return answers


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with Hub(SUBSETS) as hub:
        yield hub


@pytest.fixture(scope="module")
def filled_cache(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds one of the two subsets."""
    home = tmp_path_factory.mktemp("cache")
    ask(hub.environment(home), home, ("en-de", {}))
    return home


def test_columns_are_chosen_by_language_and_subsets_in_either_order(hub: Hub, tmp_path: Path) -> None:
    # A folder of the data set's name is no data set.
    (tmp_path / "wmt" / "wmt14").mkdir(parents=True)
    (tmp_path / "wmt" / "wmt14" / "table.csv").write_text("en,de\nwrong,falsch\n")
    forward, backward, french = ask(
        hub.environment(tmp_path), tmp_path, ("en-de", {}), ("de-en", {}), ("fr-en", {"split": "test"})
    )
    counts = {"line_break_in_value": 1}
    assert forward == ["de-en", COMMIT, [["dog", "Hund", 1], ["a b", "", 2], ["cat", "Katze", 3]], counts]
    assert backward == ["de-en", COMMIT, [["Hund", "dog", 1], ["", "a b", 2], ["Katze", "cat", 3]], counts]
    assert french == ["fr-en", COMMIT, [["souris", "mouse", 1]], {}]


def test_streamed_rows_are_those_of_a_copy_and_no_copy_is_made(hub: Hub, tmp_path: Path) -> None:
    streamed, absent, part, down = ask(
        hub.environment(tmp_path),
        tmp_path,
        ("en-de", {"streaming": True}),
        ("en-de", {"streaming": True, "split": "dev"}),
        ("en-de", {"streaming": True, "split": "train[:2]"}),
        ("en-de", {"streaming": True, "subset": "de-en", "revision": "c" * 40}),
    )
    assert streamed == ["de-en", COMMIT, [["dog", "Hund", 1], ["a b", "", 2], ["cat", "Katze", 3]], {
        "line_break_in_value": 1}]  # fmt: skip
    assert absent == "data set wmt/wmt14 has no split dev; available: train, test"
    assert part == absent.replace("dev", "train[:2]") + " (streaming: true takes whole splits)"
    assert down == f"data set wmt/wmt14 has no revision {'c' * 40}"
    assert not list(tmp_path.rglob("*.arrow"))
    # The data files are kept nowhere either.
    assert not any(path.stat().st_size > 500 for path in tmp_path.rglob("*.parquet"))


def test_files_anywhere_are_streamed(tmp_path: Path) -> None:
    for name, row in (("1", {"en": "a", "de": "b"}), ("2", {"en": "a\nc", "de": None})):
        (tmp_path / f"part-{name}.jsonl.gz").write_bytes(gzip.compress(json.dumps(row).encode() + b"\n"))
    (tmp_path / "table.tsv").write_text('id\tde\ten\n1\t"eins\tone\n2\tNA\tnull\n', "utf-8")
    pyarrow.parquet.write_table(pyarrow.table({"translation": [{"en": "x", "de": "y"}]}), tmp_path / "t.parquet")
    counts: Counter[str] = Counter()
    found = {
        name: [
            tuple(pair) for pair in sources.read(UrlSource(url=f"file://{tmp_path}/{name}"), LANGUAGES, "error", counts)
        ]
        for name in ("part-*.jsonl.gz", "table.tsv", "t.parquet")
    }
    assert found == {
        "part-*.jsonl.gz": [("a", "b", 1), ("a c", "", 2)], "table.tsv": [("one", '"eins', 1), ("null", "NA", 2)],
        "t.parquet": [("x", "y", 1)],
    }  # fmt: skip
    assert counts == {"line_break_in_value": 1}
    for name, words in [
        ("none.csv", "none.csv cannot be read: No such file or directory"),
        ("none.parquet", "cannot be read: FileNotFoundError"),
        ("a.xml", "wanted a name that ends in .parquet"),
    ]:  # fmt: skip
        with pytest.raises(UserError, match=re.escape(words)):
            list(sources.read(UrlSource(url=f"file://{tmp_path}/{name}"), LANGUAGES, "error", counts))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b'en,de\n"say ""a""","two\nlines"\n007,NA\n,\n', [('say "a"', "two lines"), ("007", "NA"), ("", "")]),
        (b"\xef\xbb\xbfid,de,en\r\n1,x,y\r\n", [("y", "x")]),
        (b'en,de\n"One",two,Eins\n', "row 1: found 3 fields, wanted 2 as in the heading"),
        (b"en,de\na,b\nOnly one\n", "row 2: found 1 fields, wanted 2"),
        (b'en,de\n"a"b,c\n', "row 1: "),
        (b'en,de\na,"b\n', "row 1: "),
        (b"en,fr\na,b\n", "has the columns en, fr; wanted en, de"),
        (b"en,de,de\na,b,c\n", "has the columns en, de, de; wanted en, de, each once"),
        (b"", "has the columns (none); wanted en, de"),
        (b"en,de\na,caf\xe9\n", "row 1: text that is not UTF-8"),
    ],
)
def test_csv_is_read_strictly(tmp_path: Path, content: bytes, found: list[tuple[str, str]] | str) -> None:
    for name, packed in (("t.csv", content), ("t.csv.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(packed)
        reading = sources.read(UrlSource(url=f"file://{tmp_path}/{name}"), LANGUAGES, "error", Counter())
        if isinstance(found, str):
            with pytest.raises(UserError, match=re.escape(found)):
                list(reading)
        else:
            assert [(pair.source, pair.target) for pair in reading] == found


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.jsonl", b'{"en": "a", "de": "b"}\n{"en": "c", "de": 2024}\n', "t.jsonl, line 2: found int (2024)"),
        ("t.jsonl", b'{"en": "a", "de": "b"}\n{"en": "c"', "t.jsonl, line 2: not a whole JSON object"),
        ("t.jsonl", b"", "no pairs in "),
        ("t.tsv.zst", ZstdCompressor().compress(b"en\tde\none\teins\n")[:-3], "compressed data end too early"),
        ("t.csv.gz", gzip.compress(b"en,de\none,eins\n")[:-9] + b"\0" * 9, "t.csv.gz is damaged: "),
        ("t.csv.xz", b"\xfd7zXZ\x00" + b"\1" * 40, "t.csv.xz is damaged: "),
        ("t.csv.zip", b"PK\x03\x04" + b"\0" * 40, "t.csv.zip looks like a zip archive"),
    ],
)
def test_files_anywhere_are_whole_or_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as refused:
        list(sources.read(UrlSource(url=f"file://{tmp_path}/{name}"), LANGUAGES, "error", Counter()))
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_the_name_of_a_url_is_looked_at_before_any_work() -> None:
    (problem,) = sources.check(UrlSource(url="https://host/a.txt"), LANGUAGES)
    assert problem.startswith("https://host/a.txt: wanted a name that ends in .parquet")


def test_bad_bytes_in_csv_can_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"en,de\na,caf\xe9\nc,d\n")
    counts: Counter[str] = Counter()
    pairs = list(sources.read(UrlSource(url=f"file://{tmp_path}/t.csv"), LANGUAGES, "skip_pair", counts))
    assert [tuple(pair) for pair in pairs] == [("c", "d", 2)] and counts == {"bad_bytes": 1}


def test_only_the_commit_is_asked_for_once_it_is_known(tmp_path: Path) -> None:
    with Hub(SUBSETS) as hub:
        ask(hub.environment(tmp_path), tmp_path, ("en-de", {"split": "train[:2]"}))
        data = [request for request in hub.requests if "/resolve/" in request]
        assert data and all(f"/resolve/{COMMIT}/" in request for request in data)
        assert not any("fr-en/" in request for request in data)


def test_what_does_not_exist_is_told_with_what_does(hub: Hub, tmp_path: Path) -> None:
    languages, subset, split, revision, name, columns = ask(
        hub.environment(tmp_path),
        tmp_path,
        ("en-xx", {}),
        ("en-de", {"subset": "cs-en"}),
        ("en-de", {"split": "dev"}),
        ("en-de", {"revision": "old"}),
        ("en-de", {"hub": "wmt/wmt99"}),
        ("en-fr", {"subset": "de-en"}),
    )
    assert languages == "data set wmt/wmt14 has no subset en-xx or xx-en; available: de-en, fr-en"
    assert subset == "data set wmt/wmt14 has no subset cs-en; available: de-en, fr-en"
    assert split == "data set wmt/wmt14 has no split dev; available: train, test"
    assert revision == "data set wmt/wmt14 has no revision old"
    assert "wmt/wmt99 does not exist" in name and LOCAL_FILES in name
    assert columns == "wmt/wmt14 de-en train has the columns translation.de, translation.en; wanted en, fr"


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_offline_with_nothing_in_the_cache(tmp_path: Path, variable: str) -> None:
    environment = client_environment(tmp_path, HF_ENDPOINT="http://127.0.0.1:9", **{variable: "1"})
    pinned = {"subset": "de-en", "revision": COMMIT}
    for message in ask(environment, tmp_path, ("en-de", {}), ("en-de", pinned)):
        assert message.startswith("data set wmt/wmt14 is not in the cache, and the hub is offline")
        assert LOCAL_FILES in message


def test_offline_with_a_cache(filled_cache: Path) -> None:
    environment = client_environment(filled_cache, HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="1")
    found, pinned, other_commit, absent = ask(
        environment,
        filled_cache,
        ("de-en", {"split": "test"}),
        ("en-de", {"split": "test", "revision": COMMIT}),
        ("en-de", {"revision": "c" * 40}),
        ("en-fr", {}),
    )
    assert found == ["de-en", COMMIT, [["Maus", "mouse", 1]], {}]
    assert pinned == ["de-en", COMMIT, [["mouse", "Maus", 1]], {}]
    assert "is not in the cache, and the hub is offline" in other_commit
    assert absent == "data set wmt/wmt14 has no subset en-fr or fr-en; available offline: de-en"


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    (message,) = ask(client_environment(tmp_path, HF_ENDPOINT="http://127.0.0.1:9"), tmp_path, ("en-de", {}))
    assert message.startswith("data set wmt/wmt14: the hub cannot be reached (")
    assert LOCAL_FILES in message


def test_a_busy_hub_is_asked_again(tmp_path: Path) -> None:
    with Hub(SUBSETS, failures=2) as hub:
        (answer,) = ask(hub.environment(tmp_path), tmp_path, ("en-de", {}))
        assert hub.failures < 0
    assert [pair[0] for pair in answer[2]] == ["dog", "a b", "cat"]


def test_a_data_set_made_by_a_script_is_not_run(tmp_path: Path) -> None:
    with Hub(SUBSETS, script=True) as hub:
        (message,) = ask(hub.environment(tmp_path), tmp_path, ("en-de", {}))
    assert "is made by a Python script" in message and LOCAL_FILES in message


def test_a_gated_data_set(tmp_path: Path) -> None:
    with Hub(SUBSETS, gated=True) as hub:
        (message,) = ask(hub.environment(tmp_path), tmp_path, ("en-de", {}))
    assert message == "data set wmt/wmt14 is gated: ask for access at its page, then set HF_TOKEN"

"""sacreBLEU's test sets, made by sacreBLEU itself out of archives that lie here, and what is told when it cannot."""

import hashlib
import io
import socket
import tarfile
import threading
from pathlib import Path

import pytest
import sacrebleu
from sacrebleu.dataset.plain_text import PlainTextDataset

from transformer_mt.atomic import in_turn
from transformer_mt.config import Languages
from transformer_mt.data import test_sets
from transformer_mt.data.readers import Pair
from transformer_mt.errors import Failure, RunError, UserError

ENGLISH_GERMAN = Languages(source="en", target="de")
SOURCE = "One.\nTwo\u2028lines.\n\nFour.\n"
REFERENCE = "Eins.\nZwei\u2028Zeilen.\n\nVier.\n"


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes `tiny/full` a test set that sacreBLEU knows, its archive a file beside sacreBLEU's own folder."""
    monkeypatch.setattr("sacrebleu.dataset.base.SACREBLEU_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sacrebleu, "SACREBLEU_DIR", str(tmp_path / "cache"))
    content = archive({"tiny.en": SOURCE, "tiny.de": REFERENCE, "tiny.2.de": "A.\nB.\nC.\nD.\n"})
    (tmp_path / "tiny.tgz").write_bytes(content)
    know(monkeypatch, (tmp_path / "tiny.tgz").as_uri(), hashlib.md5(content).hexdigest())
    return tmp_path


def archive(files: dict[str, str]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return stream.getvalue()


def know(monkeypatch: pytest.MonkeyPatch, address: str, digest: str | None) -> None:
    pairs = {"en-de": ["tiny.en", "tiny.de", "tiny.2.de"], "de-en": ["tiny.de", "tiny.en"]}
    data_set = PlainTextDataset("tiny/full", data=[address], md5=[digest], langpairs=pairs)
    monkeypatch.setattr(data_set, "fieldnames", lambda pair: ["src", "ref:A", "ref:B"][: len(pairs[pair])])
    monkeypatch.setitem(sacrebleu.DATASETS, "tiny/full", data_set)


def refused(kind: type[Failure], languages: Languages = ENGLISH_GERMAN, name: str = "tiny/full") -> str:
    """The one sentence with which reading ends."""
    with pytest.raises(kind) as failure:
        list(test_sets.test_set_pairs(name, languages))
    (message,) = failure.value.messages
    assert "\n" not in message
    return message


def test_sources_come_with_their_first_reference(known: Path, capfd: pytest.CaptureFixture[str]) -> None:
    expected = [
        Pair("One.", "Eins.", 1),
        Pair("Two\u2028lines.", "Zwei\u2028Zeilen.", 2),
        Pair("", "", 3),
        Pair("Four.", "Vier.", 4),
    ]
    assert list(test_sets.test_set_pairs("tiny/full", ENGLISH_GERMAN)) == expected
    (known / "tiny.tgz").unlink()  # what is there is not fetched again
    assert list(test_sets.test_set_pairs("tiny/full", ENGLISH_GERMAN)) == expected
    assert capfd.readouterr() == ("", "")


def test_languages_go_in_their_order_and_by_their_first_parts(known: Path) -> None:
    pairs = list(test_sets.test_set_pairs("tiny/full", Languages(source="DE-at", target="en_GB")))
    assert pairs[0] == Pair("Eins.", "One.", 1)


def test_the_test_set_of_the_paper_is_read_as_sacrebleu_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_set = sacrebleu.DATASETS["wmt14/full"]
    monkeypatch.setattr(data_set, "_outdir", str(tmp_path))
    monkeypatch.setattr(data_set, "_rawdir", str(tmp_path / "raw"))
    folder = tmp_path / "raw" / "test-full"
    folder.mkdir(parents=True)
    (tmp_path / "raw" / "wmt14_full.test-full.tgz").write_text("taken to be there")
    for side, text in {"src.en": "A  dog\tbarks .", "ref.de": "Ein Hund bellt\u00a0."}.items():
        document = f'<doc sysid="x" docid="d" origlang="en">\n<seg id="1">{text}</seg>\n<seg id="2"></seg>\n</doc>\n'
        (folder / f"newstest2014-deen-{side}.sgm").write_text(document)
    pairs = list(test_sets.test_set_pairs("wmt14/full", ENGLISH_GERMAN))
    assert pairs == [Pair("A dog barks .", "Ein Hund bellt .", 1), Pair("", "", 2)]


def test_an_unknown_name_is_told_with_those_like_it() -> None:
    message = test_sets.problem("wmt14/ful", ENGLISH_GERMAN) or ""
    assert "has no test set wmt14/ful; did you mean wmt14/full, wmt14" in message
    assert refused(UserError, name="wmt14/ful") == message
    count = len(sacrebleu.get_available_testsets())
    assert f"has no test set zzz; it has {count}, which" in (test_sets.problem("zzz", ENGLISH_GERMAN) or "")


def test_languages_that_a_test_set_lacks_are_told_with_those_it_has(known: Path) -> None:
    languages = Languages(source="en", target="fr")
    expected = "sacreBLEU's test set tiny/full has no en-fr; it has de-en, en-de"
    assert test_sets.problem("tiny/full", languages) == expected
    assert refused(UserError, languages) == expected


def test_what_can_be_fetched_is_no_problem_and_nothing_is_fetched(known: Path) -> None:
    assert test_sets.problem("tiny/full", ENGLISH_GERMAN) is None
    assert test_sets.problem("wmt14/full", Languages(source="en-US", target="de_AT")) is None
    assert not (known / "cache").exists()


def test_no_network_is_told_in_one_sentence(
    known: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:  # bound and not listening: whoever connects is refused
        closed.bind(("127.0.0.1", 0))
        know(monkeypatch, f"http://127.0.0.1:{closed.getsockname()[1]}/tiny.tgz", None)
        message = refused(UserError)
    assert message.startswith("sacreBLEU's test set tiny/full cannot be fetched (URLError: ")
    assert "refused" in message
    assert message.endswith("to use local files instead: {source: test.en, target: test.de}")
    assert capfd.readouterr() == ("", "")
    assert socket.getdefaulttimeout() is None


def test_a_server_that_says_nothing_is_not_waited_for_without_end(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_sets, "_PATIENCE_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        know(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}/tiny.tgz", None)
        assert "cannot be fetched (TimeoutError" in refused(UserError)


def test_another_archive_than_expected_is_told(
    known: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    know(monkeypatch, (known / "tiny.tgz").as_uri(), "0" * 32)
    message = refused(UserError)
    assert "what was fetched is not what sacreBLEU expects" in message
    assert f"delete {known}/cache/tiny/full to have it fetched again" in message
    assert not caplog.records


def test_a_damaged_archive_is_told(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (known / "tiny.tgz").write_bytes((known / "tiny.tgz").read_bytes()[:50])
    know(monkeypatch, (known / "tiny.tgz").as_uri(), None)
    assert "cannot be made or read (EOFError: " in (message := refused(RunError))
    assert f"delete {known}/cache/tiny/full" in message


@pytest.mark.parametrize(("words", "told"), [("two\nlines", "two lines"), ("", "no reason given")])
def test_what_nobody_foresaw_is_one_sentence_too(
    known: Path, monkeypatch: pytest.MonkeyPatch, words: str, told: str
) -> None:
    def fails(pair: str) -> str:
        raise AssertionError(words)

    monkeypatch.setattr(sacrebleu.DATASETS["tiny/full"], "get_source_file", fails)
    assert f"Error: {told})" in refused(RunError)


def test_a_copy_that_was_cut_off_is_never_half_read(known: Path) -> None:
    list(test_sets.test_set_pairs("tiny/full", ENGLISH_GERMAN))
    folder = known / "cache" / "tiny" / "full"
    (folder / "tiny_full.en-de.ref-A").write_text("Eins.\n")
    message = refused(RunError)
    assert "ref-A have different numbers of lines (4 and 1)" in message
    assert f"delete {folder}" in message


def test_a_test_set_without_references_is_told(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sacrebleu.DATASETS["tiny/full"], "get_reference_files", lambda pair: [])
    assert refused(UserError) == "sacreBLEU's test set tiny/full has no reference for en-de"


def test_processes_fetch_in_turn(known: Path) -> None:
    """sacreBLEU writes where others read; the files come whole to who has waited."""
    found: list[int] = []
    reading = threading.Thread(
        target=lambda: found.append(len(list(test_sets.test_set_pairs("tiny/full", ENGLISH_GERMAN))))
    )
    with in_turn(known / "cache" / "tiny-full.turn"):
        reading.start()
        reading.join(0.5)
        assert not found and not list((known / "cache").glob("tiny/full/*"))
    reading.join(60)
    assert found == [4]

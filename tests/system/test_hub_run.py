"""From a data set of the hub to a score, through the real client and a stand-in for the hub."""

import json
import time
from pathlib import Path

from tests.hub import COMMIT, Hub, client_environment
from tests.running import assert_plain, command, digests, sentences, write_config

DATA = {
    name: [{"hub": "wmt/wmt14", "split": split}]
    for name, split in (("train", "train"), ("validation", "validation"), ("test", "test"))
}


def rows(count: int, seed: int) -> list[dict[str, str]]:
    return [{"en": " ".join(words), "de": " ".join(words[::-1])} for words in sentences(count, seed)]


def test_a_run_from_the_hub_to_a_score(tmp_path: Path) -> None:
    write_config(tmp_path, data=DATA)
    splits = {"train": rows(200, 1), "validation": rows(20, 2), "test": rows(20, 3)}
    with Hub({"de-en": splits}) as hub:
        env = hub.environment(tmp_path / "cache")
        done = command("run", "-c", "c.yaml", cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        assert sum(request == "GET /api/datasets/wmt/wmt14" for request in hub.requests) == 1  # one commit for all
    assert "BLEU" in done.stdout and "version:" in done.stdout
    record = json.loads((tmp_path / "run/corpus/stage.json").read_text())
    found = {(source["subset"], source["split"], source["revision"]) for source in record["counts"]["hub"]}
    assert found == {("de-en", split, COMMIT) for split in ("train", "validation", "test")}
    assert (tmp_path / "run/corpus/test.en").read_text().splitlines() == [row["en"] for row in splits["test"]]
    before = digests(tmp_path / "run")
    # The stand-in is gone: whatever asks it now fails.
    again = command("run", "-c", "c.yaml", cwd=tmp_path, env=env)
    assert again.returncode == 0 and "nothing to train" in again.stderr, again.stderr
    assert digests(tmp_path / "run") == before


def test_offline_with_an_empty_cache(tmp_path: Path) -> None:
    write_config(tmp_path, data=DATA)
    begin = time.monotonic()
    done = command("run", "-c", "c.yaml", cwd=tmp_path, env=client_environment(tmp_path / "cache", HF_HUB_OFFLINE="1"))
    assert time.monotonic() - begin < 60  # a guard against waiting for a network, on a busy machine
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    for told in ("wmt/wmt14", "offline", "train.en"):
        assert told in done.stderr
    assert_plain(done.stderr)
    assert not (tmp_path / "run" / "corpus").exists()

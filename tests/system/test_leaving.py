"""One process that is asked to leave long before it would save."""

import re
import signal
import time
from pathlib import Path

import pytest

from tests.running import assert_plain, end, start, train, wait_for, write_config

RARELY = {
    "checkpoint": {"every_steps": 1000, "average": 1},
    "validation": {"every_steps": 1000, "translate": False, "metric": "loss"},
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_was_done_since_the_last_checkpoint_is_saved(task: Path, number: int) -> None:
    write_config(task, training={**RARELY, "max_steps": 100_000})
    process = start("train", "-c", "c.yaml", cwd=task)
    wait_for(process, r"^step 20/")
    begin = time.monotonic()
    code, said = end(process, number)
    assert time.monotonic() - begin < 15
    assert code == 128 + number
    assert_plain(said)
    (step,) = map(int, re.findall(r"^interrupted, saved at update (\d+)$", said, re.M))
    assert 20 <= step < 1000
    assert [path.name for path in (task / "run" / "checkpoints").iterdir()] == [f"step-{step:09d}"]
    write_config(task, training={**RARELY, "max_steps": step + 1})
    assert f"resuming at step {step}," in train(task)

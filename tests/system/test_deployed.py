"""The model that training leaves: weights alone, and lines longer than any it was trained on."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from tests.running import WORDS, inside, last_checkpoint, train, write_config, write_task

ENDLESS = {"max_length": {"factor": 0, "extra": 300}, "min_length": 290, "beam_size": 2}


def names(path: Path) -> set[str]:
    with safe_open(path, "pt") as file:
        return set(file.keys())


def trained(folder: Path, **sections: Any) -> Path:
    """A run folder after two updates."""
    write_task(folder)
    write_config(folder, training={"max_steps": 2, "checkpoint": {"every_steps": 1, "average": 2}}, **sections)
    train(folder)
    return folder / "run"


def test_no_optimizer_state_leaves_with_a_model(tmp_path: Path) -> None:
    run = trained(tmp_path)
    done = inside(tmp_path, "average", "-c", "c.yaml", "--last", "1", "--output", "averaged")
    assert done.exit_code == 0, done.stderr
    weights = names(last_checkpoint(run) / "model.safetensors")
    assert any(name.endswith("exp_avg") for name in names(last_checkpoint(run) / "optimizer.safetensors"))
    for folder in (run / "model", tmp_path / "averaged"):
        assert [path.name for path in folder.rglob("*.safetensors")] == ["model.safetensors"]
        assert names(folder / "model.safetensors") == weights
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.suffix != ".model")
        assert size < 1.2 * (last_checkpoint(run) / "model.safetensors").stat().st_size


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary"])
def test_a_long_line_and_an_output_without_an_end(tmp_path: Path, positions: str) -> None:
    """Two hundred pieces in, three hundred out, of a model that knows of 64 positions, if any."""
    model = {"positions": positions, "max_positions": 64}
    trained(tmp_path, model=model, decoding=ENDLESS, tokenizer={"vocabulary_size": 30})
    (tmp_path / "in").write_text(f"ba do\n{' '.join(WORDS * 8)}\nmi\n")
    done = inside(tmp_path, "translate", "-m", "run", "-i", "in", "-o", "out", "--format", "jsonl")
    assert done.exit_code == 0, done.stderr
    found = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    lengths = [row["translations"][0]["length"] for row in found]
    assert len(lengths) == 3
    if positions == "learned":
        parts = re.search(r"warning: line 2: (\d+) pieces, translated in (\d+) parts", done.stderr)
        assert parts and int(parts[2]) >= int(parts[1]) / 63 and "model.max_positions" in done.stderr
        assert lengths[1] <= 64 * int(parts[2]) and max(lengths[0], lengths[2]) <= 64
    else:
        assert "source cut" not in done.stderr.replace("source cut 0", "")
        assert min(lengths) >= 290

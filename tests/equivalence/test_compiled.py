"""A compiled model is the same model; its batches have few shapes; a signal breaks compiling off."""

import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import tiny
from tests.running import assert_plain, end, start, wait_for, write_config
from transformer_mt.data.batching import epoch_batches
from transformer_mt.train.loop import LossOf, tensors_of
from transformer_mt.train.signals import StopFlag


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself
def test_gradients_are_those_of_the_plain_model(tmp_path: Path) -> None:
    """Lengths and rows that are no multiples of 8, several passes; evaluation stays as it is."""
    data, found = tiny.store(tmp_path, tiny.uneven(11)), []
    for compiled in (False, True):
        net = tiny.model(dtype=torch.float32, encoder_layers=1, decoder_layers=1)
        names = list(net.state_dict())
        trainer = tiny.trainer(net, data, compile=compiled)
        kept: dict[str, torch.Tensor] = {}
        trainer.optimizer.step = lambda *a, kept=kept, net=net, **k: kept.update(tiny.gradients(net))  # type: ignore[method-assign]
        progress = tiny.progress(60)
        trainer.update(tiny.whole(data), progress, StopFlag())
        assert list(trainer.model.state_dict()) == names
        found.append((kept, progress.sums["loss"], progress.sums["nll"]))
    assert tiny.difference(found[0][0], found[1][0]) < 1e-5
    assert found[1][1:] == pytest.approx(found[0][1:], rel=1e-5)
    assert re.fullmatch(r"compiled: [1-4] shapes of passes, \d+ graphs", trainer.loss.compiled())
    assert all(size % 8 == 0 for shape in trainer.loss.shapes for size in shape)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself
def test_what_is_compiled_for_one_length_serves_others() -> None:
    """Beyond a pass whose sides are of one length, and one whose positions need a longer table."""
    loss = LossOf(tiny.model(dtype=torch.float32, encoder_layers=1, decoder_layers=1), 0.1, compiled=True)
    loss.train()
    graphs = []
    for source, target in [(8, 8), (16, 24), (24, 40), (32, 16), (40, 48), (48, 24), (56, 32), (264, 24)]:
        ids = torch.ones(8, source, dtype=torch.int64), torch.ones(8, target, dtype=torch.int64)
        loss(*ids, ids[1].flatten(), torch.arange(8 * target))
        graphs.append(int(re.findall(r"(\d+) graphs", loss.compiled())[0]))
    assert graphs[1] == graphs[-2] <= graphs[-1] <= graphs[0] + 2


def test_few_lengths_and_little_padding(tmp_path: Path) -> None:
    """Lengths from 1 to 64 at random: eight padded lengths a side, and less than 1.3 times the real tokens."""
    generator = np.random.default_rng(0)
    lengths = [(int(length), int(length)) for length in generator.integers(0, 64, 3000)]
    data = tiny.store(tmp_path, lengths)
    shapes, real, padded = set(), 0, 0
    for batch in epoch_batches(data.lengths(), 2000, 1, 0):
        source, target, labels, places = tensors_of(data, batch.pairs, 2, torch.device("cpu"), 8)
        shapes.add((source.shape[1], target.shape[1]))
        assert len(labels) == len(places) == batch.target_tokens
        assert len(source) == len(target) and len(source) % 8 == 0
        real, padded = real + batch.target_tokens, padded + target.numel()
    assert len({source for source, _ in shapes}) <= 8 and len({target for _, target in shapes}) <= 8
    assert padded < 1.3 * real


def test_a_signal_while_compiling(task: Path) -> None:
    write_config(task, training={"compile": True})
    process = start("train", "-c", "c.yaml", cwd=task, TORCHINDUCTOR_CACHE_DIR=str(task / "cache"))
    wait_for(process, "million parameters")
    time.sleep(3)
    begin = time.monotonic()
    code, said = end(process, signal.SIGTERM)
    assert time.monotonic() - begin < 15
    assert code == 143 and said == "interrupted before the first update\n"
    assert_plain(said)

"""Our engine where there are several processors: each searches by itself, and nothing else changes."""

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import tiny
from transformer_mt.config import Decoding
from transformer_mt.data.tokenizer import BOS
from transformer_mt.decode.engine import NativeEngine, Source
from transformer_mt.decode.models import ModelSteps
from transformer_mt.decode.search import Hypothesis, Live
from transformer_mt.model.stepwise import StepDecoder

Found = dict[int, list[Hypothesis]]


def sources(count: int) -> list[Source]:
    generator = np.random.default_rng(5)
    rows = [tiny.ids(generator, int(length)) for length in generator.integers(1, 12, count)]
    return [Source(row, len(row) + 5, line=number) for number, row in enumerate(rows)]


def engine(**keys: object) -> NativeEngine:
    return NativeEngine([tiny.model()], Decoding.model_validate({"batch_size": 8, **keys}), BOS)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("keys", [{"n_best": 2}, {"sampling": {"seed": 3}, "n_best": 2}], ids=["beams", "samples"])
def test_two_searches_find_what_one_finds(
    keys: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    some = sources(40)
    original = StepDecoder.step

    def step(self: StepDecoder, *arguments: torch.Tensor) -> torch.Tensor:
        (tmp_path / str(os.getpid())).touch()
        assert torch.get_num_threads() == 1 and not torch.is_grad_enabled()
        return original(self, *arguments)

    with torch.no_grad():
        alone = dict(engine(**keys)._search(some))
        monkeypatch.setattr(StepDecoder, "step", step)
        together = dict(engine(**keys).search(some))
    assert len(list(tmp_path.iterdir())) == 2 and not (tmp_path / str(os.getpid())).exists()
    assert torch.get_num_threads() == 2 and multiprocessing.active_children() == []
    assert together.keys() == alone.keys() == set(range(40))
    for number, hypotheses in alone.items():
        assert [item.tokens for item in together[number]] == [item.tokens for item in hypotheses]
        assert [item.score for item in together[number]] == pytest.approx([item.score for item in hypotheses], abs=1e-9)


@pytest.mark.usefixtures("two_threads")
def test_what_goes_wrong_in_a_search_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(self: StepDecoder, *arguments: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("told")

    monkeypatch.setattr(StepDecoder, "step", step)
    with torch.no_grad(), pytest.raises(ArithmeticError, match="told"):
        dict(engine().search(sources(40)))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("threads", "most"), [(2, (64, 32_000)), (4, (64, 32_000)), (8, (32, 16_000)), (10, (32, 12_800))]
)
def test_many_workers_hold_no_more_than_four(
    monkeypatch: pytest.MonkeyPatch, threads: int, most: tuple[int, int]
) -> None:
    asked = []

    def one_after_the_other(work, shares: list[list[int]]):
        assert len(shares) == threads
        return (found for share in shares for found in work(share))

    def search(self: NativeEngine, some: list[Source]) -> Iterator[tuple[int, list[Hypothesis]]]:
        asked.append((self.settings.batch_size, self.settings.batch_tokens))
        return iter((number, []) for number in range(len(some)))

    monkeypatch.setattr("transformer_mt.decode.engine.side_by_side", one_after_the_other)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(NativeEngine, "_search", search)
    assert {place for place, _ in engine(batch_size=64).search(sources(200))} == set(range(200))
    assert asked == [most] * threads


def test_few_sentences_are_searched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformer_mt.decode.engine.side_by_side", None)
    with torch.no_grad():
        assert len(dict(engine().search(sources(20)))) == 20


def test_steps_are_recorded_on_a_cuda_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found = engine(cuda_graphs=True)
    asked = []
    original = ModelSteps.__init__

    def init(self: ModelSteps, *arguments: object, recorded: bool) -> None:
        asked.append(recorded)
        original(self, *arguments)  # there is no such device here

    monkeypatch.setattr(ModelSteps, "__init__", init)
    with torch.no_grad():
        list(found._search(sources(1)))
        monkeypatch.setattr(found, "_device", torch.device("cuda"))
        monkeypatch.setattr("transformer_mt.decode.engine.Live", lambda width, device: Live(width, torch.device("cpu")))
        list(found._search(sources(1)))
    assert asked == [False, True]

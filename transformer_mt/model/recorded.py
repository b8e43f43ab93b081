"""Steps of fixed shapes that are recorded once and repeated: on a GPU, one launch instead of hundreds.

Letters in shapes: as in `stepwise.py`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from transformer_mt.model.stepwise import StepDecoder
from transformer_mt.model.transformer import Transformer

Recorder = Callable[[Callable[[], Tensor]], Callable[[], Tensor]]
"""Takes work, and gives what repeats it on the very same memory; that returns the work's result."""


def cuda_graph(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The recorder of a CUDA device. Recording is not doing: the first repetition is the first time."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


class RecordedStepDecoder(StepDecoder):
    """Computes all beams over all cells, whether they live or not, so that every step is the same work.

    A recording holds for the memory that it was made on. After memory has moved, which rarer collections see to, one
    step is made as usual, the next one is recorded, and those that follow repeat it.
    """

    steps_between_collections = 64

    def __init__(self, model: Transformer, width: int, recorder: Recorder = cuda_graph) -> None:
        super().__init__(model, width)
        self.recorder = recorder
        self.tokens, self.here = torch.zeros(0), torch.zeros(width, dtype=torch.long, device=self.device)
        self.memory: list[object] = []
        self.repeat: Callable[[], Tensor] | None = None

    def step(self, tokens: Tensor, rows: Tensor | None) -> Tensor:
        """As `StepDecoder.step`; the result stays valid until the next step."""
        here = self._open_cells()
        if self.tokens.shape != tokens.shape:
            self.tokens = torch.zeros_like(tokens)
        self.tokens.copy_(tokens)
        torch.arange(here.start, here.stop, out=self.here)
        if self.memory != (memory := self._memory()):
            self.memory, self.repeat = memory, None
            logits = self._work()
        else:
            self.repeat = self.repeat or self.recorder(self._work)
            logits = self.repeat()
        return logits if rows is None else logits.index_select(0, rows)

    def _work(self) -> Tensor:
        return self._advance(self.tokens, None, self.here, self.seen.shape[2], self.source_bias.shape[3])

    def _table_rows(self) -> int:
        """As many as there will be for long: what is recorded reads no further than it did when it was recorded."""
        return max(256, 1 << (self.longest - 1).bit_length())

    def _memory(self) -> list[object]:
        """Where everything is that a step reads and writes, apart from weights."""
        tensors = [self.tokens, self.lengths, self.seen, self.source_bias]
        tensors += [part for layer in self.layers for part in (*layer.cells, *layer.source)]
        return [self._table_rows(), *((tensor.data_ptr(), tensor.shape) for tensor in tensors)]

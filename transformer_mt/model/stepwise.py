"""The decoder one token at a time: the layers of `transformer.py`, each key and value computed once.

Letters in shapes: A slots (one sentence in each), W beams, R rows (the beams that still live, of A x W), H heads,
K key size, S source length, C cells, V vocabulary.

What the beams of a sentence have said forms a tree: they share their beginnings. Each of its tokens is kept once, in a
cell, and a beam is a row of `seen` that tells which cells are its own past. So beams change places by changing those
rows of booleans; keys and values stay where they are. Cells that no beam sees any more are given up every few steps.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_mt.model.transformer import Attention, DecoderLayer, Transformer, positions_up_to, rotate

COLUMNS = 256
"""Columns of the output projection that are computed together on a CPU: a wider product leaves its cache."""
ENCODED_TOGETHER = 512
"""Source tokens that are encoded together on a CPU, for the same reason."""


class StepDecoder:
    """The state of decoding sentences that come and go: what each layer keeps, and how far each sentence is."""

    steps_between_collections = 8

    def __init__(self, model: Transformer, width: int) -> None:
        self.model, self.width = model, width
        weight = model.target_embedding.tokens.weight
        self.device, self.dtype = weight.device, weight.dtype
        self.output_blocks = [part.t() for part in torch.split(model.output.weight.detach(), COLUMNS)]
        self.layers = [_Layer(cast(DecoderLayer, layer), weight) for layer in model.decoder]
        self.lengths = torch.zeros(0, dtype=torch.long, device=self.device)
        self.longest = 0
        """No sentence has more tokens than this; the table of positions is as long."""
        self.sources: list[int] = []
        self.source_bias = weight.new_zeros(0, 1, 1, 0)
        self.seen = torch.zeros(0, width, 0, dtype=torch.bool, device=self.device)
        self.used = 0

    def resize(self, kept: Sequence[int], slots: int) -> None:
        """Gives room for so many sentences; those of the slots `kept` move to the first ones, the others are gone."""
        self._collect(kept, slots)
        index = _padded(torch.tensor(kept, dtype=torch.long, device=self.device), slots)
        self.source_bias = _rows(self.source_bias, index)
        for layer in self.layers:
            layer.move_source(index)
        self.lengths = _rows(self.lengths, index)
        self.sources = [self.sources[slot] for slot in kept] + [0] * (slots - len(kept))

    def admit(self, slots: Sequence[int], source: Tensor) -> None:
        """Puts new sentences, ids (N, S), into slots, in place of what was there."""
        lowest = torch.finfo(self.dtype).min
        if (more := source.shape[1] - self.source_bias.shape[3]) > 0:
            self.source_bias = F.pad(self.source_bias, (0, more), value=lowest)
            for layer in self.layers:
                layer.widen_source(more)
        index = torch.tensor(slots, dtype=torch.long, device=self.device)
        self.source_bias[index] = lowest
        self.seen[index] = False
        self.lengths[index] = 0
        lengths = (source != self.model.pad).sum(1).tolist()
        together = max(1, ENCODED_TOGETHER // source.shape[1]) if self.device.type == "cpu" else len(slots)
        for first in range(0, len(slots), together):
            part = slice(first, first + together)
            self._encode(index[part], source[part, : max(lengths[part])])
        for slot, length in zip(slots, lengths, strict=True):
            self.sources[slot] = length

    def _encode(self, slots: Tensor, source: Tensor) -> None:
        memory, mask = self.model.encode(source)
        self.source_bias[slots, :, :, : source.shape[1]] = _bias(mask, self.dtype)
        for layer in self.layers:
            layer.admit(slots, memory)

    def leave(self, slot: int) -> None:
        """Forgets the sentence of a slot."""
        self.sources[slot] = 0

    def step(self, tokens: Tensor, rows: Tensor | None) -> Tensor:
        """Takes in the newest token of each beam (A, W), gives the logits of the next ones (R, V).

        rows (R,): which of the A x W beams live; None: all of them. The others are not computed.
        """
        here = self._open_cells()
        return self._advance(tokens, rows, here, self.used, max(self.sources, default=0))

    def _open_cells(self) -> slice:
        """Cells for the tokens of a step, one for each beam."""
        if self.used + self.width > self.seen.shape[2]:
            self._collect(range(len(self.lengths)), len(self.lengths))
        self.longest += 1
        self.used += self.width
        return slice(self.used - self.width, self.used)

    def _advance(self, tokens: Tensor, rows: Tensor | None, here: slice | Tensor, cells: int, sources: int) -> Tensor:
        """The step itself: tokens go to the cells `here`, and see the first so many cells and source tokens."""
        self.seen[:, :, here] |= torch.eye(self.width, dtype=torch.bool, device=self.device)
        grid = _Grid(len(self.lengths), self.width, rows)
        positions = grid.rows_of(self.lengths[:, None].expand(-1, self.width))
        x = self.model.target_embedding(grid.rows_of(tokens), self._encodings(positions))
        bias = _bias(self.seen[:, None, :, :cells], self.dtype)
        source_bias = self.source_bias[..., :sources]
        for layer in self.layers:
            x = layer.step(x, grid, here, bias, source_bias, self._turns(layer, positions))
        self.lengths += 1
        return self._logits(self.model.decoder_norm(x))

    def reorder(self, parents: Tensor) -> None:
        """Makes each beam (A, W) continue the one that `parents` names, of the same sentence."""
        seen = self.seen[:, :, : self.used]
        self.seen[:, :, : self.used] = seen.gather(1, parents[:, :, None].expand(-1, -1, self.used))

    def _encodings(self, positions: Tensor) -> Tensor | None:
        """Rows of the table of positions, (R, D)."""
        embedding = self.model.target_embedding
        if embedding.positions == "rotary":
            return None
        return embedding.table(self._table_rows() if embedding.positions == "sinusoidal" else embedding.max_positions)[
            positions
        ]

    def _table_rows(self) -> int:
        """Rows of the table of positions that a step may need."""
        return self.longest

    def _turns(self, layer: "_Layer", positions: Tensor) -> Tensor | None:
        """What rotary positions turn queries and keys (R, H, K) by."""
        if not layer.self_attention.rotary:
            return None
        wide = torch.promote_types(self.dtype, torch.float32)
        table = positions_up_to(self._table_rows(), layer.self_attention.key_size, self.device, wide)
        return table[positions][:, None]

    def _logits(self, x: Tensor) -> Tensor:
        """(R, D) -> (R, V), in blocks of columns where that is faster."""
        weight, bias = self.model.output.weight, self.model.output_bias
        if x.device.type != "cpu" or len(weight) <= COLUMNS:
            return F.linear(x, weight, bias)
        logits = x.new_empty(len(x), len(weight))
        for part, columns in zip(self.output_blocks, torch.split(logits, COLUMNS, 1), strict=True):
            torch.mm(x, part, out=columns)
        return logits if bias is None else logits.add_(bias)

    def _collect(self, kept: Sequence[int], slots: int) -> None:
        """Moves the cells that some beam sees to the front, for the slots kept, and gives up the others."""
        index = torch.tensor(kept, dtype=torch.long, device=self.device)
        seen = self.seen[index][:, :, : self.used]
        needed = seen.any(1)
        count = int(needed.sum(1).max()) if needed.numel() else 0
        order = needed.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices[:, :count]
        capacity = count + self.steps_between_collections * self.width
        self.seen = self.seen.new_zeros(slots, self.width, capacity)
        self.seen[: len(kept), :, :count] = seen.gather(2, order[:, None].expand(-1, self.width, -1))
        cells = torch.zeros(slots, capacity, dtype=torch.long, device=self.device)  # what is not seen may hold anything
        cells[: len(kept), :count] = order
        for layer in self.layers:
            layer.move_cells(_padded(index, slots), cells)
        self.used = count
        self.longest = int(self.lengths.max()) if len(self.lengths) else 0


class _Grid:
    """Which of A x W beams are computed: linear layers see those rows alone, attention the whole grid."""

    def __init__(self, slots: int, width: int, rows: Tensor | None) -> None:
        self.slots, self.width, self.rows = slots, width, rows

    def rows_of(self, grid: Tensor) -> Tensor:
        """(A, W, ...) -> (R, ...)."""
        flat = grid.flatten(0, 1)
        return flat if self.rows is None else flat.index_select(0, self.rows)

    def heads(self, x: Tensor, heads: int) -> Tensor:
        """(R, H x K) -> (A, H, W, K); beams that are not computed are zeros."""
        if self.rows is not None:
            x = x.new_zeros(self.slots * self.width, x.shape[1]).index_copy_(0, self.rows, x)
        return x.view(self.slots, self.width, heads, -1).transpose(1, 2)

    def joined(self, heads: Tensor) -> Tensor:
        """(A, H, W, K) -> (R, H x K)."""
        return self.rows_of(heads.transpose(1, 2).flatten(2))


class _Layer:
    """One decoder layer; keys and values of the cells (A, H, C, K), and of the source (A, H, K, S) and (A, H, S, K).

    Keys are used transposed; those of the source, which stay as they are, are kept so.
    """

    def __init__(self, layer: DecoderLayer, like: Tensor) -> None:
        self.layer, self.self_attention, self.cross_attention = layer, layer.self_attention, layer.cross_attention
        self.heads = layer.self_attention.heads
        sizes = (layer.self_attention.key_size, layer.self_attention.value_size)
        self.cells = [like.new_zeros(0, self.heads, 0, size) for size in sizes]
        self.source = [like.new_zeros(0, self.heads, sizes[0], 0), like.new_zeros(0, self.heads, 0, sizes[1])]

    def step(
        self, x: Tensor, grid: _Grid, here: slice | Tensor, bias: Tensor, source_bias: Tensor, turns: Tensor | None
    ) -> Tensor:
        """x (R, D) -> (R, D); its keys and values go to the cells `here`."""

        def self_attention(y: Tensor) -> Tensor:
            queries, *new = self.self_attention.project(y)
            if turns is not None:
                queries, new[0] = (self._rotated(part, turns) for part in (queries, new[0]))
            for cells, part in zip(self.cells, new, strict=True):
                cells[:, :, here] = grid.heads(part, self.heads)
            keys, values = (cells[:, :, : bias.shape[3]] for cells in self.cells)
            return self._attended(self.self_attention, queries, grid, (keys.transpose(2, 3), values), bias)

        def cross_attention(y: Tensor) -> Tensor:
            length, queries = source_bias.shape[3], self.cross_attention.project_queries(y)
            source = (self.source[0][..., :length], self.source[1][:, :, :length])
            return self._attended(self.cross_attention, queries, grid, source, source_bias)

        x = self.layer.self_residual(x, self_attention)
        x = self.layer.cross_residual(x, cross_attention)
        return self.layer.feed_forward_residual(x, self.layer.feed_forward)  # type: ignore[no-any-return]

    def _rotated(self, x: Tensor, turns: Tensor) -> Tensor:
        return rotate(x.view(len(x), self.heads, -1), turns).flatten(1)

    def _attended(
        self, attention: Attention, queries: Tensor, grid: _Grid, past: Sequence[Tensor], bias: Tensor
    ) -> Tensor:
        """Section 3.2.1 written out, which for so few queries is faster than the fused kernel: (R, H x K) -> (R, D)."""
        transposed_keys, values = (part.flatten(0, 1) for part in past)
        scaled = (grid.heads(queries, self.heads) * (1 / math.sqrt(attention.key_size))).flatten(0, 1)
        scores = torch.bmm(scaled, transposed_keys).view(grid.slots, self.heads, grid.width, -1).add_(bias)
        heads = torch.bmm(scores.softmax(-1).flatten(0, 1), values)
        return attention.output(grid.joined(heads.view(grid.slots, self.heads, grid.width, -1)))  # type: ignore[no-any-return]

    def widen_source(self, more: int) -> None:
        """Makes room for so many more source tokens."""
        self.source = [F.pad(self.source[0], (0, more)), F.pad(self.source[1], (0, 0, 0, more))]

    def admit(self, slots: Tensor, memory: Tensor) -> None:
        """Writes the keys and values of new sentences' memory (N, S, D)."""
        seen = self.cross_attention.keys_values(memory)
        keys, values = self.source
        keys[slots, :, :, : memory.shape[1]] = seen.keys.transpose(2, 3)
        values[slots, :, : memory.shape[1]] = seen.values

    def move_source(self, index: Tensor) -> None:
        """Makes slot i what slot index[i] was."""
        self.source = [_rows(part, index) for part in self.source]

    def move_cells(self, index: Tensor, cells: Tensor) -> None:
        """Makes cell c of slot i what cell cells[i, c] of slot index[i] was."""
        slots, capacity = cells.shape
        first = index[:, None] * self.heads + torch.arange(self.heads, device=cells.device)
        flat = (first[:, :, None] * self.cells[0].shape[2] + cells[:, None]).flatten()
        self.cells = [
            _rows(part.flatten(0, 2), flat).view(slots, self.heads, capacity, part.shape[3]) for part in self.cells
        ]


def _bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores of attention: nothing where the mask is true, elsewhere what makes them vanish."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


def _padded(index: Tensor, length: int) -> Tensor:
    """An index as long as wanted; what is beyond its end points at 0."""
    return F.pad(index, (0, length - len(index)))


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    """Rows of a tensor; where it has none at all, zeros."""
    return tensor.index_select(0, index) if len(tensor) else tensor.new_zeros(len(index), *tensor.shape[1:])

"""The Transformer of "Attention Is All You Need" in one file, to be read top to bottom beside the paper.

Letters in shapes: B batch, S source and T target length, D model size, H heads, K key size, V vocabulary.
Where the text is silent, the authors' first tensor2tensor version is followed: no biases in attention, Xavier
uniform weights, embeddings drawn from N(0, 1/D). One difference: LayerNorm's epsilon is 1e-5, not 1e-6.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.model.kernels import Dropout, attention_products


def sinusoidal_positions(length: int, size: int) -> Tensor:
    """Section 3.5: PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) = cos of the same; (length, size), float64."""
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = position * frequency
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
@lru_cache(maxsize=16)
def _table_of_positions(rows: int, size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return sinusoidal_positions(rows, size).to(dtype).to(device)  # float64, which not every device has, stays here


def positions_up_to(length: int, size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The first rows of a table of sinusoids that is made once and grows by doubling: (length, size)."""
    rows = 256
    while rows < length:  # comparisons alone: what is compiled for one length holds for others then
        rows *= 2
    return _table_of_positions(rows, size, device, dtype)[:length]  # type: ignore[no-any-return]


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021): pairs of channels of queries or keys (..., T, K) turn as the table says."""
    sine, cosine = table[..., 0::2], table[..., 1::2]
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], dim=-1).flatten(-2).to(x.dtype)


class Embedding(nn.Module):
    """Section 3.4 and 3.5: token embeddings times sqrt(D), plus positions, then dropout."""

    def __init__(self, vocabulary: int, size: int, *, positions: str, max_positions: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, size)
        self.size, self.positions, self.max_positions = size, positions, max_positions
        self.dropout = Dropout(dropout)
        if positions == "learned":
            self.learned = nn.Parameter(torch.empty(max_positions, size))

    def forward(self, ids: Tensor, encodings: Tensor | None = None) -> Tensor:
        """ids (B, T) -> (B, T, D); `encodings` are rows of the table, where positions are not 0 to T - 1."""
        x = self.tokens(ids) * math.sqrt(self.size)
        if self.positions != "rotary":
            x = x + (self.table(ids.shape[1]) if encodings is None else encodings).to(x.dtype)
        if x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))  # and so all sums of sub-layers: casting them costs more there
        return self.dropout(x)  # type: ignore[no-any-return]

    def table(self, length: int) -> Tensor:
        """What stands for the first positions: (length, D)."""
        if self.positions == "learned":
            if length > self.max_positions:
                raise ValueError(f"{length} positions asked of model.max_positions {self.max_positions}")
            return self.learned[:length]
        weight = self.tokens.weight
        return positions_up_to(length, self.size, weight.device, weight.dtype)


@dataclass
class KeysAndValues:
    """What attention looks at: keys (B, H, S, K), values (B, H, S, K of values), and which of them are real.

    mask broadcasts to (B, H, T, S), True where a position may be seen; None: all of them.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None = None


class Attention(nn.Module):
    """Section 3.2.2: heads of scaled dot-product attention; one matrix holds the projections of q, k and v."""

    def __init__(
        self, size: int, heads: int, key_size: int, value_size: int, *, dropout: float, bias: bool, rotary: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.key_size, self.value_size = heads, key_size, value_size
        self.dropout, self.rotary = dropout, rotary
        self.projection = nn.Linear(size, heads * (2 * key_size + value_size), bias)
        self.output = nn.Linear(heads * value_size, size, bias)

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """x (..., D) -> queries, keys (..., H x K) and values (..., H x V) for self-attention."""
        rows = self.heads * self.key_size
        return self.projection(x).split([rows, rows, self.heads * self.value_size], dim=-1)  # type: ignore[no-any-return]

    def project_queries(self, x: Tensor) -> Tensor:
        """x (..., D) -> queries alone (..., H x K)."""
        return self._part(x, slice(0, self.heads * self.key_size))

    def queries(self, x: Tensor) -> Tensor:
        """x (B, T, D) -> (B, H, T, K)."""
        return self._heads(self.project_queries(x))

    def keys_values(self, memory: Tensor, mask: Tensor | None = None) -> KeysAndValues:
        """memory (B, S, D) -> its keys and values."""
        rows = self.heads * self.key_size
        both = self._part(memory, slice(rows, None))
        keys, values = torch.split(both, [rows, self.heads * self.value_size], dim=-1)
        return KeysAndValues(self._heads(keys), self._heads(values), mask)

    def attend(self, queries: Tensor, seen: KeysAndValues, *, causal: bool = False) -> Tensor:
        """softmax(q k^T / sqrt(K)) v, heads joined and projected: (B, H, T, K) -> (B, T, D)."""
        dropout = self.dropout if self.training else 0.0
        heads = attention_products(queries, seen.keys, seen.values, seen.mask, dropout, causal=causal)
        return self.output(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def forward(self, x: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
        """Self-attention of x (B, T, D) over itself."""
        queries, keys, values = map(self._heads, self.project(x))
        if self.rotary:
            wide = torch.promote_types(x.dtype, torch.float32)  # half precision would blur the far positions
            table = positions_up_to(x.shape[1], self.key_size, x.device, wide)
            queries, keys = rotate(queries, table), rotate(keys, table)
        return self.attend(queries, KeysAndValues(keys, values, mask), causal=causal)

    def cross(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Attention of x (B, T, D) to memory (B, S, D)."""
        return self.attend(self.queries(x), self.keys_values(memory, mask))

    def _part(self, x: Tensor, rows: slice) -> Tensor:
        bias = self.projection.bias
        return F.linear(x, self.projection.weight[rows], None if bias is None else bias[rows])

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "swish": F.silu, "swiglu": F.silu,
}  # fmt: skip


class FeedForward(nn.Module):
    """Section 3.3: two affine maps with an activation between them (swiglu: Shazeer 2020, a gated product)."""

    def __init__(self, size: int, inner_size: int, *, activation: str, dropout: float) -> None:
        super().__init__()
        self.gated = activation == "swiglu"
        self.inner = nn.Linear(size, inner_size * (2 if self.gated else 1))
        self.outer = nn.Linear(inner_size, size)
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, T, D) -> (B, T, D)."""
        first, *second = self.inner(x).chunk(2 if self.gated else 1, dim=-1)
        inner = self.activation(first) * second[0] if self.gated else self.activation(first)
        return self.outer(self.dropout(inner))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """Section 3.1 and 5.4: LayerNorm(x + dropout(sublayer(x))); pre-norm: x + dropout(sublayer(LayerNorm(x)))."""

    def __init__(self, size: int, *, dropout: float, pre_norm: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size, eps=1e-5)
        self.dropout = Dropout(dropout)
        self.pre_norm = pre_norm

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """x (B, T, D) -> (B, T, D)."""
        if self.pre_norm:
            return x + self.dropout(sublayer(self.norm(x)))  # type: ignore[no-any-return]
        return self.norm(x + self.dropout(sublayer(x)))  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward layer; made of what `attention` and so on build."""

    def __init__(
        self, attention: Callable[..., Attention], feed_forward: Callable[[], FeedForward],
        residual: Callable[[], Residual], *, rotary: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.self_attention, self.feed_forward = attention(rotary=rotary), feed_forward()
        self.self_residual, self.feed_forward_residual = residual(), residual()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x (B, S, D), mask (B, 1, 1, S) -> (B, S, D)."""
        x = self.self_residual(x, lambda y: self.self_attention(y, mask))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output, then the feed-forward layer."""

    def __init__(
        self, attention: Callable[..., Attention], feed_forward: Callable[[], FeedForward],
        residual: Callable[[], Residual], *, rotary: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.self_attention, self.cross_attention = attention(rotary=rotary), attention()
        self.feed_forward = feed_forward()
        self.self_residual, self.cross_residual, self.feed_forward_residual = residual(), residual(), residual()

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """x (B, T, D), memory (B, S, D), mask (B, 1, 1, S) -> (B, T, D)."""
        x = self.self_residual(x, lambda y: self.self_attention(y, causal=True))
        x = self.cross_residual(x, lambda y: self.cross_attention.cross(y, memory, mask))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """Figure 1. Sizes are the paper's d_model, d_ff, h, d_k, d_v; ids of padding are `pad`."""

    def __init__(
        self, *, source_vocabulary: int, target_vocabulary: int, encoder_layers: int = 6, decoder_layers: int = 6,
        model_size: int = 512, feedforward_size: int = 2048, heads: int = 8, key_size: int = 64, value_size: int = 64,
        dropout: float = 0.1, attention_dropout: float = 0.0, activation_dropout: float = 0.0, norm: str = "post",
        positions: str = "sinusoidal", max_positions: int = 1024, activation: str = "relu",
        attention_bias: bool = False, output_bias: bool = False, tie_embeddings: str = "all", pad: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.pad, self.model_size, self.positions, self.max_positions = pad, model_size, positions, max_positions
        if tie_embeddings == "all" and source_vocabulary != target_vocabulary:
            raise ValueError(f"one matrix cannot embed {source_vocabulary} and {target_vocabulary} pieces")
        embed = partial(Embedding, size=model_size, positions=positions, max_positions=max_positions, dropout=dropout)
        attention = partial(
            Attention, model_size, heads, key_size, value_size, dropout=attention_dropout, bias=attention_bias
        )
        inner = partial(FeedForward, model_size, feedforward_size, activation=activation, dropout=activation_dropout)
        residual = partial(Residual, model_size, dropout=dropout, pre_norm=norm == "pre")
        parts, rotary = (attention, inner, residual), positions == "rotary"
        self.source_embedding, self.target_embedding = embed(source_vocabulary), embed(target_vocabulary)
        self.encoder = nn.ModuleList(EncoderLayer(*parts, rotary=rotary) for _ in range(encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(*parts, rotary=rotary) for _ in range(decoder_layers))
        last = partial(nn.LayerNorm, model_size, eps=1e-5) if norm == "pre" else nn.Identity
        self.encoder_norm, self.decoder_norm = last(), last()
        if tie_embeddings == "all":
            self.target_embedding.tokens = self.source_embedding.tokens
        tied = self.target_embedding.tokens
        self.output = nn.Embedding(target_vocabulary, model_size) if tie_embeddings == "none" else tied
        self.output_bias = nn.Parameter(torch.zeros(target_vocabulary)) if output_bias else None
        self._initialise()

    def _initialise(self) -> None:
        """Xavier uniform for each projection by itself, fused or not; N(0, 1/D) for embeddings; biases zero."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.model_size**-0.5)
            elif isinstance(module, Embedding) and module.positions == "learned":
                nn.init.normal_(module.learned, std=self.model_size**-0.5)
            elif isinstance(module, Attention):
                rows = module.heads * module.key_size
                for part in module.projection.weight.detach().tensor_split([rows, 2 * rows]):
                    nn.init.xavier_uniform_(part)
            elif isinstance(module, FeedForward) and module.gated:
                for part in module.inner.weight.detach().chunk(2):
                    nn.init.xavier_uniform_(part)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """source ids (B, S) -> memory (B, S, D) and its mask (B, 1, 1, S), True where a token is no padding."""
        mask = (source != self.pad)[:, None, None, :]
        x = self.source_embedding(source)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x), mask

    def decode(self, target_input: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """target input ids (B, T), beginning with the start symbol -> (B, T, D), before the output projection."""
        x = self.target_embedding(target_input)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        return self.decoder_norm(x)  # type: ignore[no-any-return]

    def logits(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., V): the output projection (section 3.4)."""
        return F.linear(x, self.output.weight, self.output_bias)

    def forward(self, source: Tensor, target_input: Tensor) -> Tensor:
        """source (B, S) and target input (B, T) -> (B, T, D), before the output projection."""
        return self.decode(target_input, *self.encode(source))

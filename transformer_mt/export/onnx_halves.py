"""The two halves of a model as torch's exporter takes them: the parts of `transformer.py`, positions in a stored table.

Letters in shapes: B batch, S source length, P tokens that the decoder has seen, N tokens that are new to it, D model
size, H heads, K key size, V vocabulary. B, S, P and N are free; P may be 0.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.model.transformer import (
    Attention,
    DecoderLayer,
    Embedding,
    EncoderLayer,
    KeysAndValues,
    Transformer,
    rotate,
    sinusoidal_positions,
)  # fmt: skip

POSITIONS = 4096
"""Rows of a table of sinusoids; learned positions are as many as the model has."""


def positions(model: Transformer) -> int:
    """Most tokens of a source, `</s>` included, and of a target, the start symbol included."""
    return model.max_positions if model.positions == "learned" else POSITIONS


def decoder_layers(model: Transformer) -> list[DecoderLayer]:
    """The decoder's layers by their type."""
    return cast("list[DecoderLayer]", list(model.decoder))


class Half(nn.Module):
    """What both halves do alike: they embed, and attend to themselves, at positions that are rows of a stored table.

    A token beyond the table is an error where the file is run.
    """

    table: Tensor

    def __init__(self, model: Transformer, embedding: Embedding) -> None:
        super().__init__()
        self.model, self.embedding = model, embedding
        if embedding.positions == "learned":
            self.table = embedding.learned
        else:
            rotary = embedding.positions == "rotary"
            size = decoder_layers(model)[0].self_attention.key_size if rotary else model.model_size
            self.register_buffer("table", sinusoidal_positions(POSITIONS, size).float())

    def embed(self, ids: Tensor, places: Tensor) -> Tensor:
        """ids (B, N) at the positions `places` (N,) -> (B, N, D)."""
        rotary = self.embedding.positions == "rotary"
        return self.embedding(ids, None if rotary else F.embedding(places, self.table))  # type: ignore[no-any-return]

    def attend(
        self, attention: Attention, x: Tensor, places: Tensor, mask: Tensor, past: KeysAndValues | None = None
    ) -> tuple[Tensor, KeysAndValues]:
        """Self-attention of x (B, N, D) over the past and itself: its output, and the keys and values of both."""
        queries, keys, values = (
            part.view(*part.shape[:2], attention.heads, -1).transpose(1, 2) for part in attention.project(x)
        )
        if attention.rotary:
            rows = F.embedding(places, self.table)
            queries, keys = rotate(queries, rows), rotate(keys, rows)
        if past is not None:
            keys, values = torch.cat([past.keys, keys], 2), torch.cat([past.values, values], 2)
        seen = KeysAndValues(keys, values, mask)
        return attention.attend(queries, seen), seen


class Encoder(Half):
    """Source ids to what the decoder's layers look at: their keys and values of the memory, projected once."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model, model.source_embedding)

    def forward(self, source: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """source (B, S) -> which are no padding (B, S), then for each layer keys and values (B, H, S, K)."""
        real = source != self.model.pad
        places = torch.arange(source.shape[1])
        x = self.embed(source, places)
        for layer in cast("list[EncoderLayer]", list(self.model.encoder)):
            x = self._layer(layer, x, places, real[:, None, None])
        memory = self.model.encoder_norm(x)
        seen = [layer.cross_attention.keys_values(memory) for layer in decoder_layers(self.model)]
        return real, [each.keys for each in seen], [each.values for each in seen]

    def _layer(self, layer: EncoderLayer, x: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        x = layer.self_residual(x, lambda y: self.attend(layer.self_attention, y, places, mask)[0])
        return layer.feed_forward_residual(x, layer.feed_forward)  # type: ignore[no-any-return]


class Decoder(Half):
    """Some tokens more: their logits, and keys and values of all tokens so far."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model, model.target_embedding)

    def forward(
        self, tokens: Tensor, real: Tensor, cross_keys: list[Tensor], cross_values: list[Tensor],
        past_keys: list[Tensor], past_values: list[Tensor],
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:  # fmt: skip
        """tokens (B, N); the encoder's outputs; for each layer keys and values (B, H, P, K) -> logits (B, N, V), those.

        The tokens' positions are P and those that follow it.
        """
        past, new = past_keys[0].shape[2], tokens.shape[1]
        places = torch.arange(past, past + new)
        mask = torch.arange(past + new)[None] <= places[:, None]
        x = self.embed(tokens, places)
        present = []
        seen = zip(cross_keys, cross_values, past_keys, past_values, strict=True)
        for layer, (keys, values, before_keys, before_values) in zip(decoder_layers(self.model), seen, strict=True):
            source = KeysAndValues(keys, values, real[:, None, None])
            x, kept = self._layer(layer, x, places, source, KeysAndValues(before_keys, before_values, mask))
            present.append(kept)
        x = self.model.decoder_norm(x)
        # As a matrix, or the exporter would write the output projection a second time, transposed.
        logits = self.model.logits(x.flatten(0, 1)).view(*tokens.shape, -1)
        return logits, [each.keys for each in present], [each.values for each in present]

    def _layer(
        self, layer: DecoderLayer, x: Tensor, places: Tensor, source: KeysAndValues, past: KeysAndValues
    ) -> tuple[Tensor, KeysAndValues]:
        """past.mask (N, P + N): what each token sees, of the past and of the new ones."""
        kept = []

        def self_attention(y: Tensor) -> Tensor:
            output, present = self.attend(layer.self_attention, y, places, cast(Tensor, past.mask), past)
            kept.append(present)
            return output

        cross = layer.cross_attention
        x = layer.self_residual(x, self_attention)
        x = layer.cross_residual(x, lambda y: cross.attend(cross.queries(y), source))
        return layer.feed_forward_residual(x, layer.feed_forward), kept[0]

"""Where a model looks: attention weights, which training and search never hold."""

import math
from typing import cast

import torch
from torch import Tensor

from transformer_mt.model.transformer import DecoderLayer, Transformer


def cross_attention(model: Transformer, source: Tensor, target_input: Tensor, layer: int) -> Tensor:
    """Attention of one decoder layer, counted from 0, to the source: ids (B, S) and (B, T) -> weights (B, H, T, S)."""
    memory, mask = model.encode(source)
    x = model.target_embedding(target_input)
    layers = [cast(DecoderLayer, each) for each in model.decoder]
    for before in layers[:layer]:
        x = before(x, memory, mask)
    asked = layers[layer]
    x = asked.self_residual(x, lambda y: asked.self_attention(y, causal=True))
    if asked.cross_residual.pre_norm:
        x = asked.cross_residual.norm(x)
    queries, keys = asked.cross_attention.queries(x), asked.cross_attention.keys_values(memory).keys
    scores = queries @ keys.transpose(-1, -2) / math.sqrt(asked.cross_attention.key_size)
    return scores.masked_fill(~mask, -torch.inf).softmax(-1)

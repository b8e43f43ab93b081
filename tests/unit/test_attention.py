"""Where a model looks: the weights of its attention to the source, computed a second time by torch's own layers."""

import math

import pytest
import torch
from torch import Tensor, nn

from tests import tiny
from transformer_mt.data.tokenizer import BOS, EOS, PAD
from transformer_mt.model.attention import cross_attention
from transformer_mt.model.transformer import Attention, Transformer, sinusoidal_positions

SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 4, EOS, PAD, PAD]])
TARGET = torch.tensor([[BOS, 10, 11, 12], [BOS, 13, PAD, PAD]])


def attended(attention: Attention, x: Tensor, memory: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Output and weights (B, H, T, S) of torch's layer with these parameters; `hidden`: what may not be seen."""
    bias = attention.projection.bias is not None
    theirs = nn.MultiheadAttention(x.shape[-1], attention.heads, bias=bias, batch_first=True, dtype=x.dtype)
    state = {"in_proj_weight": attention.projection.weight, "out_proj.weight": attention.output.weight}
    if bias:
        state |= {"in_proj_bias": attention.projection.bias, "out_proj.bias": attention.output.bias}
    theirs.load_state_dict(state)
    mask = hidden.expand(len(x), x.shape[1], memory.shape[1]).repeat_interleave(attention.heads, 0)
    return theirs(x, memory, memory, attn_mask=mask, average_attn_weights=False)


def by_hand(model: Transformer, layer: int) -> Tensor:
    """The decoder written out up to that layer, in either order of norms."""
    memory, seen = model.encode(SOURCE)
    size, pre = model.model_size, model.decoder[0].self_residual.pre_norm
    x = model.target_embedding.tokens.weight[TARGET] * math.sqrt(size) + sinusoidal_positions(TARGET.shape[1], size)
    later = torch.ones(TARGET.shape[1], TARGET.shape[1], dtype=torch.bool).triu(1)
    for number, each in enumerate(model.decoder):
        norms = [residual.norm for residual in (each.self_residual, each.cross_residual, each.feed_forward_residual)]
        y = norms[0](x) if pre else x
        x = x + attended(each.self_attention, y, y, later)[0]
        x = x if pre else norms[0](x)
        out, weights = attended(each.cross_attention, norms[1](x) if pre else x, memory, ~seen[:, 0])
        if number == layer:
            return weights
        x = x + out if pre else norms[1](x + out)
        x = x + each.feed_forward(norms[2](x)) if pre else norms[2](x + each.feed_forward(x))
    raise AssertionError(layer)


@pytest.mark.parametrize("keys", [{}, {"norm": "pre"}, {"attention_bias": True, "norm": "pre"}], ids=str)
@pytest.mark.parametrize("layer", [0, 1, 2])
@torch.no_grad()
def test_the_weights_are_those_of_another_implementation(keys: dict[str, object], layer: int) -> None:
    model = tiny.model(decoder_layers=3, key_size=4, value_size=4, **keys)
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    weights = cross_attention(model, SOURCE, TARGET, layer)
    assert weights.shape == (2, 4, 4, 5)
    torch.testing.assert_close(weights, by_hand(model, layer), rtol=1e-9, atol=1e-9)
    assert weights.std(-1).min() > 1e-3  # they are no even shares


@pytest.mark.parametrize(
    "keys",
    [{"positions": "rotary"}, {"positions": "learned", "max_positions": 9}, {"key_size": 2, "value_size": 6}],
    ids=str,
)
@torch.no_grad()
def test_rows_are_shares_of_what_is_there_and_the_past_alone_counts(keys: dict[str, object]) -> None:
    model = tiny.model(**keys)
    weights = cross_attention(model, SOURCE, TARGET, 1)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 4, dtype=torch.float64))
    assert not weights[1, :, :, 3:].any() and weights[0].min() > 0
    shorter = cross_attention(model, SOURCE[1:, :3], TARGET[1:, :2], 1)
    torch.testing.assert_close(shorter[0], weights[1, :, :2, :3], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_the_layer_itself_looks_with_these_weights() -> None:
    model, given = tiny.model(decoder_layers=1), []
    attention = model.decoder[0].cross_attention
    attention.attend = lambda queries, seen: given.append((queries, seen)) or queries.new_zeros(2, 4, 16)
    model(SOURCE, TARGET)
    del attention.attend
    queries, seen = given[-1]
    scores = (queries @ seen.keys.transpose(-1, -2) / math.sqrt(attention.key_size)).masked_fill(~seen.mask, -torch.inf)
    torch.testing.assert_close(cross_attention(model, SOURCE, TARGET, 0), scores.softmax(-1))

"""The model beside the paper: fidelity items 1 to 5, 10 and 11, the options, the first values."""

import math
from collections import Counter
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests import tiny
from transformer_mt.config import Model, Optimizer
from transformer_mt.model import transformer
from transformer_mt.model.folder import WEIGHTS, load_weights, save_tensors, weights
from transformer_mt.model.kernels import Dropout
from transformer_mt.model.transformer import (
    Attention,
    Embedding,
    FeedForward,
    positions_up_to,
    rotate,
    sinusoidal_positions,
)
from transformer_mt.train.averaging import average

NORMS = pytest.mark.parametrize("norm", ["post", "pre"])
POSITIONS = pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary"])


def batch(rows: int = 3, source: int = 7, target: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(4, tiny.VOCABULARY, (rows, length), generator=generator) for length in (source, target))


def copy_layer(ours: nn.Module, theirs: nn.Module) -> None:
    """Our weights into a layer of torch's own Transformer."""
    attentions = [(ours.self_attention, theirs.self_attn)]
    norms = [(ours.self_residual, theirs.norm1)]
    if hasattr(ours, "cross_attention"):
        attentions.append((ours.cross_attention, theirs.multihead_attn))
        norms += [(ours.cross_residual, theirs.norm2), (ours.feed_forward_residual, theirs.norm3)]
    else:
        norms.append((ours.feed_forward_residual, theirs.norm2))
    for mine, other in attentions:
        other.in_proj_weight.copy_(mine.projection.weight)
        other.in_proj_bias.copy_(mine.projection.bias)
        other.out_proj.load_state_dict(mine.output.state_dict())
    for mine, other in norms:
        other.load_state_dict(mine.norm.state_dict())
    theirs.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.outer.state_dict())


@torch.no_grad()
def reference(net: transformer.Transformer, norm: str, activation: str) -> nn.Transformer:
    """torch's own Transformer with the weights of ours; its final norms only where pre-norm needs them."""
    theirs = (
        nn.Transformer(16, 4, 2, 2, 24, 0.0, activation, batch_first=True, norm_first=norm == "pre").double().eval()
    )
    for stack, ours in ((theirs.encoder, net.encoder), (theirs.decoder, net.decoder)):
        for one, other in zip(ours, stack.layers, strict=True):
            copy_layer(one, other)
    if norm == "pre":
        theirs.encoder.norm.load_state_dict(net.encoder_norm.state_dict())
        theirs.decoder.norm.load_state_dict(net.decoder_norm.state_dict())
    else:
        theirs.encoder.norm = theirs.decoder.norm = None
    return theirs


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@NORMS
def test_item_1_layers_equal_torchs_own_with_our_weights(norm: str, activation: str) -> None:
    net = tiny.model(norm=norm, activation=activation, attention_bias=True)
    with torch.no_grad():
        for parameter in net.parameters():  # biases and norms other than 0 and 1
            parameter.add_(0.1 * torch.randn_like(parameter))
    theirs = reference(net, norm, activation)
    source, target = batch()
    source[0, 4:] = 0
    hidden = theirs(
        net.source_embedding(source), net.target_embedding(target), tgt_is_causal=True,
        tgt_mask=torch.ones(6, 6, dtype=torch.bool).triu(1),
        src_key_padding_mask=source == 0, memory_key_padding_mask=source == 0,
    )  # fmt: skip
    torch.testing.assert_close(net(source, target), hidden, rtol=1e-10, atol=1e-10)


def test_item_1_post_norm_is_the_default_and_ends_in_no_further_norm() -> None:
    assert Model().norm == "post"
    net = tiny.model()
    assert isinstance(net.encoder_norm, nn.Identity) and isinstance(net.decoder_norm, nn.Identity)
    assert sum(isinstance(module, nn.LayerNorm) for module in net.modules()) == 2 * 2 + 2 * 3
    assert {module.eps for module in net.modules() if isinstance(module, nn.LayerNorm)} == {1e-5}
    for memory in (net.encode(batch()[0])[0], net(*batch())):  # the last thing done is LayerNorm
        torch.testing.assert_close(memory.mean(-1), torch.zeros_like(memory[..., 0]), rtol=0, atol=1e-12)
    pre = tiny.model(norm="pre")
    assert sum(isinstance(module, nn.LayerNorm) for module in pre.modules()) == 2 * 2 + 2 * 3 + 2


@pytest.mark.parametrize(
    ("position", "channel"),
    [(0, 0), (0, 1), (1, 0), (1, 1), (7, 2), (7, 3), (100, 254), (255, 511), (4000, 10), (12_345, 300)],
)
def test_item_2_sinusoids_are_the_formula_interleaved(position: int, channel: int) -> None:
    angle = position / 10_000 ** (channel // 2 * 2 / 512)
    expected = math.cos(angle) if channel % 2 else math.sin(angle)
    assert sinusoidal_positions(position + 1, 512)[position, channel].item() == pytest.approx(expected, abs=1e-9)


def test_item_3_embeddings_are_scaled_by_the_root_of_the_size_before_positions_are_added() -> None:
    net = tiny.model()
    ids = batch()[0]
    for embedding in (net.source_embedding, net.target_embedding):
        expected = embedding.tokens.weight[ids] * 4.0 + sinusoidal_positions(7, 16)
        torch.testing.assert_close(embedding(ids), expected, rtol=1e-14, atol=1e-14)
        later = embedding.tokens.weight[ids] * 4.0 + sinusoidal_positions(307, 16)[300:]
        torch.testing.assert_close(embedding(ids, embedding.table(307)[300:]), later, rtol=1e-14, atol=1e-14)


def test_item_4_one_storage_for_the_three_embeddings() -> None:
    net = tiny.model(vocabulary=1000, model_size=64)
    tables = (net.source_embedding.tokens, net.target_embedding.tokens, net.output)
    assert len({table.weight.data_ptr() for table in tables}) == 1
    assert [name for name in weights(net) if weights(net)[name].shape == (1000, 64)] == [
        "source_embedding.tokens.weight"
    ]
    assert Model().tie_embeddings == "all"


@pytest.mark.parametrize(("tying", "tables"), [("all", 1), ("decoder", 2), ("none", 3)])
def test_tying_saves_a_table_each(tying: str, tables: int) -> None:
    net = tiny.model(vocabulary=1000, model_size=64, tie_embeddings=tying)
    one = tiny.model(vocabulary=1000, model_size=64)
    count = sum(parameter.numel() for parameter in net.parameters())
    assert count - sum(parameter.numel() for parameter in one.parameters()) == 64_000 * (tables - 1)
    found = (net.source_embedding.tokens, net.target_embedding.tokens, net.output)
    assert len({table.weight.data_ptr() for table in found}) == tables
    assert (found[1] is found[2]) == (tying != "none")


def test_one_table_cannot_embed_two_vocabularies() -> None:
    with pytest.raises(ValueError, match="30 and 20 pieces"):
        transformer.Transformer(source_vocabulary=30, target_vocabulary=20, model_size=16, heads=2)


def dropped(net: transformer.Transformer) -> list[tuple[float, tuple[int, ...]]]:
    """(probability, shape) of all that a forward pass in training mode drops out."""
    calls = []

    def watched(self: Dropout, x: Tensor) -> Tensor:
        calls.append((self.p, tuple(x.shape)))
        return x

    original = F.scaled_dot_product_attention

    def attention(*arguments: Tensor, dropout_p: float = 0.0, **keys: object) -> Tensor:
        if dropout_p:
            calls.append((dropout_p, (3, 4, arguments[0].shape[2], arguments[1].shape[2])))
        return original(*arguments, **keys)

    net.train()
    with (
        mock.patch.object(Dropout, "forward", watched),
        mock.patch.object(F, "scaled_dot_product_attention", attention),
    ):
        net(*batch())
    return [call for call in calls if call[0]]


@NORMS
def test_item_5_dropout_is_where_the_paper_has_it_and_nowhere_else(norm: str) -> None:
    """On each sub-layer's output and on the sums of embeddings and positions: 2 x 2 + 1 and 2 x 3 + 1 times."""
    calls = Counter(dropped(tiny.model(dropout=0.3, norm=norm)))
    assert calls == {(0.3, (3, 7, 16)): 5, (0.3, (3, 6, 16)): 7}
    settings = Model()
    assert (settings.dropout, settings.attention_dropout, settings.activation_dropout) == (0.1, 0.0, 0.0)


def test_item_5_sub_layers_are_dropped_before_they_are_added_and_normalised() -> None:
    for pre_norm in (False, True):
        residual = transformer.Residual(16, dropout=0.5, pre_norm=pre_norm).double()
        x, y = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 5, 16, dtype=torch.float64)
        with mock.patch.object(Dropout, "forward", lambda self, x: 7 * x):
            found = residual(x, lambda inner, y=y: y)
        torch.testing.assert_close(found, x + 7 * y if pre_norm else F.layer_norm(x + 7 * y, (16,)))


def test_item_5_the_other_two_dropouts_are_keys_of_their_own() -> None:
    calls = Counter(dropped(tiny.model(attention_dropout=0.2, activation_dropout=0.4)))
    assert calls == {
        (0.2, (3, 4, 7, 7)): 2, (0.2, (3, 4, 6, 6)): 2, (0.2, (3, 4, 6, 7)): 2,
        (0.4, (3, 7, 24)): 2, (0.4, (3, 6, 24)): 2,
    }  # fmt: skip


def test_item_5_without_dropout_training_mode_is_deterministic() -> None:
    net = tiny.model()
    expected = net(*batch())
    net.train()
    assert torch.equal(net(*batch()), expected)
    noisy = tiny.model(dropout=0.1).train()
    assert not torch.equal(noisy(*batch()), noisy(*batch()))


def test_item_7_adams_four_numbers(tmp_path) -> None:
    optimizer = tiny.trainer(tiny.model(), tiny.store(tmp_path, [(3, 3)])).optimizer.adam
    assert isinstance(optimizer, torch.optim.Adam)
    group = optimizer.param_groups[0]
    assert (group["betas"], group["eps"], group["weight_decay"], group["amsgrad"]) == ((0.9, 0.98), 1e-9, 0, False)
    assert Optimizer().clip_norm is None


@POSITIONS
@NORMS
def test_item_10_padding_does_not_change_outputs(norm: str, positions: str) -> None:
    """A pair of 4 tokens alone and beside one of 40."""
    net = tiny.model(norm=norm, positions=positions)
    source, target = batch(2, 40, 40)
    alone = net(source[:1, :4], target[:1, :4])
    source[0, 4:] = target[0, 4:] = 0
    torch.testing.assert_close(net(source, target)[0, :4], alone[0], rtol=1e-12, atol=1e-12)
    net.float()
    torch.testing.assert_close(net(source, target)[0, :4], alone[0].float(), rtol=1e-5, atol=1e-5)


@POSITIONS
@NORMS
def test_item_11_outputs_do_not_see_later_targets(norm: str, positions: str) -> None:
    net = tiny.model(norm=norm, positions=positions, dtype=torch.float32)
    source, target = batch(3, 9, 12)
    source[0, 5:] = 0
    target[1, 8:] = 0
    before = net(source, target)
    for place in (1, 5, 8, 11):
        changed = target.clone()
        changed[:, place] = (changed[:, place] + 1) % tiny.VOCABULARY
        after = net(source, changed)
        assert torch.equal(after[:, :place], before[:, :place])
        assert not torch.equal(after[:, place:], before[:, place:])


def test_the_encoder_sees_the_whole_source() -> None:
    net = tiny.model()
    source, _ = batch()
    changed = source.clone()
    changed[:, -1] = 4 + (changed[:, -1] - 3) % 16
    assert not torch.isclose(net.encode(source)[0][:, 0], net.encode(changed)[0][:, 0]).all(-1).any()


@POSITIONS
def test_order_matters(positions: str) -> None:
    net = tiny.model(positions=positions)
    source, target = batch()
    assert not torch.allclose(net(source.flip(1), target), net(source, target))


def test_attention_is_the_formula_with_key_and_value_sizes_apart() -> None:
    attention = Attention(16, 3, 4, 6, dropout=0.0, bias=True).double()
    nn.init.normal_(attention.projection.bias)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    q, k, v = F.linear(x, attention.projection.weight, attention.projection.bias).split([12, 12, 18], -1)
    heads = []
    for head in range(3):
        part, wide = slice(4 * head, 4 * head + 4), slice(6 * head, 6 * head + 6)
        scores = (q[..., part] @ k[..., part].mT / math.sqrt(4)).masked_fill(~mask[:, None], -math.inf)
        heads.append(scores.softmax(-1) @ v[..., wide])
    expected = attention.output(torch.cat(heads, -1))
    torch.testing.assert_close(attention(x, mask[:, None, None]), expected, rtol=1e-12, atol=1e-12)
    seen = attention.keys_values(x, mask[:, None, None])
    torch.testing.assert_close(attention.attend(attention.queries(x), seen), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        ({}, 4 * 16 * 16),
        ({"key_size": 2, "value_size": 4}, 2 * 16 * 8 + 2 * 16 * 16),
        ({"key_size": 4, "value_size": 2}, 2 * 16 * 16 + 2 * 16 * 8),
        ({"attention_bias": True}, 4 * 16 * 16 + 4 * 16),
    ],
)
def test_parameters_of_an_attention(keys: dict[str, int], count: int) -> None:
    net = tiny.model(**keys)
    assert sum(parameter.numel() for parameter in net.encoder[0].self_attention.parameters()) == count
    net(*batch())


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", lambda x: x.clamp(min=0)),
        ("gelu", lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
        ("swish", lambda x: x * torch.sigmoid(x)),
    ],
)
def test_activations(name: str, function) -> None:
    layer = FeedForward(8, 12, activation=name, dropout=0.0).double()
    x = torch.randn(3, 8, dtype=torch.float64)
    expected = function(x @ layer.inner.weight.T + layer.inner.bias) @ layer.outer.weight.T + layer.outer.bias
    torch.testing.assert_close(layer(x), expected)


def test_swiglu_multiplies_a_gate() -> None:
    layer = FeedForward(8, 12, activation="swiglu", dropout=0.0).double()
    assert layer.inner.weight.shape == (24, 8)
    x = torch.randn(3, 8, dtype=torch.float64)
    gate, value = (x @ layer.inner.weight.T + layer.inner.bias).split(12, -1)
    torch.testing.assert_close(layer(x), (gate * torch.sigmoid(gate) * value) @ layer.outer.weight.T + layer.outer.bias)


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    q, k = torch.randn(2, 8, dtype=torch.float64), torch.randn(2, 8, dtype=torch.float64)
    table = positions_up_to(706, 8, q.device, q.dtype)

    def turned(x: Tensor, position: int) -> Tensor:
        return rotate(x, table[position])

    one, other = ((turned(q[0], first) * turned(k[0], first + 5)).sum() for first in (0, 700))
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert not torch.isclose(one, (turned(q[0], 0) * turned(k[0], 6)).sum())
    torch.testing.assert_close(turned(q, 3).norm(dim=-1), q.norm(dim=-1))
    assert rotate(q.bfloat16(), table[3].float()).dtype == torch.bfloat16


def test_learned_positions_are_a_table_with_an_end() -> None:
    net = tiny.model(positions="learned", max_positions=10)
    assert net.source_embedding.learned.shape == (10, 16)
    assert net.source_embedding.learned is not net.target_embedding.learned
    net(*batch(2, 10, 10))
    with pytest.raises(ValueError, match=r"11 positions asked of model\.max_positions 10"):
        net(*batch(2, 11, 3))


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_other_positions_have_no_end(positions: str) -> None:
    net = tiny.model(positions=positions, max_positions=4)
    assert net(*batch(1, 1500, 600)).isfinite().all()
    assert not any("position" in name or "sinusoid" in name for name in net.state_dict())


def test_sinusoids_follow_the_models_type() -> None:
    embedding = Embedding(9, 4, positions="sinusoidal", max_positions=1, dropout=0.0)
    single = embedding(torch.zeros(1, 3, dtype=torch.long))
    assert single.dtype == torch.float32
    double = embedding.double()(torch.zeros(1, 3, dtype=torch.long))
    assert double.dtype == torch.float64
    torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=1e-6)


def test_each_projection_is_drawn_by_itself() -> None:
    """Xavier uniform: bounds sqrt(6 / (in + out)) of each matrix, though q, k and v (and gate and value) lie in one."""
    net = tiny.model(model_size=64, feedforward_size=128, key_size=8, value_size=32, activation="swiglu")
    attention, layer = net.encoder[0].self_attention, net.encoder[0].feed_forward
    q, k, v = attention.projection.weight.split([32, 32, 128])
    gate, value = layer.inner.weight.chunk(2)
    for part in (q, k, v, attention.output.weight, gate, value, layer.outer.weight):
        bound = math.sqrt(6 / sum(part.shape))
        assert 0.97 * bound < part.abs().max().item() <= bound
        assert part.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize("keys", [{}, {"tie_embeddings": "none", "positions": "learned", "output_bias": True}])
def test_first_values(keys: dict[str, object]) -> None:
    net = tiny.model(vocabulary=2000, model_size=64, attention_bias=True, **keys)
    for name, parameter in net.named_parameters():
        if "tokens" in name or "learned" in name or name == "output.weight":
            assert parameter.std().item() == pytest.approx(64**-0.5, rel=0.02)
            assert parameter.mean().item() == pytest.approx(0, abs=0.002)
        elif name.endswith("norm.weight"):
            assert (parameter == 1).all()
        elif parameter.dim() == 1:
            assert (parameter == 0).all()


def test_logits_are_the_projection_with_its_bias() -> None:
    net = tiny.model(output_bias=True)
    with torch.no_grad():
        net.output_bias.normal_()
    hidden = net(*batch())
    expected = hidden @ net.source_embedding.tokens.weight.T + net.output_bias
    torch.testing.assert_close(net.logits(hidden), expected)


def test_depths_are_set_for_each_side() -> None:
    net = tiny.model(encoder_layers=3, decoder_layers=1)
    assert (len(net.encoder), len(net.decoder)) == (3, 1)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_names_of_wrappers_are_taken_off(prefix: str, tmp_path) -> None:
    net, other = tiny.model(seed=1), tiny.model(seed=2)
    load_weights(other, {prefix + name: tensor for name, tensor in weights(net).items()}, tmp_path)
    assert torch.equal(net(*batch()), other(*batch()))


@pytest.mark.parametrize("start", ["bos", "eos", "pad"])
def test_a_start_symbol_that_is_the_padding_is_still_seen(start: str) -> None:
    """The decoder's own mask is the causal one alone, so `pad` can begin the target."""
    first = {"bos": 2, "eos": 3, "pad": 0}[start]
    net = tiny.model()
    source, target = batch()
    target[:, 0] = first
    hidden = net(source, target)
    assert hidden.isfinite().all()
    target[:, 0] = 9
    assert not torch.isclose(net(source, target)[:, -1], hidden[:, -1]).all()


def test_item_13_an_average_is_the_arithmetic_mean_in_float32(tmp_path) -> None:
    nets = [tiny.model(seed=seed, dtype=torch.float32) for seed in range(5)]
    folders = [tmp_path / f"step-{number:09d}" for number in range(5)]
    for net, path in zip(nets, folders, strict=True):
        path.mkdir()
        save_tensors(weights(net), path / WEIGHTS)
    mean = average(folders)
    assert mean.keys() == weights(nets[0]).keys()
    for name, tensor in mean.items():
        expected = torch.stack([weights(net)[name].double() for net in nets]).mean(0)
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, expected.float(), rtol=1e-7, atol=1e-9)
    assert all(torch.equal(tensor, average(folders[::-1])[name]) for name, tensor in mean.items())


def test_half_precision_trains_with_attention_in_float32_and_the_rest_in_half() -> None:
    """On a CPU, where it is faster; searching, which has no backward pass, computes all of it in half."""
    net = tiny.model(dtype=torch.float32).train()
    seen: list[torch.dtype] = []
    original = F.scaled_dot_product_attention

    def watched(*arguments: Tensor, **keys: object) -> Tensor:
        seen.append(arguments[0].dtype)
        return original(*arguments, **keys)

    exact = net(*batch())
    weight = torch.randn(exact.shape)
    (exact * weight).sum().backward()
    expected = {name: each.grad.clone() for name, each in net.named_parameters() if each.grad is not None}
    net.zero_grad()
    with mock.patch.object(F, "scaled_dot_product_attention", watched), torch.autocast("cpu", torch.bfloat16):
        half = net(*batch())
        assert half.dtype == torch.bfloat16 and set(seen) == {torch.float32}
        (half.float() * weight).sum().backward()
        with torch.no_grad():
            net(*batch())
        assert seen[-1] == torch.bfloat16
    torch.testing.assert_close(half.float(), exact, atol=0.1, rtol=0)
    for name, grad in expected.items():
        found = dict(net.named_parameters())[name].grad
        assert found is not None and found.dtype == torch.float32
        assert float((found - grad).norm()) < 0.15 * float(grad.norm()) + 1e-3, name

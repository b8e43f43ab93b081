"""Models as the library transformers reads them: its MarianMTModel's weights and configuration.

Marian's sinusoids are ours in another order, all sines before all cosines, and are computed when a model is loaded.
So the channels of everything that is added to them are brought into that order; heads and inner units stay.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer_mt.data.tokenizer import BOS, EOS, PAD
from transformer_mt.errors import UserError
from transformer_mt.model.transformer import Attention, DecoderLayer, EncoderLayer, FeedForward, Residual, Transformer

ACTIVATIONS = {F.relu: "relu", F.gelu: "gelu", F.silu: "swish"}
POSITIONS = 4096
"""Rows of the table of sinusoids that transformers is to compute: longer lines fail there."""


def obstacles(model: Transformer) -> list[str]:
    """Why a model is no Marian model, one sentence for each reason; empty if it is one."""
    first = _encoder(model)[0]
    attention, embeddings = first.self_attention, model.source_embedding
    joined = (attention.heads * attention.key_size, attention.heads * attention.value_size)
    tied = model.source_embedding.tokens is model.target_embedding.tokens is model.output
    facts = [
        (not first.self_residual.pre_norm, "model.norm: found pre, Marian has post"),
        (embeddings.positions == "sinusoidal", f"model.positions: found {embeddings.positions}, Marian has sinusoidal"),
        (not first.feed_forward.gated, "model.activation: found swiglu, Marian has relu, gelu and swish"),
        (tied, "model.tie_embeddings: wanted all, for there is one matrix in a Marian model"),
        (
            joined == (model.model_size, model.model_size),
            f"model.key_size, model.value_size: heads x size are {joined[0]} and {joined[1]}, "
            f"Marian has model_size ({model.model_size}) for both",
        ),
    ]
    return [reason for holds, reason in facts if not holds]


def marian_config(
    model: Transformer, start: int = BOS, pad: int = PAD, eos: int = EOS, bos: int = BOS
) -> dict[str, Any]:
    """What config.json of a MarianMTModel holds; `start` is the id that the decoder's input begins with.

    How to search does not belong there, but into generation_config.json.
    """
    _refuse(model)
    first, vocabulary = _encoder(model)[0], model.output.weight.shape[0]
    sizes: dict[str, int] = {}
    for side, layers in (("encoder", model.encoder), ("decoder", model.decoder)):
        sizes[f"{side}_layers"] = len(layers)
        sizes[f"{side}_attention_heads"] = first.self_attention.heads
        sizes[f"{side}_ffn_dim"] = first.feed_forward.outer.in_features
    return {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "vocab_size": vocabulary,
        "decoder_vocab_size": vocabulary,
        "d_model": model.model_size,
        **sizes,
        "activation_function": ACTIVATIONS[cast(Any, first.feed_forward.activation)],
        "scale_embedding": True,
        "max_position_embeddings": POSITIONS,
        "pad_token_id": pad,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "decoder_start_token_id": start,
        "forced_eos_token_id": None,  # left out it would be 0, our padding
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
    }


def marian_state(model: Transformer) -> dict[str, Tensor]:
    """The weights by a MarianMTModel's names, on the CPU; tied ones stand there once, sinusoids not at all."""
    _refuse(model)
    order = torch.cat([torch.arange(0, model.model_size, 2), torch.arange(1, model.model_size, 2)])
    shared = model.output.weight
    bias = shared.new_zeros(len(shared)) if model.output_bias is None else model.output_bias
    state = {"model.shared.weight": shared[:, order], "final_logits_bias": bias[None]}
    for number, encoder in enumerate(_encoder(model)):
        name = f"model.encoder.layers.{number}."
        state |= _attention(name + "self_attn", encoder.self_attention, encoder.self_residual, order)
        state |= _feed_forward(name, encoder.feed_forward, encoder.feed_forward_residual, order)
    for number, decoder in enumerate(cast("list[DecoderLayer]", list(model.decoder))):
        name = f"model.decoder.layers.{number}."
        state |= _attention(name + "self_attn", decoder.self_attention, decoder.self_residual, order)
        state |= _attention(name + "encoder_attn", decoder.cross_attention, decoder.cross_residual, order)
        state |= _feed_forward(name, decoder.feed_forward, decoder.feed_forward_residual, order)
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def _refuse(model: Transformer) -> None:
    if reasons := obstacles(model):
        raise UserError(*reasons)


def _encoder(model: Transformer) -> list[EncoderLayer]:
    return cast("list[EncoderLayer]", list(model.encoder))


def _attention(name: str, ours: Attention, residual: Residual, order: Tensor) -> dict[str, Tensor]:
    """The four projections, which always have biases there, and the LayerNorm behind them."""
    weights = [part[:, order] for part in ours.projection.weight.chunk(3)] + [ours.output.weight[order]]
    if ours.projection.bias is None:
        biases = [weight.new_zeros(len(weight)) for weight in weights]
    else:
        biases = [*ours.projection.bias.chunk(3), ours.output.bias[order]]
    state = _norm(f"{name}_layer_norm", residual.norm, order)
    for letter, weight, bias in zip(("q_proj", "k_proj", "v_proj", "out_proj"), weights, biases, strict=True):
        state |= {f"{name}.{letter}.weight": weight, f"{name}.{letter}.bias": bias}
    return state


def _feed_forward(name: str, ours: FeedForward, residual: Residual, order: Tensor) -> dict[str, Tensor]:
    return {
        f"{name}fc1.weight": ours.inner.weight[:, order],
        f"{name}fc1.bias": ours.inner.bias,
        f"{name}fc2.weight": ours.outer.weight[order],
        f"{name}fc2.bias": ours.outer.bias[order],
        **_norm(f"{name}final_layer_norm", residual.norm, order),
    }


def _norm(name: str, ours: nn.LayerNorm, order: Tensor) -> dict[str, Tensor]:
    return {f"{name}.weight": ours.weight[order], f"{name}.bias": ours.bias[order]}

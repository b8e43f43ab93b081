"""A Marian model of the library transformers, filled with our weights, says what ours says."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests import tiny
from transformer_mt.data.tokenizer import BOS, EOS, PAD
from transformer_mt.errors import UserError
from transformer_mt.export.huggingface import marian_config, marian_state
from transformer_mt.model.transformer import Transformer

transformers = pytest.importorskip("transformers")

KINDS = pytest.mark.parametrize(
    ("keys", "start"),
    [
        ({}, BOS),
        ({"activation": "gelu", "attention_bias": True}, EOS),
        ({"activation": "swish", "output_bias": True, "encoder_layers": 1, "decoder_layers": 3}, PAD),
        ({"tie_embeddings": "decoder"}, BOS),
        ({"tie_embeddings": "none", "output_bias": True}, BOS),
    ],
    ids=["paper", "gelu, attention biases", "swish, output bias, depths apart", "two tables", "three tables"],
)
PAIRS = tiny.pairs([(7, 3), (2, 9), (1, 1), (12, 5)])


def uneven(seed: int = 0, **keys: object) -> Transformer:
    """A model none of whose parameters is zero or one any more: each of them counts."""
    net = tiny.model(seed=seed, dtype=torch.float32, **keys)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return net


def padded(rows: list[list[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def saved(net: Transformer, start: int, folder: Path) -> Path:
    """A folder as transformers itself would write it, so that loading says what is missing."""
    from safetensors.torch import save_file

    transformers.MarianConfig(**marian_config(net, start)).save_pretrained(folder)
    save_file(marian_state(net), folder / "model.safetensors", {"format": "pt"})
    return folder


@KINDS
@torch.no_grad()
def test_logits_are_ours(keys: dict[str, object], start: int, tmp_path: Path) -> None:
    net = uneven(**keys)
    folder = saved(net, start, tmp_path)
    theirs, info = transformers.MarianMTModel.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    source = padded([[*source, EOS] for source, _ in PAIRS])
    target = padded([[start, *target] for _, target in PAIRS])
    found = theirs.eval()(input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target).logits
    expected = net.logits(net(source, target))
    for row, (_, words) in enumerate(PAIRS):
        places = slice(0, len(words) + 1)
        torch.testing.assert_close(found[row, places], expected[row, places], atol=1e-4, rtol=0)


def test_what_is_read_back_is_what_was_written(tmp_path: Path) -> None:
    net = uneven(activation="gelu")
    config = transformers.MarianConfig.from_pretrained(saved(net, EOS, tmp_path))
    assert {name: getattr(config, name) for name in marian_config(net, EOS)} == marian_config(net, EOS)
    assert (config.decoder_start_token_id, config.pad_token_id, config.forced_eos_token_id) == (EOS, PAD, None)
    assert (config.bos_token_id, config.eos_token_id, config.activation_function) == (BOS, EOS, "gelu")


def test_tied_weights_stand_there_once() -> None:
    state = marian_state(uneven())
    vocabulary = [name for name, tensor in state.items() if tiny.VOCABULARY in tensor.shape]
    assert sorted(vocabulary) == ["final_logits_bias", "model.shared.weight"]
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in state.values())


def test_all_reasons_are_told_at_once() -> None:
    keys = {"norm": "pre", "positions": "rotary", "activation": "swiglu", "key_size": 2}
    net = tiny.model(**keys)
    for function in (marian_state, marian_config):
        with pytest.raises(UserError) as failure:
            function(net)
        told = [message.partition(":")[0] for message in failure.value.messages]
        wanted = ["model.norm", "model.positions", "model.activation"]
        assert told == [*wanted, "model.key_size, model.value_size"]


@pytest.mark.parametrize(
    "keys",
    [
        {"norm": "pre"},
        {"positions": "learned"},
        {"positions": "rotary"},
        {"activation": "swiglu"},
        {"key_size": 2},
        {"value_size": 6},
        {"key_size": 8, "value_size": 8},
    ],
    ids=str,
)
def test_each_reason_is_enough(keys: dict[str, object]) -> None:
    with pytest.raises(UserError) as failure:
        marian_state(tiny.model(**keys))
    (reason,) = failure.value.messages
    assert any(name in reason for name in keys)

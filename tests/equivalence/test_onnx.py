"""Models as ONNX files: onnxruntime says what our model says, whatever the sizes; what is wrong is not kept."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests import tiny
from transformer_mt.atomic import read_json
from transformer_mt.config import Decoding, Model
from transformer_mt.config import Tokenizer as Settings
from transformer_mt.data.tokenizer import EOS, Tokenizer, learn
from transformer_mt.decode.translator import Translator
from transformer_mt.errors import RunError, UserError
from transformer_mt.export import onnx as export
from transformer_mt.export.onnx_halves import decoder_layers, positions
from transformer_mt.model.folder import FORMAT, load, weights, write_model

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")

TEXT = ["ein Hund bellt", "two dogs bark at the moon", "a moon", "der Mond und das Haus", "dogs and a house"]
KINDS: dict[str, dict[str, Any]] = {
    "paper": {"decoder_layers": 1, "start_symbol": "eos"},
    "learned": {
        "positions": "learned", "max_positions": 64, "norm": "pre", "activation": "gelu", "output_bias": True,
        "encoder_layers": 1,
    },
    "rotary": {
        "positions": "rotary", "key_size": 6, "value_size": 4, "attention_bias": True, "activation": "swiglu",
        "tie_embeddings": "none", "encoder_layers": 1,
    },
}  # fmt: skip


def write_tokenizer(folder: Path, **sizes: int) -> Path:
    """A model of pieces for both languages, or one for each of the given names."""
    folder.mkdir()
    for name, size in (sizes or {"spm": 60}).items():
        settings = {"vocabulary_size": size, "vocabulary_limit": "soft", "byte_fallback": False}
        learned = learn(TEXT * 5, 5 * len(TEXT), Settings.model_validate(settings), 1)
        (folder / f"{name}.model").write_bytes(learned.model)
    return folder


def write_folder(folder: Path, tokenizer: Path, decoding: dict[str, Any] | None = None, **keys: Any) -> Path:
    """A model folder; the weights are random, but so that its outputs differ from source to source."""
    net = tiny.model(Tokenizer(tokenizer).target_size, dtype=torch.float32, heads=2, **keys)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.2).add_(0.1 * torch.randn_like(parameter))
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "model_size": 16, "feedforward_size": 24, "heads": 2}
    settings = {
        "format": FORMAT,
        "languages": {"source": "de", "target": "en"},
        "model": Model(**{**sizes, **keys}).model_dump(mode="json"),
        "decoding": decoding or {},
    }
    folder.mkdir()
    write_model(folder, weights(net), settings, tokenizer, "# a model\n")
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("pieces") / "tokenizer")


@pytest.fixture(scope="module", params=KINDS)
def exported(request: pytest.FixtureRequest, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, of one kind, and `onnx`, what came of it."""
    folder = tmp_path_factory.mktemp("exported")
    origin = write_folder(folder / "model", tokenizer, **KINDS[request.param])
    proof = export.export(origin, folder / "onnx")
    assert proof.record() == read_json(folder / "onnx" / "config.json")["checked"]
    assert proof.outputs == 16 + 5 and proof.pieces > 500 and proof.largest_difference < 1e-4
    return folder


def test_the_folder_is_whole(exported: Path) -> None:
    names = ["README.md", "config.json", "decoder.onnx", "encoder.onnx", "spm.model"]
    assert sorted(path.name for path in (exported / "onnx").iterdir()) == names
    facts = read_json(exported / "onnx" / "config.json")
    for half in ("encoder", "decoder"):
        graph = onnx.load(exported / "onnx" / facts[half]["file"]).graph
        onnx.checker.check_model(exported / "onnx" / facts[half]["file"], full_check=True)
        assert [value.name for value in graph.input] == facts[half]["inputs"]
        assert [value.name for value in graph.output] == facts[half]["outputs"]
        content = (exported / "onnx" / facts[half]["file"]).read_bytes()
        assert b".py" not in content  # where nodes come from: paths of this machine


def test_no_weight_is_written_twice(exported: Path) -> None:
    """Of the cross-attention each half has the part that it uses; tied embeddings are one matrix."""
    net = load(exported / "model", torch.device("cpu")).model

    def count(beginning: str, rest: str = "") -> int:
        named = net.named_parameters()
        return sum(each.numel() for name, each in named if name.startswith(beginning) and rest in name)

    attention, tokens = decoder_layers(net)[0].cross_attention, net.target_embedding.tokens.weight
    projections = count("decoder.", "cross_attention.projection")
    biased = attention.projection.bias is not None
    queries = len(net.decoder) * attention.heads * attention.key_size * (net.model_size + biased)
    table = positions(net) * (attention.key_size if net.positions == "rotary" else net.model_size)
    outputs = sum(each.numel() for each in {tokens, net.output.weight}) + count("output_bias")
    expected = {
        "encoder": count("encoder") + projections - queries + tokens.numel() + table,
        "decoder": count("decoder") - projections + queries + outputs + table,
    }
    for half, numbers in expected.items():
        graph = onnx.load(exported / "onnx" / f"{half}.onnx").graph
        found = sum(int(np.prod(each.dims)) for each in graph.initializer)
        assert numbers <= found < numbers + 100  # and a few that tell shapes


@torch.no_grad()
def test_all_sizes_are_free(exported: Path) -> None:
    """Also none: the first step has no past; and one token or many go in at a time."""
    loaded = load(exported / "model", torch.device("cpu"))
    files = export.Files(exported / "onnx", read_json(exported / "onnx" / "config.json"))
    most = min(positions(loaded.model), 200)
    generator = np.random.default_rng(1)
    for sizes in ([1], [most - 1], [2], [5, 3], [9, 1, 4, 30, 2, 8, 17, 3, 3]):
        sources, targets = (
            [generator.integers(EOS + 1, 40, size).tolist() for size in some] for some in (sizes, sizes[::-1])
        )
        for tokens in (1, 3, most):
            if tokens == 1 and max(sizes) > 60:
                continue  # long enough by the others
            found = export.InBatches(files, len(sizes), tokens).logits(sources, targets)
            for source, target, one in zip(sources, targets, found, strict=True):
                given = torch.tensor([[*source, EOS]]), torch.tensor([[loaded.start, *target]])
                torch.testing.assert_close(one, loaded.model.logits(loaded.model(*given)[0]), atol=1e-4, rtol=0)


@torch.no_grad()
def test_positions_go_as_far_as_is_said_and_no_farther(exported: Path) -> None:
    loaded = load(exported / "model", torch.device("cpu"))
    facts = read_json(exported / "onnx" / "config.json")
    files, most = export.Files(exported / "onnx", facts), facts["positions"]
    assert most == {"learned": 64}.get(loaded.model.positions, 4096)
    state = files.encode([[5]])
    for name in [name for name in state if name.startswith("past")]:
        state[name] = np.zeros((*state[name].shape[:2], most - 1, state[name].shape[3]), np.float32)
    logits, state = files.step(np.array([[5]]), state)
    assert logits.shape == (1, 1, loaded.tokenizer.target_size)
    with pytest.raises(Exception, match=r"out of data bounds|broadcast"):
        files.step(np.array([[5]]), state)
    with pytest.raises(Exception, match=r"out of data bounds|broadcast"):
        files.encode([[5] * most])


def test_the_example_of_the_readme_runs(exported: Path) -> None:
    """Greedy search there, beam search with one beam here."""
    readme = (exported / "onnx" / "README.md").read_text("utf-8")
    assert readme.startswith("# a model\n\n## Use\n")
    (program,) = re.findall("```python\n(.*?)```", readme, re.DOTALL)
    assert "torch" not in program and "transformer_mt" not in program
    lines = ["two dogs bark", "", "der  Mond und\u00a0das Haus", "a", "and a house and a moon at the house"]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=exported / "onnx", input="".join(f"{line}\n" for line in lines),
        capture_output=True, text=True, encoding="utf-8", timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ours = Translator.load(exported / "model", "cpu", settings=Decoding(beam_size=1)).translate(lines)
    assert done.stdout == "".join(f"{each.text}\n" for each in ours)
    assert len(set(done.stdout.split("\n"))) > 3


def test_own_pieces_for_each_language_and_weights_too_large_for_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file of this format holds two gigabytes. And nothing is said of what torch's exporter says."""
    monkeypatch.setattr(export, "LARGEST_FILE", 0)
    pieces = write_tokenizer(tmp_path / "pieces", source=60, target=60)
    keys = {"tie_embeddings": "decoder", "encoder_layers": 1, "decoder_layers": 1}
    origin = write_folder(tmp_path / "model", pieces, {"allow_unknown": True}, **keys)
    export.export(origin, tmp_path / "onnx", ["a dog", "a house and a dog"])
    facts = read_json(tmp_path / "onnx" / "config.json")
    assert facts["tokenizer"] == {"source": "source.model", "target": "target.model"} and facts["forbidden"] == [0, 2]
    assert facts["checked"]["outputs"] == 5 + 5
    for side in ("source", "target"):
        assert (tmp_path / "onnx" / f"{side}.model").read_bytes() == (pieces / f"{side}.model").read_bytes()
    for half in ("encoder", "decoder"):
        assert (tmp_path / "onnx" / f"{half}.onnx.data").stat().st_size > 4096 * 16 * 4
        assert (tmp_path / "onnx" / f"{half}.onnx").stat().st_size < 4096 * 16 * 4
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_a_wrong_number_is_noticed_and_nothing_is_left(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, half: str
) -> None:
    """A matrix is changed by a hundredth between writing and checking."""

    def wrong(folder: Path, *arguments: Any) -> int:
        for name in ("encoder.onnx", "decoder.onnx"):
            shutil.copyfile(exported / "onnx" / name, folder / name)
        found = onnx.load(folder / f"{half}.onnx")
        matrices = [each for each in found.graph.initializer if len(each.dims) == 2]
        matrix = min(matrices, key=lambda each: abs(each.dims[0] - 24))  # the last of a feed-forward layer
        matrix.raw_data = (onnx.numpy_helper.to_array(matrix) * np.float32(1.01)).tobytes()
        onnx.save(found, folder / f"{half}.onnx")
        return 20

    monkeypatch.setattr(export, "write_files", wrong)
    with pytest.raises(RunError, match="the ONNX model does not say what this model says") as failure:
        export.export(exported / "model", tmp_path / "onnx")
    assert failure.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_library_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"{name} cannot be loaded .*pip install 'transformer-mt\[onnx\]'"):
        export.export(tmp_path, tmp_path / "onnx")

"""A model folder written for transformers: every kind of model, its check, its README, and the search there."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from transformer_mt.config import Decoding, Model
from transformer_mt.config import Tokenizer as Settings
from transformer_mt.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, learn
from transformer_mt.decode.translator import Translator
from transformer_mt.errors import RunError, UserError
from transformer_mt.export import fast_tokenizer, huggingface
from transformer_mt.export.huggingface import POSITIONS, export, generation_config
from transformer_mt.export.proof import SENTENCES
from transformer_mt.model.folder import FORMAT, build, load, weights, write_model

transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)  # the models are so small that threads only wait for each other

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": ("bpe", {}),
    "gelu, attention biases": ("unigram", {"activation": "gelu", "attention_bias": True, "start_symbol": "eos"}),
    "swish, output bias, depths apart": (
        "bpe",
        {"activation": "swish", "output_bias": True, "encoder_layers": 1, "decoder_layers": 3, "start_symbol": "pad"},
    ),
    "one layer, one head": ("unigram", {"encoder_layers": 1, "decoder_layers": 1, "heads": 1}),
}


def write_tokenizer(folder: Path, name: str = "spm", **keys: Any) -> Path:
    """197 pieces of a few hundred lines: beginnings of the words of some sentences, in other orders."""
    generator = random.Random(1)
    words = [word for sentence in SENTENCES[:7] for word in sentence.split()]
    lines = [" ".join(word[: generator.randint(1, 9)] for word in generator.choices(words, k=8)) for _ in range(300)]
    settings = {"vocabulary_size": 197, "byte_fallback": False, **keys}
    folder.mkdir(exist_ok=True)
    learned = learn(lines, len(lines), Settings.model_validate(settings), 1)
    (folder / f"{name}.model").write_bytes(learned.model)
    return folder


def write_folder(
    folder: Path,
    tokenizer: Path,
    decoding: dict[str, Any] | None = None,
    end: float = 5.0,
    noise: float = 0.2,
    **keys: Any,
) -> Path:
    """A model folder; weights are random, but no parameter is zero or one, and logits differ from step to step.

    end: the output bias of `</s>`, if there is one.
    """
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "model_size": 16, "feedforward_size": 24, "heads": 2}
    settings = Model.model_validate({**sizes, **keys})
    vocabularies = Tokenizer(tokenizer)
    torch.manual_seed(1)
    net = build(settings, vocabularies.source_size, vocabularies.target_size)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.5).add_(noise * torch.randn_like(parameter))
        if net.output_bias is not None:
            net.output_bias[EOS] = end
    folder.mkdir()
    config = {"format": FORMAT, "languages": {"source": "de", "target": "en"}, "decoding": decoding or {}}
    card = "---\nlanguage:\n- de\n---\n\n# a model\n\nWhat it is.\n\n## Use\n\nAs before.\n\n## More\n\nThat.\n"
    write_model(folder, weights(net), {**config, "model": settings.model_dump(mode="json")}, tokenizer, card)
    return folder


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {name: write_tokenizer(root / name, algorithm=name) for name in ("bpe", "unigram")}


@pytest.fixture
def origin(tmp_path: Path, pieces: dict[str, Path]) -> Path:
    return write_folder(tmp_path / "model", pieces["bpe"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_written_and_read(kind: str, tmp_path: Path, pieces: dict[str, Path]) -> None:
    """The export checks itself, so it is enough that it is there, how near it came, and how large it is."""
    algorithm, keys = KINDS[kind]
    # With more noise some norms divide by nearly nothing, and float32 differs from processor to processor.
    model_folder = write_folder(tmp_path / "model", pieces[algorithm], noise=0.15, **keys)
    proof = export(model_folder, tmp_path / "new" / "marian")
    assert proof.outputs == len(SENTENCES) + 3 and proof.pieces > 300 and proof.largest_difference < 1e-3
    folder = tmp_path / "new" / "marian"
    assert [path.name for path in folder.parent.iterdir()] == ["marian"]
    model, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sizes = len(tokenizer), model.config.vocab_size, *(len(one.weight) for one in (model.lm_head, model.model.shared))
    assert sizes == (197, 197, 197, 197)
    start = {"eos": EOS, "pad": PAD}.get(keys.get("start_symbol", ""), BOS)
    assert model.generation_config.decoder_start_token_id == start
    assert tokenizer.model_max_length == model.config.max_position_embeddings == POSITIONS


def test_the_example_of_the_readme_runs(origin: Path, tmp_path: Path) -> None:
    export(origin, tmp_path / "marian")
    readme = (tmp_path / "marian" / "README.md").read_text("utf-8")
    assert readme.index("# a model") < readme.index("## Use") < readme.index("## More") and "As before" not in readme
    assert "n^0.6, transformer-mt by ((5 + n) / 6)^0.6" in readme and fast_tokenizer.LIMITS in readme
    code = readme.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "example.py").write_text(code)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "example.py")], cwd=tmp_path / "marian", env=environment, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 and "Traceback" not in done.stderr


@torch.no_grad()
def test_beam_search_without_a_penalty_finds_the_same_or_worse(tmp_path: Path, pieces: dict[str, Path]) -> None:
    """Worse where it drops an end of the sentence that is not among its best continuations, as the README says."""
    keys = {"length_penalty": {"form": "none"}, "max_length": {"factor": 0, "extra": 60}}
    origin = write_folder(tmp_path / "model", pieces["bpe"], keys, 7.5, output_bias=True)
    export(origin, tmp_path / "marian")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "marian")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "marian")
    assert (model.generation_config.length_penalty, model.generation_config.early_stopping) == (0.0, "never")
    lines = [*SENTENCES, *(" ".join(sentence.split()[::2]) for sentence in SENTENCES)]
    found = model.generate(**tokenizer(lines, padding=True, return_tensors="pt"), max_length=62).tolist()
    same = ended = 0
    loaded = load(origin, torch.device("cpu"))
    for line, row, ours in zip(lines, found, Translator.load(origin, "cpu").translate(lines), strict=True):
        if EOS not in row:
            continue
        ended += 1
        words = row[1 : row.index(EOS)]
        source = torch.tensor([[*loaded.tokenizer.encode_source([line])[0], EOS]])
        scores = loaded.model.logits(loaded.model(source, torch.tensor([[BOS, *words]]))[0]).log_softmax(-1)
        total = float(scores.gather(1, torch.tensor([*words, EOS])[:, None]).sum())
        assert total <= ours.candidates[0].log_probability + 1e-3
        same += loaded.tokenizer.decode(words) == ours.text
    assert ended >= 10 and same >= 8


def test_settings_of_the_search_are_carried_over() -> None:
    settings = Decoding.model_validate({"beam_size": 5, "min_length": 3, "no_repeat_ngram": 2, "allow_unknown": True})
    found = generation_config(settings, EOS)
    assert (found["num_beams"], found["min_length"], found["no_repeat_ngram_size"]) == (5, 4, 2)
    assert found["suppress_tokens"] == [PAD, BOS] and generation_config(Decoding(), BOS)["suppress_tokens"] == [
        0,
        UNK,
        2,
    ]
    assert (found["decoder_start_token_id"], found["length_penalty"], found["early_stopping"]) == (EOS, 0.6, "never")
    powers = {"none": 0.0, "average": 1.0, "power": 0.3}
    for form, power in powers.items():
        penalty = Decoding.model_validate({"length_penalty": {"form": form, "alpha": 0.3}})
        assert generation_config(penalty, BOS)["length_penalty"] == power
    drawn = generation_config(Decoding.model_validate({"sampling": {"temperature": 0.5, "top_k": 7}}), BOS)
    assert (drawn["do_sample"], drawn["temperature"], drawn["top_k"], drawn["top_p"]) == (True, 0.5, 7, 1.0)
    assert "num_beams" not in drawn


# What is noticed


@pytest.mark.parametrize("name", ["model.shared.weight", "model.encoder.layers.1.fc2.bias", "final_logits_bias"])
def test_a_wrong_weight_is_noticed_and_nothing_is_left(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    right = huggingface.save_tensors

    def wrong(tensors: dict[str, torch.Tensor], path: Path) -> None:
        tensors[name].view(-1)[7] += 0.05
        right(tensors, path)

    monkeypatch.setattr(huggingface, "save_tensors", wrong)
    with pytest.raises(RunError, match="does not say what this model says") as failure:
        export(origin, tmp_path / "marian")
    assert failure.value.exit_code == 1 and [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_missing_weight_is_noticed(origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = huggingface.save_tensors
    name = "model.decoder.layers.0.fc1.weight"
    monkeypatch.setattr(
        huggingface, "save_tensors", lambda all, path: right({n: t for n, t in all.items() if n != name}, path)
    )
    with pytest.raises(RunError, match=f"missing keys: {name}"):
        export(origin, tmp_path / "marian")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda held: held["model"]["merges"].pop(0), "tokenizer.json cuts"),
        (lambda held: held["decoder"]["decoders"].pop(1), "tokenizer.json writes"),
        (lambda held: held.update(post_processor=None), "tokenizer.json cuts"),
        (lambda held: held["model"]["vocab"].update({"more": 197}), "197"),
    ],
    ids=["merge", "decoder", "end", "size"],
)
def test_another_tokenizer_is_noticed(
    origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any, told: str
) -> None:
    right = fast_tokenizer.write_tokenizer

    def wrong(tokenizer: Tokenizer, folder: Path, *rest: Any) -> None:
        right(tokenizer, folder, *rest)
        held = json.loads((folder / "tokenizer.json").read_text("utf-8"))
        change(held)
        (folder / "tokenizer.json").write_text(json.dumps(held), "utf-8")

    monkeypatch.setattr(fast_tokenizer, "write_tokenizer", wrong)
    with pytest.raises(RunError, match=told):
        export(origin, tmp_path / "marian")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


# What is refused


def test_all_reasons_are_told_at_once(tmp_path: Path) -> None:
    pieces = write_tokenizer(tmp_path / "pieces", "source")
    write_tokenizer(pieces, "target", vocabulary_size=150)
    origin = write_folder(tmp_path / "model", pieces, norm="pre", activation="swiglu", tie_embeddings="decoder")
    with pytest.raises(UserError) as failure:
        export(origin, tmp_path / "marian")
    told = [message.partition(":")[0] for message in failure.value.messages]
    assert told[:2] == ["model.norm", "model.activation"]
    assert told[2].startswith("source.model and target.model are two models") and len(told) == 3
    assert not (tmp_path / "marian").exists()


def test_a_missing_library_is_told(origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'transformer-mt\[huggingface\]'"):
        export(origin, tmp_path / "marian")

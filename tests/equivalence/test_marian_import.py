"""Folders as transformers writes Marian models, brought into ours: both say the same, and ours can all it can do."""

import io
import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
import yaml

from tests.running import example, files, inside, write_config
from transformer_mt.atomic import read_json
from transformer_mt.config import MaxLength
from transformer_mt.data.tokenizer import BOS, EOS, PAD, UNK, VOCABULARY, Tokenizer
from transformer_mt.decode.translator import Translator
from transformer_mt.errors import RunError, UserError
from transformer_mt.export import ctranslate2 as to_ctranslate2
from transformer_mt.export import marian
from transformer_mt.export.huggingface import export
from transformer_mt.export.marian_folder import read_marian
from transformer_mt.export.proof import Proof
from transformer_mt.model.folder import load

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
torch.set_num_threads(1)  # the models are so small that threads only wait for each other

WORDS = ["ba", "do", "fi", "gu", "ka", "lo", "mi", "nu", "pa", "so", "ti", "vu"]
SOURCE_TEXT = ["ein Hund bellt", "zwei Hunde und ½ Mond", "Grüße an alle", "das Haus am Mond"]
TARGET_TEXT = ["a dog barks", "two dogs and ½ moon", "regards to all", "the house on the moon"]
LINES = ["ein Hund", "Grüße an alle Hunde am Haus", "zwei 語 Monde", "das", "bellt bellt bellt bellt und Mond ½"]
SIZES: dict[str, Any] = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 64,
    "activation_function": "swish", "scale_embedding": True,
}  # fmt: skip


def learn(lines: Sequence[str], **keys: Any) -> bytes:
    """A SentencePiece model as OPUS-MT has them: unigram, NFKC, SentencePiece's own ids."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(list(lines) * 20), model_writer=model, hard_vocab_limit=False, minloglevel=2,
        **{"vocab_size": 60, **keys},
    )  # fmt: skip
    return model.getvalue()


def pieces_of(*models: Path, more: Sequence[str] = ()) -> list[str]:
    """`</s>` and `<unk>` first, then all pieces that are text."""
    pieces = dict.fromkeys(("</s>", "<unk>", *more))
    for path in models:
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        pieces |= dict.fromkeys(
            processor.id_to_piece(number)
            for number in range(processor.get_piece_size())
            if not (processor.is_control(number) or processor.is_unknown(number))
        )
    return list(pieces)


def write_tokenizer(
    folder: Path, source: Sequence[str], target: Sequence[str], *, apart: bool = False, more: Sequence[str] = (),
    **keys: Any,
) -> list[dict[str, int]]:  # fmt: skip
    """Two models and one vocabulary, or two of one size; `<pad>` is the last piece."""
    folder.mkdir(parents=True)
    models = [folder / "source.spm", folder / "target.spm"]
    for path, lines in zip(models, (source, target), strict=True):
        path.write_bytes(learn(lines, **keys))
    pieces = [pieces_of(path, more=more) for path in models] if apart else [pieces_of(*models, more=more)]
    most = max(map(len, pieces))
    for each in pieces:
        each += [*(f"unused{number}" for number in range(most - len(each))), "<pad>"]
    found = [{piece: number for number, piece in enumerate(each)} for each in pieces]
    for name, vocabulary in zip(("vocab.json", "target_vocab.json"), found, strict=False):
        (folder / name).write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
    settings = {"source_lang": "deu", "target_lang": "eng", "separate_vocabs": apart}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return found


def marian_model(vocabularies: Sequence[Mapping[str, int]], seed: int = 0, **keys: Any) -> Any:
    """A MarianMTModel with random weights, none of which is zero or one."""
    pad = vocabularies[0]["<pad>"]
    config = transformers.MarianConfig(
        vocab_size=len(vocabularies[0]), decoder_vocab_size=len(vocabularies[-1]), pad_token_id=pad, eos_token_id=0,
        decoder_start_token_id=pad, forced_eos_token_id=0, **{**SIZES, **keys},
    )  # fmt: skip
    torch.manual_seed(seed)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3).add_(0.2 * torch.randn_like(parameter))
        model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias))
        for name in ("encoder", "decoder"):  # the tables of sinusoids are no weights
            table = getattr(model.model, name).embed_positions
            table.weight.copy_(table.create_weight())
    return model


def write_folder(folder: Path, *, apart: bool = False, more: Sequence[str] = (), **keys: Any) -> Path:
    """A Marian folder with random weights."""
    vocabularies = write_tokenizer(folder, SOURCE_TEXT, TARGET_TEXT, apart=apart, more=more)
    marian_model(vocabularies, **keys).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that no test changes."""
    return write_folder(tmp_path_factory.mktemp("plain") / "opus-mt-de-en")


@pytest.fixture
def folder(plain: Path, tmp_path: Path) -> Path:
    """One that a test may change."""
    return Path(shutil.copytree(plain, tmp_path / "opus-mt-de-en"))


def import_marian(folder: Path, destination: Path, **keys: Any) -> Proof:
    return marian.import_marian(read_marian(folder), destination, **keys)


def change(path: Path, **keys: Any) -> None:
    """Changes keys of a JSON file; None leaves a key out."""
    content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    content = {key: value for key, value in {**content, **keys}.items() if value is not None}
    path.write_text(json.dumps(content), "utf-8")


def theirs(folder: Path, lines: Sequence[str], **keys: Any) -> list[str]:
    """What transformers makes of lines, as its documentation says, without the unknown piece."""
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    model = transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
    forbidden = [[tokenizer.pad_token_id], [tokenizer.unk_token_id]]
    found = model.generate(
        **tokenizer(list(lines), return_tensors="pt", padding=True), bad_words_ids=forbidden, do_sample=False, **keys
    )
    return [tokenizer.decode(row, skip_special_tokens=True, use_source_tokenizer=False) for row in found]


def ours(folder: Path, lines: Sequence[str], **keys: Any) -> list[str]:
    settings = load(folder, torch.device("cpu")).decoding.model_copy(update=keys)
    return [found.text for found in Translator.load(folder, settings=settings).translate(lines)]


THEIR_GREEDY: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 24, "forced_eos_token_id": None}
OUR_GREEDY: dict[str, Any] = {"beam_size": 1, "max_length": MaxLength(factor=0, extra=24)}
KINDS: dict[str, dict[str, Any]] = {
    "as OPUS-MT": {},
    "depths apart": {"encoder_layers": 1, "decoder_layers": 3, "activation_function": "relu"},
    "tables apart": {"share_encoder_decoder_embeddings": False, "activation_function": "gelu"},
    "vocabularies apart": {"share_encoder_decoder_embeddings": False, "apart": True},
    "nothing tied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
    "output apart": {"tie_word_embeddings": False},
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_they_say_is_what_ours_says(kind: str, tmp_path: Path) -> None:
    folder, said = write_folder(tmp_path / "opus-mt-de-en", **KINDS[kind]), list[str]()
    proof = import_marian(folder, tmp_path / "ours", say=said.append)
    assert proof.outputs > 10 and proof.pieces > 40 and proof.largest_difference < 5e-5
    assert said == []
    found = theirs(folder, LINES, **THEIR_GREEDY)
    assert len(set(found)) > 1
    assert ours(tmp_path / "ours", LINES, **OUR_GREEDY) == found
    if kind == "as OPUS-MT":
        assert {path.name for path in (tmp_path / "ours").iterdir()} == {
            "model.safetensors", "config.yaml", "source.model", "target.model", VOCABULARY, "README.md",
        }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_brought_in_goes_back(kind: str, tmp_path: Path) -> None:
    """To transformers, which then says the same as of the original; and in again, with the same weights."""
    folder = write_folder(tmp_path / "opus-mt-de-en", more=[">>eng<<"], **KINDS[kind])
    import_marian(folder, tmp_path / "ours")
    export(tmp_path / "ours", tmp_path / "back")
    lines = [*LINES, ">>eng<< ein Hund", "  ein\tHund ", "ein </s> <pad> Hund"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back").eval()
    assert type(tokenizer).__name__ == "MarianTokenizer"
    found = model.generate(**tokenizer(lines, return_tensors="pt", padding=True), **THEIR_GREEDY)
    texts = [tokenizer.decode(row, skip_special_tokens=True, use_source_tokenizer=False) for row in found]
    assert texts == ours(tmp_path / "ours", lines, **OUR_GREEDY)
    assert texts[:-1] == theirs(folder, lines[:-1], **THEIR_GREEDY)
    said: list[str] = []
    import_marian(tmp_path / "back", tmp_path / "again", say=said.append)
    assert said == []
    first, second = (load(tmp_path / name, torch.device("cpu")) for name in ("ours", "again"))
    assert first.tokenizer.target_pieces() == second.tokenizer.target_pieces() and first.start == second.start
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name


def test_older_folders_hold_pickled_halves(plain: Path, folder: Path, tmp_path: Path) -> None:
    """pytorch_model.bin has every name of a tied tensor, and the tables of sinusoids."""
    model = transformers.MarianMTModel.from_pretrained(folder).half()
    state = model.state_dict()
    assert {"lm_head.weight", "model.encoder.embed_positions.weight"} <= state.keys()
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    import_marian(folder, tmp_path / "ours")
    weight = load(tmp_path / "ours", torch.device("cpu")).model.encoder[0].feed_forward.inner.weight  # type: ignore[union-attr]
    assert weight.dtype == torch.float32 and torch.equal(weight, weight.half().float())
    (folder / "pytorch_model.bin").write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match=r"pytorch_model\.bin is no readable file"):
        import_marian(folder, tmp_path / "again")


def test_every_piece_keeps_its_rows(plain: Path, tmp_path: Path) -> None:
    import_marian(plain, tmp_path / "ours")
    pieces = Tokenizer(tmp_path / "ours").target_pieces()
    model = load(tmp_path / "ours", torch.device("cpu")).model
    original = transformers.MarianMTModel.from_pretrained(plain)
    vocabulary = json.loads((plain / "vocab.json").read_text("utf-8"))
    assert pieces[:4] == ["<pad>", "<unk>", "<s>", "</s>"] and set(pieces) == {*vocabulary, "<s>"}
    others = sorted(vocabulary, key=vocabulary.__getitem__)
    assert [piece for piece in others if piece in pieces[4:]] == pieces[4:]
    order = [*range(0, 16, 2), *range(1, 16, 2)]
    assert model.output_bias is not None
    for number, piece in enumerate(pieces):
        if number != BOS:
            row = original.model.shared.weight[vocabulary[piece]]
            assert torch.equal(model.output.weight[number][order], row)
            assert model.output_bias[number] == original.final_logits_bias[0, vocabulary[piece]]
    assert not model.output.weight[BOS].any() and model.output.weight[PAD].any()
    logits = model.logits(model(torch.tensor([[5, 6, EOS]]), torch.tensor([[PAD, 7]])))
    assert (logits.double().softmax(-1)[..., BOS] == 0).all() and (logits.softmax(-1)[..., [PAD, UNK]] > 0).all()


def test_a_start_symbol_of_theirs_keeps_its_rows(folder: Path, tmp_path: Path) -> None:
    """A vocabulary that has `<s>` already gets no second one."""
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    vocabulary["<s>"] = vocabulary.pop("▁Hund" if "▁Hund" in vocabulary else next(iter(list(vocabulary)[5:])))
    (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
    change(folder / "config.json", decoder_start_token_id=vocabulary["<s>"])
    change(folder / "generation_config.json", decoder_start_token_id=vocabulary["<s>"])
    import_marian(folder, tmp_path / "ours")
    loaded = load(tmp_path / "ours", torch.device("cpu"))
    assert loaded.start == BOS and loaded.model.output.weight[BOS].any()
    assert loaded.tokenizer.target_size == len(vocabulary)


HARD = [
    "", "ein  Hund", "  ein\tHund ", "Grüße ﬁ ½ ™ …", "語 語語 a", "x" * 40, "<b>OK</b>", "e\u0301in",
    "\u200bein\ufeff Hund", "ein\u00a0Hund", "▁ein", "5 % \u2028 Hund",
]  # fmt: skip


def mapped(folder: Path, ids: Sequence[int], name: str = "vocab.json") -> list[str]:
    pieces = {number: piece for piece, number in json.loads((folder / name).read_text("utf-8")).items()}
    return [pieces[number] for number in ids]


def test_text_is_cut_as_their_tokenizer_cuts_it(plain: Path, tmp_path: Path) -> None:
    import_marian(plain, tmp_path / "ours")
    tokenizer, own = transformers.MarianTokenizer.from_pretrained(plain), Tokenizer(tmp_path / "ours")
    for line in [*HARD, *SOURCE_TEXT, *TARGET_TEXT, *marian.SENTENCES]:
        (ids,) = own.encode_source([line])
        pieces = [own.source_pieces()[number] for number in ids]
        assert [*pieces, "</s>"] == mapped(plain, tokenizer(line)["input_ids"]), line
        (ids,) = own.encode_target([line])
        theirs_ids = tokenizer(text_target=line)["input_ids"]
        assert [*(own.target_pieces()[number] for number in ids), "</s>"] == mapped(plain, theirs_ids), line
        if UNK not in ids:
            assert own.decode(ids) == tokenizer.decode(theirs_ids[:-1], use_source_tokenizer=False), line


def test_the_wanted_language_is_no_text(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "opus-mt-de-mul", more=[">>eng<<", ">>fra<<"])
    import_marian(folder, tmp_path / "ours")
    tokenizer, own = transformers.MarianTokenizer.from_pretrained(folder), Tokenizer(tmp_path / "ours")
    for line in (">>eng<< ein Hund", ">>fra<<ein Hund", ">>fra<<"):
        (ids,) = own.encode_source([line])
        pieces = [own.source_pieces()[number] for number in ids]
        assert pieces[0] == line[:7] and [*pieces, "</s>"] == mapped(folder, tokenizer(line)["input_ids"])
        assert own.source_text_pieces(line) == pieces
    assert own.source_beginning(">>eng<< ein Hund bellt", 99) == ">>eng<< ein Hund bellt"
    for line in (">>xyz<< ein Hund", ">> ein <<", "ein >>eng<< Hund"):
        (ids,) = own.encode_source([line])
        assert not {">>eng<<", ">>fra<<"} & {own.source_pieces()[number] for number in ids}
    lines = [">>eng<< ein Hund", ">>fra<< ein Hund"]
    assert ours(tmp_path / "ours", lines, **OUR_GREEDY) == theirs(folder, lines, **THEIR_GREEDY)
    first, second = ours(tmp_path / "ours", [">>fra<< Ein Hund.", ">>fra<< Der Mond."], **OUR_GREEDY)
    assert first and second  # each sentence of a line asks for it
    together = ours(tmp_path / "ours", [">>fra<< Ein Hund. Der Mond."], split_sentences=True, **OUR_GREEDY)
    assert together == [f"{first} {second}"]


# What is refused


CONFIG: list[tuple[str, Any]] = [
    ("model_type", "bart"), ("normalize_before", True), ("add_final_layer_norm", True), ("normalize_embedding", True),
    ("static_position_embeddings", False), ("scale_embedding", False), ("activation_function", "tanh"),
    ("decoder_attention_heads", 2), ("decoder_ffn_dim", 12), ("encoder_attention_heads", 3), ("d_model", 15),
    ("encoder_layers", "two"), ("vocab_size", 7), ("pad_token_id", 5), ("eos_token_id", 1),
    ("decoder_start_token_id", 9), ("share_encoder_decoder_embeddings", False), ("max_position_embeddings", 0),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), CONFIG, ids=[key for key, _ in CONFIG])
def test_each_key_is_read(folder: Path, tmp_path: Path, key: str, value: Any) -> None:
    change(folder / "config.json", **{key: value})
    with pytest.raises(UserError) as failure:
        import_marian(folder, tmp_path / "ours")
    wanted = "lacks" if key.startswith("share") else key
    assert any(wanted in message for message in failure.value.messages), failure.value.messages
    assert not (tmp_path / "ours").exists()


def test_all_reasons_are_told_at_once(folder: Path, tmp_path: Path) -> None:
    change(folder / "config.json", normalize_before=True, scale_embedding=None)
    (folder / "source.spm").unlink()
    (folder / "target.spm").write_text("a\nb\n")
    (folder / "model.safetensors").unlink()
    (folder / "vocab.json").write_text('{"a": 0, "b": 1, "a": 3, "</s>": 1}')
    with pytest.raises(UserError) as failure:
        import_marian(folder, tmp_path / "ours")
    told = [message.removeprefix(f"{folder}").lstrip("/ ") for message in failure.value.messages]
    assert told == [
        "config.json: normalize_before: found true, wanted false",
        "config.json: scale_embedding: found false, wanted true",
        f"tokenizer model {folder}/source.spm not found",
        "target.spm is a text file, wanted a SentencePiece .model",
        "vocab.json: the piece 'a' is there twice",
        "vocab.json lacks <unk>, <pad>",
        "vocab.json: ids are not 0 to 3, each of them once; see id 1 (and 1 more)",
        "has neither model.safetensors nor pytorch_model.bin",
    ]


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda state: state.pop(name)


TENSORS: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (without("model.encoder.layers.0.fc1.weight"), "lacks model.encoder.layers.0.fc1.weight"),
    (without("model.shared.weight"), "lacks model.shared.weight"),
    (lambda state: state.update(extra=torch.zeros(3)), "has, unknown to a Marian model, extra"),
    (lambda state: state.update({"final_logits_bias": torch.zeros(1, 5)}), "final_logits_bias has shape (1, 5)"),
    (
        lambda state: state.update({"model.decoder.layers.1.fc2.bias": torch.zeros(3)}),
        "model.decoder.layers.1.fc2.bias has shape (3,), wanted (16,)",
    ),
    (
        lambda state: state.update({"lm_head.weight": state["model.shared.weight"] + 1}),
        "lm_head.weight and model.shared.weight differ",
    ),
]


@pytest.mark.parametrize(("damage", "told"), TENSORS, ids=[told for _, told in TENSORS])
def test_weights_are_those_of_the_configuration(
    folder: Path, tmp_path: Path, damage: Callable[[dict[str, Any]], Any], told: str
) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors")
    damage(state)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError) as failure:
        import_marian(folder, tmp_path / "ours")
    assert any(told in message for message in failure.value.messages), failure.value.messages


@pytest.mark.parametrize("part", ["order", "weights", "tokenizer"])
def test_what_differs_gets_no_folder(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    if part == "order":
        right = marian._feed_forward
        monkeypatch.setattr(marian, "_feed_forward", lambda *a: right(*a[:3], torch.arange(16)))
    elif part == "weights":
        monkeypatch.setattr(marian, "load_weights", lambda model, tensors, path: None)
    else:
        monkeypatch.setattr(
            "transformer_mt.data.sides.SideWithVocabulary.encode", lambda self, lines: [[5] for _ in lines]
        )
    with pytest.raises(RunError, match="nothing was kept of it"):
        import_marian(plain, tmp_path / "ours")
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_stays(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    done = inside(tmp_path, "import", plain, "--output", ".", "--sentences", "none")
    assert done.exit_code == 2 and ". is there already" in done.stderr and "--sentences: " in done.stderr
    done = inside(tmp_path, "import", "gone", "--output", "mine", "--sentences", "none")
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 3, done.stderr
    assert (tmp_path / "mine").read_text() == "mine"


# What comes along


def test_search_settings_come_along_or_are_told(folder: Path, tmp_path: Path) -> None:
    """Older folders have them in config.json; those of generation_config.json count more."""
    pad = read_json(folder / "config.json")["pad_token_id"]
    change(folder / "config.json", num_beams=6, max_length=512, no_repeat_ngram_size=3, bad_words_ids=[[pad]])
    keys = {"num_beams": 3, "length_penalty": 0.5, "renormalize_logits": True, "early_stopping": True, "top_k": 50}
    change(folder / "generation_config.json", **keys)
    said: list[str] = []
    import_marian(folder, tmp_path / "ours", say=said.append)
    decoding = load(tmp_path / "ours", torch.device("cpu")).decoding
    assert (decoding.beam_size, decoding.no_repeat_ngram, decoding.max_source_tokens) == (3, 3, 63)
    assert decoding.min_length == 0  # as there
    assert (decoding.length_penalty.form, decoding.length_penalty.alpha) == ("power", 0.5)
    assert (decoding.max_length.factor, decoding.max_length.extra) == (0, 510)  # without the start symbol and </s>
    assert said == [
        f"not carried over from the original's search settings: {text}"
        for text in ("early_stopping true", "renormalize_logits true")
    ]
    card = (tmp_path / "ours/README.md").read_text()
    assert all(text in card for text in said)


def test_the_card_tells_where_it_came_from(plain: Path, tmp_path: Path) -> None:
    cache = tmp_path / "models--Helsinki-NLP--opus-mt-en-no" / "snapshots" / "0123"
    shutil.copytree(plain, cache)
    (cache / "README.md").write_text("---\nlanguage:\n- en\n- no\nlicense: cc-by-4.0\n---\n# theirs\n")
    import_marian(cache, tmp_path / "ours")
    text = (tmp_path / "ours/README.md").read_text()
    header = yaml.safe_load(text.split("---")[1])
    assert header == {"language": ["en", "no"], "pipeline_tag": "translation", "license": "cc-by-4.0"}
    assert "# Helsinki-NLP/opus-mt-en-no" in text and str(tmp_path) not in text


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("opus-mt-tc-big-en-de", {}, ("en", "de")),
        ("opus-mt-tc-big-en-de", {"target": "de_AT"}, ("en", "de_AT")),
        ("opus-mt-en-pt_br", {}, ("en", "pt_br")),
        ("some-model", {}, ("deu", "eng")),  # the tokenizer's
        ("some-model", {"source": "de", "target": "en"}, ("de", "en")),
    ],
)
def test_languages_are_known_or_asked_for(
    plain: Path, tmp_path: Path, name: str, given: dict[str, str], wanted: tuple[str, str]
) -> None:
    folder = read_marian(Path(shutil.copytree(plain, tmp_path / name)))
    found = marian._languages(folder, given.get("source"), given.get("target"))
    assert (found.source, found.target) == wanted


def test_languages_that_nothing_tells(plain: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(plain, tmp_path / "some-model"))
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match="does not tell its languages"):
        import_marian(folder, tmp_path / "ours")
    import_marian(folder, tmp_path / "ours", source="de", target="en")


# A model that has learned something


def task(count: int) -> tuple[list[str], list[str]]:
    """Words of the one language, and the same ones, spelled backwards, in the other."""
    generator = random.Random(1)
    rows = [generator.choices(WORDS, k=generator.randint(1, 4)) for _ in range(count)]
    return [" ".join(row) for row in rows], [" ".join(word[::-1] for word in row) for row in rows]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with opus-mt-de-en, trained by transformers, and `ours`, its import."""
    place = tmp_path_factory.mktemp("learned")
    folder = place / "opus-mt-de-en"
    source, target = task(800)
    vocabularies = write_tokenizer(folder, source[:100], target[:100], vocab_size=40)
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    config = marian_model(vocabularies, **sizes, encoder_ffn_dim=64, decoder_ffn_dim=64).config
    torch.manual_seed(1)
    model = transformers.MarianMTModel(config)
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(250):
        rows = [(32 * step + row) % len(source) for row in range(32)]
        batch = tokenizer(
            [source[r] for r in rows], text_target=[target[r] for r in rows], padding=True, return_tensors="pt"
        )
        batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
    model.generation_config.update(num_beams=2, max_length=20)
    model.save_pretrained(folder)
    import_marian(folder, place / "ours")
    for name, (first, last) in {"train": (0, 60), "valid": (60, 80), "test": (80, 120)}.items():
        for code, lines in (("de", source), ("en", target)):
            (place / f"{name}.{code}").write_text("".join(f"{line}\n" for line in lines[first:last]), "utf-8")
    return place


def test_it_translates_and_is_scored(learned: Path) -> None:
    lines, right = ((learned / f"test.{code}").read_text().splitlines() for code in ("de", "en"))
    done = inside(learned, "translate", "-m", "ours", "-i", "test.de", "-o", "out")
    assert done.exit_code == 0, done.stderr
    found = (learned / "out").read_text().splitlines()
    assert found == theirs(learned / "opus-mt-de-en", lines)
    assert sum(one == other for one, other in zip(found, right, strict=True)) > 0.9 * len(right)


def fine_tuning(learned: Path, folder: Path, **sections: Any) -> None:
    """A configuration that goes on with the imported model."""
    data = {
        name: [{side: str(learned / pair[side]) for side in pair} for pair in files(name)]
        for name in ("train", "valid", "test")
    }
    for pairs in data.values():
        for pair in pairs:
            pair["source"], pair["target"] = pair["source"].replace(".en", ".de"), pair["target"].replace(".de", ".en")
    shape = yaml.safe_load((learned / "ours/config.yaml").read_text())["model"]
    plain = {
        "languages": {"source": "de", "target": "en"},
        "data": {"train": data["train"], "validation": data["valid"], "test": data["test"]},
        "tokenizer": {
            "source_model": str(learned / "ours/source.model"), "target_model": str(learned / "ours/target.model"),
            "vocabulary": str(learned / "ours/vocabulary.json"),
        },
        "model": shape,
        "training": {"initial_model": str(learned / "ours"), "max_steps": 3, "label_smoothing": 0.1},
    }  # fmt: skip
    for name, keys in sections.items():
        plain[name] = {**plain[name], **keys}
    write_config(folder, **plain)


def test_it_is_trained_further(learned: Path, tmp_path: Path) -> None:
    fine_tuning(learned, tmp_path)
    done = inside(tmp_path, "train", "-c", "c.yaml")
    assert done.exit_code == 0, done.stderr
    assert "vocabulary.json: taken from" in done.stderr and "tensors taken whole" in done.stderr
    assert "new" not in [line for line in done.stderr.splitlines() if "initial weights" in line][-1]
    assert Tokenizer(tmp_path / "run/model").target_pieces() == Tokenizer(learned / "ours").target_pieces()
    right = (learned / "test.en").read_text().splitlines()
    found = ours(tmp_path / "run/model", (learned / "test.de").read_text().splitlines())
    assert sum(one == other for one, other in zip(found, right, strict=True)) > 0.8 * len(right)


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"tokenizer": {"vocabulary": None}}, "tokenizer.source_model"),
        ({"tokenizer": {"target_model": None}}, "tokenizer.vocabulary (c.yaml:43): found without source_model"),
        ({"tokenizer": {"vocabulary": "gone.json"}}, "tokenizer.vocabulary: vocabulary"),
        (
            {"tokenizer": {"shared": False}, "model": {"tie_embeddings": "none"}},
            "tokenizer.shared: {place}/ours/vocabulary.json holds one vocabulary for both languages, wanted true",
        ),
        ({"training": {"subword_sampling": 0.1}}, "training.subword_sampling: found 0.1 with tokenizer.vocabulary"),
        (
            {"tokenizer": {"vocabulary": None, "shared": False}, "model": {"tie_embeddings": "none"}},
            "of an imported model? then give {place}/ours/vocabulary.json as tokenizer.vocabulary",
        ),
    ],
)
def test_what_does_not_go_together_is_told(learned: Path, tmp_path: Path, sections: dict[str, Any], told: str) -> None:
    fine_tuning(learned, tmp_path, **sections)
    done = inside(tmp_path, "train", "-c", "c.yaml")
    assert done.exit_code == 2 and told.replace("{place}", str(learned)) in done.stderr, done.stderr
    assert not (tmp_path / "run/checkpoints").exists()


def test_it_is_converted_for_ctranslate2(learned: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    to_ctranslate2.convert(learned / "ours", tmp_path / "converted")
    done = inside(learned, "translate", "-m", "ours", "-i", "test.de", "-o", "other", "--engine", "ctranslate2")
    assert done.exit_code == 0, done.stderr
    assert (learned / "other").read_text().splitlines() == ours(
        learned / "ours", (learned / "test.de").read_text().splitlines()
    )


@pytest.mark.parametrize("form", ["huggingface", "ctranslate2", "onnx"])
def test_each_export_of_it_is_used_as_its_card_says(learned: Path, tmp_path: Path, form: str) -> None:
    done = inside(tmp_path, "export", "-m", learned / "ours", "--format", form, "--output", "out")
    assert done.exit_code == 0, done.stderr
    lines = (learned / "test.de").read_text().splitlines()[:2]
    assert example(tmp_path / "out", lines) == ours(learned / "ours", lines)


@pytest.mark.parametrize("form", ["huggingface", "ctranslate2", "onnx"])
def test_the_card_of_a_model_of_several_languages_asks_for_one(tmp_path: Path, form: str) -> None:
    folder = write_folder(tmp_path / "opus-mt-de-mul", more=[">>eng<<", ">>fra<<"])
    import_marian(folder, tmp_path / "ours")
    done = inside(tmp_path, "export", "-m", "ours", "--format", form, "--output", "out")
    assert done.exit_code == 0, done.stderr
    lines = [">>eng<< ein Hund", ">>eng<< das Haus am Mond"]
    card = (tmp_path / "out/README.md").read_text("utf-8")
    program = card.split("```python\n")[1].split("```")[0]
    given = lines
    asked = {"huggingface": '[">>eng<< The committee', "ctranslate2": 'language = ">>eng<<"', "onnx": "as in `>>eng<<`"}
    assert asked[form] in card
    if form == "ctranslate2":  # by a line of the program
        given = [line.removeprefix(">>eng<< ") for line in lines]
    greedy = program.replace("beam_size=4", "beam_size=1").replace("max_length=limit", "max_new_tokens=24, num_beams=1")
    greedy = greedy.replace("max_decoding_length=256", "max_decoding_length=24")
    greedy = greedy.replace("limits = [", "limits = [24 for row in rows] or [")
    (tmp_path / "out/README.md").write_text(f"```python\n{greedy}```")
    assert example(tmp_path / "out", given) == ours(tmp_path / "ours", lines, **OUR_GREEDY)

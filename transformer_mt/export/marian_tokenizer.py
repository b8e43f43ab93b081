"""The tokenizer of a Marian model: two SentencePiece models that cut text, and a vocabulary that numbers their pieces.

It is what transformers calls MarianTokenizer, and the only one there for a tokenizer with a vocabulary.json.
"""

import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformer_mt.atomic import write_json
from transformer_mt.config import Languages
from transformer_mt.data.clean import normalize
from transformer_mt.data.tokenizer import EOS, PAD, SPECIAL_PIECES, UNK, Tokenizer
from transformer_mt.errors import RunError
from transformer_mt.libraries import optional

LIMITS = (
    "The tokenizer is transformers' MarianTokenizer, which needs `pip install sentencepiece`. It does not clean text "
    "before it is cut (transformer-mt folds white space, applies NFC, leaves unseen characters out): where the two "
    "models do not do that themselves, as OPUS-MT's do, such text is cut another way. It leaves an unknown piece out "
    "of an output."
)
Ids = Callable[[Sequence[int]], Sequence[int]]


def write_tokenizer(tokenizer: Tokenizer, folder: Path, longest: int, languages: Languages) -> None:
    """Writes source.spm, target.spm, vocab.json and, where there are two vocabularies, target_vocab.json.

    longest: most pieces of a line, with `</s>`.
    """
    source, target = tokenizer.source_pieces(), tokenizer.target_pieces()
    for name, file in zip(("source.spm", "target.spm"), tokenizer.files, strict=False):
        shutil.copyfile(file, folder / name)
    vocabularies = {"vocab.json": source} | ({"target_vocab.json": target} if source != target else {})
    for name, pieces in vocabularies.items():
        numbers = {piece: number for number, piece in enumerate(pieces)}
        (folder / name).write_text(json.dumps(numbers, ensure_ascii=False, indent=0) + "\n", "utf-8")
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": languages.source,
        "target_lang": languages.target,
        "separate_vocabs": source != target,
        "pad_token": SPECIAL_PIECES[PAD],
        "unk_token": SPECIAL_PIECES[UNK],
        "eos_token": SPECIAL_PIECES[EOS],
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # a `</s>` that stands in a text is text
    }
    write_json(folder / "tokenizer_config.json", settings)


def load_tokenizer(folder: Path) -> Any:
    """The MarianTokenizer of a folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sacremoses, which it asks for and never uses
        return optional("transformers", "huggingface").AutoTokenizer.from_pretrained(folder, local_files_only=True)


def compare(theirs: Any, ours: Tokenizer, to_theirs: tuple[Ids, Ids], lines: Sequence[str], where: object) -> list[str]:
    """Compares the ids of lines as source and as target; `to_theirs`: of both languages, our ids as theirs.

    Returns a warning where the white space and unseen characters that we leave out make a difference; raises RunError
    for any other one.
    """
    folded: list[str] = []
    for line in lines:
        for key, encode, ids in (
            ("text", ours.encode_source, to_theirs[0]),
            ("text_target", ours.encode_target, to_theirs[1]),
        ):
            wanted = [*ids(encode([line])[0]), theirs.eos_token_id]
            if list(theirs(**{key: line})["input_ids"]) == wanted:
                continue
            if list(theirs(**{key: normalize(line)})["input_ids"]) != wanted:
                raise RunError(f"{where}: MarianTokenizer cuts {line!r} into other pieces; nothing was kept of it")
            folded.append(line)
    if not folded:
        return []
    return [
        f"{len(folded)} sentences get other ids by MarianTokenizer, since here white space is folded, and NFC applied, "
        f"before a text is cut: {folded[0]!r}"
    ]

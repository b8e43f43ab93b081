"""How a Marian folder is to be searched: what of it our search has too, and in sentences what it has not."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from transformer_mt.config import Decoding
from transformer_mt.config.file import problems
from transformer_mt.data.tokenizer import EOS, PAD, SPECIAL_PIECES, UNK
from transformer_mt.errors import UserError
from transformer_mt.export.marian_folder import MarianFolder

CARRIED = {
    "num_beams", "max_length", "max_new_tokens", "length_penalty", "no_repeat_ngram_size", "min_length",
    "min_new_tokens", "bad_words_ids", "suppress_tokens", "forced_eos_token_id",
}  # fmt: skip
NEUTRAL: dict[str, Any] = {
    "do_sample": False, "early_stopping": False, "num_return_sequences": 1, "temperature": 1.0, "top_k": 50,
    "top_p": 1.0, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0, "diversity_penalty": 0.0,
    "num_beam_groups": 1, "renormalize_logits": False, "remove_invalid_values": False, "forced_bos_token_id": None,
    "begin_suppress_tokens": None, "exponential_decay_length_penalty": None, "penalty_alpha": None,
    "guidance_scale": None, "sequence_bias": None, "max_time": None, "force_words_ids": None, "constraints": None,
}  # fmt: skip
"""Settings that our search has no counterpart of, with the values at which they do nothing."""
NO_SEARCH = {
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "use_cache", "output_attentions",
    "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate", "return_dict",
    "transformers_version", "_from_model_config", "_commit_hash",
}  # fmt: skip


def search_settings(folder: MarianFolder) -> tuple[Decoding, list[str]]:
    """Our settings, and sentences about what was not carried over.

    Older folders have the settings in config.json; generation_config.json counts more.
    """
    old = {key: folder.config[key] for key in (*CARRIED, *NEUTRAL) if folder.config.get(key) is not None}
    theirs = old | {key: value for key, value in folder.generation.items() if value is not None}
    return _ours(folder, theirs), [
        f"not carried over from the original's search settings: {text}" for text in _left(folder, theirs)
    ]


def _ours(folder: MarianFolder, theirs: Mapping[str, Any]) -> Decoding:
    settings: dict[str, Any] = {"max_source_tokens": max(1, folder.config["max_position_embeddings"] - 1)}
    # There the length of a hypothesis counts `</s>`, and not the start symbol, as here.
    settings["length_penalty"] = {"form": "power", "alpha": theirs.get("length_penalty", 1.0)}
    for key, name in (("num_beams", "beam_size"), ("no_repeat_ngram_size", "no_repeat_ngram")):
        if key in theirs:
            settings[name] = theirs[key]
    try:
        most = theirs.get("max_new_tokens") or (theirs["max_length"] - 1 if "max_length" in theirs else None)
        if most is not None:  # all pieces of an output, and `</s>` if it has to come
            room = most - (theirs.get("forced_eos_token_id") is not None)
            settings["max_length"] = {"factor": 0.0, "extra": max(1, room)}
        least = theirs.get("min_new_tokens") or theirs.get("min_length", 0) - 1  # the latter counts the start symbol
        return Decoding.model_validate({**settings, "min_length": max(0, least)})
    except ValidationError as error:
        raise UserError(*problems(error.errors(), settings, f"search settings of {folder.path}")) from None
    except TypeError:
        raise UserError(f"{folder.path}: the longest and the shortest length of an output are no numbers") from None


def _left(folder: MarianFolder, theirs: Mapping[str, Any]) -> Iterator[str]:
    """Each setting that has an effect there and none here."""
    for key, value in sorted(theirs.items()):
        if (key, value) == ("early_stopping", "never"):  # as our search does anyway
            continue
        if key not in CARRIED and key not in NO_SEARCH and value != NEUTRAL.get(key):
            yield f"{key} {json.dumps(value)}"
    pieces = folder.vocabularies[-1]
    never = {pieces.index(SPECIAL_PIECES[special]) for special in (PAD, UNK)}
    never |= {number for number, piece in enumerate(pieces) if piece == "<s>"}
    words = theirs.get("bad_words_ids") or []
    if words := [word for word in words if not (isinstance(word, list) and len(word) == 1 and word[0] in never)]:
        yield f"bad_words_ids {json.dumps(words)}"
    if tokens := [token for token in theirs.get("suppress_tokens") or [] if token not in never]:
        yield f"suppress_tokens {json.dumps(tokens)}"
    forced = theirs.get("forced_eos_token_id")
    if forced is not None and forced != pieces.index(SPECIAL_PIECES[EOS]):
        yield f"forced_eos_token_id {forced}"

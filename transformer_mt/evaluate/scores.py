"""Scores of a translation, each with the signature without which its number means nothing.

Two families, never to be mixed in one column: sacreBLEU's metrics on detokenised text (`score`), and the
tokenised BLEU of "Attention Is All You Need" (`paper_bleu`), which is higher by about one point for
English-German and about two for English-French.
"""

import hashlib
import importlib
import importlib.util
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from transformer_mt.errors import UserError

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

logger = logging.getLogger(__name__)

METRICS: Final[Mapping[str, bool]] = MappingProxyType({"bleu": False, "chrf": False, "ter": True})
"""The metrics a config may name, each with whether lower is better."""

_LOWER_IS_BETTER: Final[Mapping[str, bool]] = MappingProxyType({**METRICS, "loss": True, "nll": True, "ppl": True})

_PAPER_TARGETS: Final = ("de", "fr")

_TOKENISED_LINES_TO_WARN: Final = 100
"""sacreBLEU's own threshold: so many hypotheses ending in " ." are no accident."""


@dataclass(frozen=True)
class Score:
    """One number with what is needed to compare it.

    `name` is "BLEU", "chrF2", "TER" or "paper BLEU". `value` is in percent: 0 to 100, TER may exceed 100.
    `signature` is never empty. `details` holds, for the two BLEUs, precision_1 to precision_4 (percent),
    brevity_penalty (0 to 1), hypothesis_length and reference_length (tokens) and length_ratio; else nothing.
    """

    name: str
    value: float
    signature: str
    lower_is_better: bool
    details: dict[str, float] = field(default_factory=dict)


def is_better(metric: str, value: float, best: float | None) -> bool:
    """Tells whether `value` improves on `best` (None: there is none yet) in the metric's own direction.

    Knows the names of `METRICS` and loss, nll, ppl; any other raises UserError. A tie is no improvement, and
    neither is NaN, which would otherwise stay the best for ever.
    """
    lower_is_better = _direction(metric, _LOWER_IS_BETTER)
    if math.isnan(value):
        return False
    return best is None or (value < best if lower_is_better else value > best)


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[str],
    source_language: str,
    target_language: str,
) -> list[Score]:
    """Scores detokenised hypotheses with sacreBLEU: the same numbers and signatures as its command line.

    `references` holds one or more lists as long as `hypotheses`; they reach the metric as they are, blank
    lines included. BLEU's tokeniser follows `target_language` (zh, ja-mecab, ko-mecab, else 13a); chrF and TER
    keep sacreBLEU's defaults, under which TER takes an unsegmented Chinese or Japanese sentence for one word.
    `source_language` changes nothing here: sacreBLEU's metrics look at the target alone.

    Raises UserError: unknown metric, no segments, no references, unequal counts, tokeniser not installed.
    """
    directions = [_direction(metric, METRICS) for metric in metrics]
    _check_counts(hypotheses, references)
    if "bleu" in metrics:
        _warn_if_tokenised(hypotheses)
    return [
        _corpus_score(_sacrebleu_metric(metric, _base_language(target_language)), hypotheses, references, direction)
        for metric, direction in zip(metrics, directions, strict=True)
    ]


def paper_bleu_available() -> bool:
    """Tells whether sacremoses, the extra that `paper_bleu` needs, is installed."""
    return importlib.util.find_spec("sacremoses") is not None


def has_paper_bleu(source_language: str, target_language: str) -> bool:
    """Tells whether `paper_bleu` is defined for a pair of languages: English to German or French."""
    return _base_language(source_language) == "en" and _base_language(target_language) in _PAPER_TARGETS


def paper_bleu(
    hypotheses: Sequence[str], reference: Sequence[str], *, source_language: str, target_language: str
) -> Score | None:
    """Scores as the paper did for English-German and English-French; None for any other pair.

    Takes detokenised text on both sides. A port of the authors' get_ende_bleu.sh: the hypotheses go through
    Moses' replace-unicode-punctuation and its tokenizer (default escaping), the reference through the
    tokenizer alone (the script takes a file tokenised beforehand); for German, compounds are split on both
    sides; then multi-bleu: case-sensitive BLEU-4 over the corpus, without smoothing. How the authors
    tokenised the French is not published; the same steps without the compounds are the usual reading.

    sacremoses against Moses (0.2.0, compared on 25,000 German and French lines): the punctuation step is the
    same but for white space other than blanks after a full-width full stop, which it drops too. The
    tokenizer equals Moses of 2017, the paper's year; Moses since November 2018 also splits the full stop off
    an abbreviation that ends the line ("usw."). sacremoses sets every Chinese and Japanese character apart
    and leaves Indic viramas attached, Moses does neither.

    Raises UserError: sacremoses not installed, no segments, unequal counts.
    """
    target = _base_language(target_language)
    if not has_paper_bleu(source_language, target_language):
        return None
    _check_counts(hypotheses, [reference])
    hypothesis_tokens, reference_tokens = _paper_tokens(hypotheses, reference, target)

    from sacrebleu.metrics.bleu import BLEU

    # force: that the text is tokenised is the point here, so sacreBLEU's warning about it is switched off
    multi_bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    result = multi_bleu.corpus_score(hypothesis_tokens, [reference_tokens])
    signature = _paper_signature(str(multi_bleu.get_signature()), target)
    return Score("paper BLEU", _percent(result.score), signature, False, _bleu_details(result))


def split_compounds(line: str) -> str:
    """Splits hyphenated words of a tokenised line: `Nord-Süd` becomes `Nord ##AT##-##AT## Süd`.

    The step `s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g` of get_ende_bleu.sh. A replacement consumes the byte on
    either side of the hyphen, so in `x-y-z` only the first hyphen is split.
    """
    # Bytes, since perl ran without UTF-8 there: a no-break space is no blank to it, and a one-letter middle
    # of several bytes (`x-ü-z`) is split on both sides. Cuts fall beside a hyphen, never inside a letter.
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", line.encode()).decode()


def corpus_digest(lines: Iterable[str]) -> str:
    """Returns the SHA-256 (hexadecimal) of the lines as a UTF-8 file, each ended by LF: what `sha256sum` prints."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def empty_lines(lines: Iterable[str]) -> int:
    """Counts the lines that hold nothing but white space."""
    return sum(not line.strip() for line in lines)


def _direction(metric: str, known: Mapping[str, bool]) -> bool:
    if metric not in known:
        raise UserError(f"unknown metric {metric!r}: known are {', '.join(known)}")
    return known[metric]


def _base_language(language: str) -> str:
    """Returns the language without script or country: zh for `zh-Hans`, de for `de_AT`."""
    return re.split("[-_]", language, maxsplit=1)[0].lower()


def _check_counts(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not hypotheses:
        raise UserError("nothing to score: there are 0 hypotheses")
    if not references:
        raise UserError("nothing to score against: there are no references")
    wrong = [
        f"{len(hypotheses)} hypotheses but {len(reference)} lines in reference {number}"
        for number, reference in enumerate(references, 1)
        if len(reference) != len(hypotheses)
    ]
    if wrong:
        raise UserError(*wrong)


def _warn_if_tokenised(hypotheses: Sequence[str]) -> None:
    """Warns once, in place of sacreBLEU's three lines, which advise a parameter that nobody can reach here."""
    tokenised = sum(line.endswith(" .") for line in hypotheses)
    if tokenised >= _TOKENISED_LINES_TO_WARN:
        logger.warning(
            "%d hypotheses end in a separate full stop (' .'): BLEU expects detokenised text and is not comparable",
            tokenised,
        )


def _sacrebleu_metric(name: str, target_language: str) -> "Metric":
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    if name == "bleu":
        return _sacrebleu_bleu(target_language)
    return CHRF() if name == "chrf" else TER()


def _sacrebleu_bleu(target_language: str) -> "Metric":
    from sacrebleu.metrics.bleu import BLEU

    try:
        return BLEU(trg_lang=target_language, force=True)  # force: `_warn_if_tokenised` has spoken
    except RuntimeError as failure:  # how sacreBLEU reports a missing segmenter
        raise UserError(
            f"BLEU for target language {target_language!r} needs a segmenter that is not installed: "
            f"pip install 'sacrebleu[{target_language}]'"
        ) from failure


def _corpus_score(
    metric: "Metric", hypotheses: Sequence[str], references: Sequence[Sequence[str]], lower_is_better: bool
) -> Score:
    result = metric.corpus_score(hypotheses, references)
    value = result.score if lower_is_better else _percent(result.score)
    details = _bleu_details(result) if result.name == "BLEU" else {}
    return Score(result.name, value, str(metric.get_signature()), lower_is_better, details)


def _percent(value: float) -> float:
    """Takes off the rounding error by which a perfect score lies above 100."""
    return min(value, 100.0)


def _bleu_details(result: Any) -> dict[str, float]:
    precisions = {f"precision_{order}": precision for order, precision in enumerate(result.precisions, 1)}
    return {
        **precisions,
        "brevity_penalty": result.bp,
        "hypothesis_length": result.sys_len,
        "reference_length": result.ref_len,
        "length_ratio": result.ratio,
    }


def _import_sacremoses() -> Any:
    try:
        return importlib.import_module("sacremoses")  # optional and without types, hence not an import statement
    except ImportError as failure:
        raise UserError(
            "the paper's BLEU needs sacremoses, which is not installed: pip install 'transformer-mt[moses]'"
        ) from failure


def _paper_tokens(hypotheses: Sequence[str], reference: Sequence[str], target: str) -> tuple[list[str], list[str]]:
    sacremoses = _import_sacremoses()
    replace_punctuation = sacremoses.MosesPunctNormalizer(lang=target).replace_unicode_punct
    moses = sacremoses.MosesTokenizer(lang=target)

    def tokens(line: str) -> str:
        tokenised: str = moses.tokenize(line, aggressive_dash_splits=False, escape=True, return_str=True)
        return split_compounds(tokenised) if target == "de" else tokenised

    return [tokens(replace_punctuation(line)) for line in hypotheses], [tokens(line) for line in reference]


def _paper_signature(sacrebleu_signature: str, target: str) -> str:
    """Puts what was done before sacreBLEU saw the text where its signature says that it tokenised nothing."""
    compounds = "atat" if target == "de" else "no"
    steps = (
        f"tok:moses-{target}|sacremoses:{_import_sacremoses().__version__}"
        f"|punct:unicode-replaced-in-hypothesis|compounds:{compounds}"
    )
    return sacrebleu_signature.replace("tok:none", steps)

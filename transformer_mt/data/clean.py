"""What happens to text before a tokenizer sees it, and which training pairs are left out."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b

from transformer_mt.config import Cleaning
from transformer_mt.data.sources import Pair

# Control characters that are not white space, and characters that show nothing: soft hyphen, zero-width space,
# direction marks, word joiner and its kin, byte order mark.
UNSEEN = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]+")
# Joiners shape emoji and the scripts of Persia and India; after a Latin letter (or its accents), white space or
# nothing they are debris of copying.
_LATIN = (
    "A-Za-z\xaa\xba\xc0-\xd6\xd8-\xf6\xf8-\u02af\u0300-\u036f\u1e00-\u1eff\u2c60-\u2c7f\ua722-\ua7ff"
    "\uff21-\uff3a\uff41-\uff5a"
)
STRAY_JOINERS = re.compile(rf"(?:^|(?<=[{_LATIN}\s]))[\u200c\u200d]+")

_RATIO_FROM_WORDS = 10  # shorter pairs vary too much in length for a ratio to mean anything
_HASH_BYTES = 8


def normalize(text: str) -> str:
    """NFC, with unseen characters dropped and every run of white space one blank; none at the ends.

    White space is what Unicode calls so: tab, no-break and ideographic spaces, U+2028 and the like. The same
    for training and for translation. Applying it twice changes nothing.
    """
    # isprintable() is false for every control, format and space character but the plain blank.
    if text.isprintable() and "  " not in text and text[:1] != " " and text[-1:] != " ":
        return unicodedata.normalize("NFC", text)
    before = None
    while text != before:  # a dropped character may bring together what then composes
        before = text
        text = unicodedata.normalize("NFC", UNSEEN.sub("", text))
        text = " ".join(STRAY_JOINERS.sub("", text).split())
    return text


def reason_to_drop(source: str, target: str, cleaning: Cleaning) -> str | None:
    """Why a pair of normalised texts cannot be trained on, or None; the reasons are the keys of the report."""
    if not source:
        return "empty_source"
    if not target:
        return "empty_target"
    limit = cleaning.max_characters
    if limit is not None and max(len(source), len(target)) > limit:
        return "too_many_characters"
    shorter, longer = sorted((source.count(" ") + 1, target.count(" ") + 1))
    if cleaning.max_words is not None and longer > cleaning.max_words:
        return "too_many_words"
    ratio = cleaning.max_length_ratio
    if ratio is not None and longer >= _RATIO_FROM_WORDS and longer > ratio * shorter:
        return "length_ratio"
    return None


class Cleaner:
    """Normalises pairs and drops those that do not serve training, pair by pair, never one side alone.

    `counts` holds "read", "kept" and one number for each reason. One cleaner serves all training sources of a
    run, so that a pair given twice in different sources is kept once. It remembers about 70 bytes a pair when
    it looks for duplicates.
    """

    def __init__(self, cleaning: Cleaning, held_out_sources: Iterable[str]) -> None:
        """`held_out_sources`: raw source texts of the validation and test data."""
        self.counts: Counter[str] = Counter()
        self._cleaning = cleaning
        held_out = held_out_sources if cleaning.remove_test_overlap else ()
        self._held_out = frozenset(map(normalize, held_out))
        self._seen: set[int] = set()
        self._identical = 0

    def clean(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        """The pairs that stay, normalised, with the line numbers they came with."""
        counts = self.counts
        for raw_source, raw_target, line in pairs:
            source, target = normalize(raw_source), normalize(raw_target)
            counts["read"] += 1
            self._identical += source == target != ""
            reason = reason_to_drop(source, target, self._cleaning) or self._reason_to_drop_here(source, target)
            if reason is None:
                counts["kept"] += 1
                yield Pair(source, target, line)
            else:
                counts[reason] += 1

    def _reason_to_drop_here(self, source: str, target: str) -> str | None:
        """The reasons that depend on other pairs."""
        if source in self._held_out:
            return "test_overlap"
        if self._cleaning.deduplicate:
            # A digest, not hash(): that one differs from process to process.
            digest = blake2b(f"{source}\0{target}".encode(errors="surrogatepass"), digest_size=_HASH_BYTES).digest()
            key = int.from_bytes(digest, "big")
            if key in self._seen:
                return "duplicate"
            self._seen.add(key)
        return None

    def warnings(self) -> list[str]:
        """Sentences about what looks wrong in all that was read so far; [] when nothing does."""
        counts, sentences = self.counts, []
        filled = counts["read"] - counts["empty_source"] - counts["empty_target"]
        if self._identical > filled / 2:
            share = "all" if self._identical == filled else f"{self._identical} of"
            sentences.append(f"{share} {filled} pairs are identical on both sides: very likely the wrong file")
        candidates = counts["kept"] + counts["duplicate"]
        if counts["duplicate"] > candidates / 2:
            sentences.append(f"only {counts['kept']} distinct pairs of {candidates}: the rest repeats them")
        return sentences

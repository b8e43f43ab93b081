"""BPE-dropout (Provilkov, Emelianenko, Voita 2020, "BPE-Dropout: Simple and Effective Subword Regularization").

Text is cut as a SentencePiece BPE model cuts it: characters are merged pair by pair, always the pair whose piece has
the highest score, the leftmost of equal ones, until no pair makes a piece. Each possible merge is left out with some
probability, once and for all. SentencePiece can do that too, but its random numbers differ from process to process;
here a merge is left out by a hash of where it is, so that the outcome is the same everywhere.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from transformer_mt.data.batching import Integers, mix
from transformer_mt.data.model_file import NORMAL, UNUSED, USER_DEFINED, read_model
from transformer_mt.data.store import gathered
from transformer_mt.errors import UserError

BLANK = "\u2581"
"""What SentencePiece writes for a blank."""
NO_RANK = np.iinfo(np.int32).max
KEPT_ENTRIES = 1 << 25
"""Entries of the table of words that are kept for the next call, four bytes each."""
EXACT_SIZES = 16
"""Words of up to so many symbols are merged with words of their size alone, longer ones with some that are longer."""
_NO_TEXT = "\ud800"
"""A character that no text has, since UTF-8 cannot write it."""


class _Numbers(dict[str, int]):
    """Words and the numbers they were given, in the order in which they were first asked for."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


class BpeDropout:
    """Cuts text by one BPE model, leaving out merges; `segment` gives ids that depend on its arguments alone.

    A word here is a stretch of normalised text from one blank to the next, where no piece has a blank but at its
    start, else the whole line. What its stretches of symbols are as pieces is looked up once and kept in a table,
    since it is the stretch that says which piece a merge makes, not what was merged.
    """

    def __init__(self, model: sentencepiece.SentencePieceProcessor) -> None:
        content = read_model(model.serialized_model_proto())
        if content.algorithm != "BPE" or UNUSED in content.types:
            unused = " with unused pieces" if content.algorithm == "BPE" else ""
            found = f"a {content.algorithm} model{unused}"
            raise UserError(f"training.subword_sampling: found {found}, wanted a BPE model without unused pieces, or 0")
        pieces, types = content.pieces, content.types
        self._model, self._size, self._unknown = model, len(pieces), model.unk_id()
        self._bytes = np.asarray([model.piece_to_id(f"<0x{byte:02X}>") for byte in range(256)], np.int32)
        self._spells = content.byte_fallback
        self._ids = {piece: number for number, piece in enumerate(pieces) if types[number] in (NORMAL, USER_DEFINED)}
        self._frozen = {piece for piece, number in self._ids.items() if types[number] == USER_DEFINED}
        longest_first = sorted(map(re.escape, self._frozen), key=len, reverse=True)
        self._symbols = re.compile("|".join([*longest_first, "."]), re.DOTALL)
        self.longest = max(map(len, [*self._ids, BLANK]))
        """Characters of the longest piece."""
        self._by_word = not any(BLANK in piece[1:] for piece in self._ids)
        self._pieces = _Prefixes({piece: number for piece, number in self._ids.items() if piece not in self._frozen})
        # Equal scores are equal ranks; the last entry is that of -1, no piece at all.
        ranks = np.unique(-np.asarray(content.scores), return_inverse=True)[1]
        self._ranks: NDArray[np.int32] = np.append(ranks, NO_RANK).astype(np.int32)
        self._forget()

    def segment(
        self, lines: Sequence[str], keys: NDArray[np.uint64], rate: float
    ) -> tuple[NDArray[np.int32], Integers]:
        """Ids of N lines, end to end, and how many each has (N,).

        keys (N,): a line's random numbers are hashed from its key. rate: the probability, below 1, that a merge is
        left out; at 0 the ids are those of the model itself.
        """
        words, counts = self._numbered(self._model.normalize(list(lines)))
        first = np.cumsum(counts) - counts
        places = np.arange(len(words)) - np.repeat(first, counts)
        ids, sizes = self._merged(words, mix(np.repeat(keys, counts), places.astype(np.uint64)), rate)
        ends = np.append(0, np.cumsum(sizes))
        lengths = ends[first + counts] - ends[first]
        if self._table.size > KEPT_ENTRIES:
            self._forget()
        return self._without_unknown(ids, lengths)

    def _forget(self) -> None:
        """Empties the table, whose entry 0 stands for every stretch that is longer than any piece."""
        self._words = _Numbers()
        self._table = np.full(1, -1, np.int32)
        self._starts: Integers = np.zeros(0, np.int64)
        self._sizes: Integers = np.zeros(0, np.int64)

    def _numbered(self, texts: list[str]) -> tuple[Integers, Integers]:
        """The words of normalised lines by their numbers in the table, end to end, and how many each line has."""
        if self._by_word:
            counts = [text.count(BLANK) + (text[:1] not in ("", BLANK)) for text in texts]
            words = _NO_TEXT.join(texts).replace(BLANK, _NO_TEXT + BLANK).split(_NO_TEXT)
        else:
            counts, words = [len(text) > 0 for text in texts], texts
        numbers = np.fromiter(map(self._words.__getitem__, filter(None, words)), np.int64)
        self._learn_words()
        return numbers, np.asarray(counts, np.int64)

    def _learn_words(self) -> None:
        """Fills the table for words that are new: for a word of n symbols n rows of min(n, longest) entries.

        Entry k of row i is the piece that symbols i to i + k make, or -1.
        """
        words = list(islice(self._words, len(self._sizes), None))
        text, singles, sizes = self._read(words)
        widths = np.minimum(sizes, self.longest)
        starts = np.cumsum(sizes * widths) - sizes * widths
        first, place = np.cumsum(sizes) - sizes, np.arange(sizes.sum())
        rows = np.repeat(starts, sizes) + (place - np.repeat(first, sizes)) * np.repeat(widths, sizes)
        ends = np.repeat(first + sizes, sizes)
        entries = np.full(int((sizes * widths).sum()), -1, np.int32)
        entries[rows] = singles
        node = self._pieces.step(np.zeros(len(text), np.int64), text)
        for length in range(1, self.longest):
            going = (node >= 0) & (place + length < ends)
            place, rows, ends = place[going], rows[going], ends[going]
            node = self._pieces.step(node[going], text[place + length])
            entries[rows + length] = self._pieces.ids[node]
        self._starts = np.append(self._starts, len(self._table) + starts)
        self._sizes = np.append(self._sizes, sizes)
        self._table = np.append(self._table, entries)

    def _read(self, words: list[str]) -> tuple[Integers, NDArray[np.int32], Integers]:
        """Code points and ids of the symbols of words, end to end, and how many each word has.

        The id of a character that is to be written as bytes is beyond the vocabulary.
        """
        parts: Sequence[Sequence[str]] = [self._symbols.findall(word) for word in words] if self._frozen else words
        sizes = np.fromiter(map(len, parts), np.int64, len(words))
        symbols = list(chain.from_iterable(parts))
        known = {symbol: self._single(symbol) for symbol in set(symbols)}
        singles = np.fromiter(map(known.__getitem__, symbols), np.int32, len(symbols))
        # No piece has this character, so a symbol of the user's is in no merge.
        merged = [_NO_TEXT if symbol in self._frozen else symbol for symbol in symbols] if self._frozen else words
        codes = np.frombuffer("".join(merged).encode("utf-32-le", "surrogatepass"), "<u4")
        return codes.astype(np.int64), singles, sizes

    def _single(self, symbol: str) -> int:
        """A symbol that is the name of a control piece is unknown: text never becomes one."""
        if symbol in self._ids:
            return self._ids[symbol]
        return self._size + ord(symbol) if self._spells else self._unknown

    def _merged(self, words: Integers, keys: NDArray[np.uint64], rate: float) -> tuple[NDArray[np.int32], Integers]:
        """Ids of words (W,), end to end, and how many each has (W,). keys (W,): of their random numbers."""
        sizes = self._sizes[words]
        order = np.argsort(sizes, kind="stable")
        ids, counts = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
        merging = _Merging(self._table, self._ranks, self.longest, rate)
        for group in _groups(order, sizes):
            found, how_many = merging.run(self._starts[words[group]], sizes[group], keys[group])
            ids.append(found)
            counts.append(how_many)
        lengths, first = np.empty(len(words), np.int64), np.empty(len(words), np.int64)
        sorted_counts = np.concatenate(counts)
        lengths[order] = sorted_counts
        first[order] = np.cumsum(sorted_counts) - sorted_counts
        return gathered(np.concatenate(ids), first, lengths), lengths

    def _without_unknown(self, ids: NDArray[np.int32], lengths: Integers) -> tuple[NDArray[np.int32], Integers]:
        """Lines as they are written: unknown characters as their bytes, or those next to each other as one piece."""
        unknown = ids >= self._size if self._spells else ids == self._unknown
        if not unknown.any():
            return ids, lengths
        repeats = np.ones(len(ids), np.int64)
        ends = np.cumsum(lengths)
        if self._spells:
            characters = ids[unknown] - self._size
            repeats[unknown] += np.searchsorted([0x80, 0x800, 0x10000], characters, "right")  # bytes of UTF-8
            spelled = "".join(map(chr, characters.tolist())).encode()
        else:
            starts = (ends - lengths)[lengths > 0]
            follows = np.append(False, unknown[:-1])
            follows[starts] = False
            repeats[unknown & follows] = 0
        ids, unknown = np.repeat(ids, repeats), np.repeat(unknown, repeats)
        if self._spells:
            ids[unknown] = self._bytes[np.frombuffer(spelled, np.uint8)]
        return ids, np.diff(np.append(0, np.cumsum(repeats))[np.append(0, ends)])


class _Prefixes:
    """All beginnings of pieces as the nodes of a tree whose root, 0, is the empty one."""

    def __init__(self, pieces: dict[str, int]) -> None:
        nodes = {"": 0}
        for piece in pieces:
            for end in range(1, len(piece) + 1):
                nodes.setdefault(piece[:end], len(nodes))
        edges = np.asarray([nodes[text[:-1]] << 21 | ord(text[-1]) for text in nodes if text], np.int64)
        order = np.argsort(edges)
        self._edges, self._children = edges[order], order + 1
        self.ids = np.asarray([*(pieces.get(text, -1) for text in nodes), -1], np.int32)
        """The piece at each node, or -1; the last entry is that of -1, no node."""

    def step(self, nodes: Integers, characters: Integers) -> Integers:
        """The nodes one character further, or -1; nodes (N,), code points (N,)."""
        wanted = nodes << 21 | characters
        found = np.searchsorted(self._edges, wanted)
        found[found == len(self._edges)] = 0
        children: Integers = np.where(self._edges[found] == wanted, self._children[found], -1)
        return children


class _Merging:
    """Merges the symbols of words of similar size, one merge of each word a round.

    A symbol, merged or not, is told by the place where it begins, counted in the word's unmerged symbols. Arrays have
    a row of `stride` places for each word, one more than it has symbols: `_next` says where the symbol after it begins,
    `_before` where the one before, and `candidates` the rank of merging it with the next one. A symbol "before the
    first", -1, is the last place of the row above, where all ranks that are written are NO_RANK.
    """

    def __init__(self, table: NDArray[np.int32], ranks: NDArray[np.int32], longest: int, rate: float) -> None:
        self._table, self._ranks, self._longest = table, ranks, longest
        self._limit = np.uint64(int(rate * (1 << 64)))

    def run(self, starts: Integers, sizes: Integers, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int32], Integers]:
        """Ids of the words, end to end, and how many each has. starts (W,): where their rows begin in the table."""
        stride = int(sizes.max()) + 1
        widths = np.minimum(sizes, self._longest)
        self._words = np.stack([starts - 1, widths, keys.view(np.int64)])
        places = np.arange(stride)
        begins = places < sizes[:, None]
        self._next = np.tile(places + 1, len(sizes))
        self._before = np.tile(places - 1, len(sizes))
        candidates = np.full(begins.shape, NO_RANK, np.int32)
        first = np.where(begins[:, 1:], places[:-1], -1)
        candidates[:, :-1] = self._rank(self._words[:, :, None], first, places[1:] + 1)
        begins = begins.reshape(-1)
        rows = np.arange(len(sizes))
        while len(rows):
            best = candidates.argmin(1)
            possible = candidates[np.arange(len(rows)), best] != NO_RANK
            if not possible.all():
                rows, best, candidates = rows[possible], best[possible], candidates[possible]
            begins[rows * stride + self._merge(rows, best, candidates)] = False
        row, place = np.divmod(np.flatnonzero(begins), stride)
        lengths = self._next[begins] - place
        ids: NDArray[np.int32] = self._table[starts[row] + place * widths[row] + lengths - 1]
        return ids, np.bincount(row, minlength=len(sizes))

    def _merge(self, rows: Integers, first: Integers, candidates: NDArray[np.int32]) -> Integers:
        """Merges the symbols at `first` with the next ones in these rows; returns where those began, all (R,)."""
        stride = candidates.shape[1]
        row, line = rows * stride, np.arange(len(rows)) * stride
        middle: Integers = self._next[row + first]
        end = self._next[row + middle]
        after, before = self._next[row + end], self._before[row + first]
        self._next[row + first] = end
        self._before[row + end] = first
        flat = candidates.reshape(-1)
        flat[line + middle] = NO_RANK
        left, right = np.stack([first, before]), np.stack([after, end])
        flat[line + left] = self._rank(self._words[:, rows], left, right)
        return middle

    def _rank(self, words: Integers, first: Integers, end: Integers) -> NDArray[np.int32]:
        """Ranks of the merges that make one symbol of what is between `first` and `end`, NO_RANK if left out.

        A merge comes up once, when its two symbols have just become neighbours, so whether it is left out may be
        decided then instead of when its turn comes. No other merge of the word would make the same stretch: where its
        two symbols meet, one of those of another would reach across, and what was merged is never cut again.
        """
        starts, widths, keys = words
        lengths = end - first
        is_short = (lengths <= widths) & (first >= 0)
        stretch = np.where(is_short, starts + first * widths + lengths, 0)
        ranks: NDArray[np.int32] = self._ranks[self._table[stretch]]
        if self._limit:
            np.putmask(ranks, mix((keys ^ (first << 32 | end)).view(np.uint64)) < self._limit, NO_RANK)
        return ranks


def _groups(order: Integers, sizes: Integers) -> Iterator[Integers]:
    """Words in their order of size (W,), in groups of similar size; sizes differ by an eighth at most."""
    start, in_order = 0, sizes[order]
    while start < len(order):
        size = int(in_order[start])
        most = size if size <= EXACT_SIZES else size + size // 8
        end = int(np.searchsorted(in_order, most, "right"))
        yield order[start:end]
        start = end

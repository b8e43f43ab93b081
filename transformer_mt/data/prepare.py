"""What is learned and encoded from a corpus: the tokenizer, and the token ids that training reads.

The functions write plain files into a folder and return counts as JSON data for the record; making folders appear
whole and skipping what is up to date is `stages.py`'s work.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_mt.atomic import read_json, write_json
from transformer_mt.config import Config, Training
from transformer_mt.data import files, sources
from transformer_mt.data import tokenizer as subwords
from transformer_mt.data.batching import Mixture
from transformer_mt.data.bpe_dropout import BpeDropout
from transformer_mt.data.corpus import ORIGINS, sides
from transformer_mt.data.parallel import cores, in_order
from transformer_mt.data.shards import Share, SharedChunks
from transformer_mt.data.store import StoreWriter
from transformer_mt.data.vocabulary_report import report_of_run, short_lines
from transformer_mt.errors import UserError
from transformer_mt.progress import Meter

Say = Callable[[str], None]
CHUNK_PAIRS = 20_000
SHOWN_LINES = 5
REPORTED_LINES = 20_000
"""Lines of each language that the report of a new vocabulary looks at."""


def check_sources(config: Config) -> None:
    """Raises UserError with all that can be seen to be wrong with the sources before any work."""
    problems = []
    for split in ("train", "validation", "test"):
        for number, source in enumerate(getattr(config.data, split)):
            problems += [f"data.{split}[{number}]: {text}" for text in sources.check(source, config.languages)]
    problems += _problems_of_tokenizer(config)
    initial = config.training.initial_model
    # Once something is trained it is not asked for any more.
    if initial and not initial.is_dir() and not any((config.output / "checkpoints").glob("step-*")):
        found = "is a file" if initial.exists() else "does not exist"
        problems.append(f"training.initial_model: {initial} {found}, wanted a model, run or checkpoint folder")
    if problems:
        raise UserError(*problems)


def _problems_of_tokenizer(config: Config) -> list[str]:
    """What is wrong with the models that are given instead of being learned."""
    settings, sampling, problems = config.tokenizer, config.training.subword_sampling, []
    for key in ("model", "source_model", "target_model"):
        if given := getattr(settings, key):
            try:
                if settings.vocabulary:
                    subwords.read_processor(given)
                elif (model := subwords.load_model(given)) and sampling:
                    BpeDropout(model)
            except UserError as failure:
                problems += [f"tokenizer.{key}: {message}" for message in failure.messages]
    if not (settings.model or settings.source_model):
        problems += subwords.symbol_problems(_symbols(config), settings)
    if settings.vocabulary:
        try:
            if settings.shared != (len(subwords.read_vocabulary(settings.vocabulary)) == 1):
                kind = "one vocabulary for each language" if settings.shared else "one vocabulary for both languages"
                wanted = str(not settings.shared).lower()
                problems.append(f"tokenizer.shared: {settings.vocabulary} holds {kind}, wanted {wanted}")
        except UserError as failure:
            problems += [f"tokenizer.vocabulary: {message}" for message in failure.messages]
        if sampling:
            problems.append(f"training.subword_sampling: found {sampling:g} with tokenizer.vocabulary, wanted 0")
    return problems


def learn_tokenizer(config: Config, corpus: Path, pairs: int, folder: Path, say: Say) -> dict[str, Any]:
    """Learns the models from the training text, or takes given ones over.

    They are spm.model, or source.model and target.model; vocabulary.json comes with those of an imported model.
    """
    source, target = sides(corpus, "train", config.languages)
    settings = config.tokenizer
    if settings.shared and not settings.vocabulary:
        plan = {"spm.model": (settings.model, [source, target])}
    else:
        plan = {"source.model": (settings.source_model, [source]), "target.model": (settings.target_model, [target])}
    if settings.vocabulary:
        plan[subwords.VOCABULARY] = (settings.vocabulary, [])
    record: dict[str, Any] = {}
    for name, (given, texts) in plan.items():
        if given:
            (folder / name).write_bytes(given.read_bytes())
            say(f"{name}: taken from {given}")
        else:
            record[name] = _learned(config, texts, pairs, folder / name, say)
    if missing := subwords.missing_symbols(folder, _symbols(config), target=False):
        say(f"warning: of the tags and symbols {', '.join(missing)} are not one piece of the given model")
    found = report_of_run(corpus, folder, config.languages, REPORTED_LINES)
    for line in short_lines(found):
        say(line)
    return record | {"report": found}


def _learned(config: Config, texts: list[Path], pairs: int, path: Path, say: Say) -> dict[str, Any]:
    """Learns one model from the lines of some files; what came of it, for the record."""
    settings = config.tokenizer
    lines = (files.text_of(line) for text in texts for line in files.lines(text))
    say(f"{path.name}: learning from {min(pairs * len(texts), settings.sample_lines)} lines")
    symbols = settings.symbols if path.name == "target.model" else _symbols(config)
    learned = subwords.learn(lines, pairs * len(texts), settings, seed=1, symbols=symbols)
    path.write_bytes(learned.model)
    size = subwords.load_model(path).get_piece_size()
    say(
        f"{path.name}: {settings.algorithm}, {size} pieces, normalization {settings.normalization}, "
        f"sampled {learned.sampled} of {learned.lines} lines"
    )
    if learned.too_long:
        lines_are = "line" if learned.too_long == 1 else "lines"
        limit = f"{settings.max_line_bytes} bytes"
        say(f"warning: {learned.too_long} {lines_are} longer than {limit} left out of learning")
    return {"pieces": size, "lines": learned.lines, "sampled": learned.sampled, "too_long": learned.too_long}


def _symbols(config: Config) -> list[str]:
    """Words that are to be one piece of the source language each: those of the configuration, and tags of sources."""
    tags = [source.tag for source in config.data.train if source.tag]
    return list(dict.fromkeys([*config.tokenizer.symbols, *tags]))


def encode_corpus(
    config: Config,
    corpus: Path,
    tokenizer: Path,
    folder: Path,
    say: Say,
    workers: int = 0,
    ready: Iterable["Encoded"] | None = None,
) -> dict[str, Any]:
    """Writes the ids of training and validation pairs; applies `max_tokens` and `too_long` to both alike.

    With `subword_sampling` also `train.text`: where in the corpus's two files, in bytes, the lines of each training
    pair begin, eight bytes each. `workers` processes encode (0: one a core); the ids are the same for any number.
    `ready`: what was made of all chunks of the training pairs elsewhere, in their order (`encode_share`).
    """
    models, training = subwords.Tokenizer(tokenizer), config.training
    ends = [int(origin["end"]) for origin in read_json(corpus / ORIGINS) or ()]
    record: dict[str, Any] = {}
    for name in ("train", "validation"):
        chunks = _lines(*sides(corpus, name, config.languages))
        left = np.zeros(len(ends), np.int64)
        total = Encoded()
        with ExitStack() as stack:
            shared = ready if name == "train" else None
            made_here = in_order(_encoder(config, tokenizer), chunks, workers or cores())
            results = shared if shared is not None else stack.enter_context(made_here)
            store = stack.enter_context(StoreWriter(folder, name, max(models.source_size, models.target_size)))
            text = folder / "train.text" if name == "train" and training.subword_sampling else None
            places = stack.enter_context(text.open("wb")) if text else None
            progress = stack.enter_context(Meter(say, f"ids of {name}", ends[-1] if ends and name == "train" else None))
            for encoded in results:
                store.write_arrays(encoded.ids, encoded.lengths)
                if places:
                    places.write(encoded.places.astype("<i8").tobytes())
                if name == "train":
                    left += np.searchsorted(encoded.numbers, ends)
                total.add(encoded)
                progress.add(encoded.read)
        if not total.counts["pairs"]:
            raise UserError(f"no {name} pair is left within training.max_tokens {training.max_tokens}")
        if name == "train" and ends:
            _write_origins(config, corpus, folder, left.tolist())
        record[name] = _told(config, corpus, name, total, say)
    return record


def encode_share(
    config: Config, corpus: Path, tokenizer: Path, made: SharedChunks, share: Share, say: Say, workers: int = 0
) -> None:
    """Encodes one machine's share of the training pairs."""
    chunks = made.own(_lines(*sides(corpus, "train", config.languages)), share)
    make = _encoder(config, tokenizer)
    with Meter(say, f"share {share}") as progress, in_order(make, chunks, workers or cores()) as results:
        for encoded in results:
            made.save(encoded)
            progress.add(encoded.read)
    made.finish(share)


def _encoder(config: Config, tokenizer: Path) -> Callable[[], "Encoder"]:
    training = config.training
    return partial(Encoder, tokenizer, training.max_tokens, cut=training.too_long == "truncate")


def _write_origins(config: Config, corpus: Path, folder: Path, ends: list[int]) -> None:
    """Where the encoded pairs of each source end, and what weight they have; pairs of the corpus may be left out."""
    rows: dict[int, dict[str, Any]] = {}
    for number, (origin, end) in enumerate(zip(read_json(corpus / ORIGINS), ends, strict=True)):
        place = int(origin.get("of", number))  # an older corpus has one file of each source
        rows[place] = {"end": end, "weight": config.data.train[place].weight}
    mixture = Mixture(tuple(row["end"] for row in rows.values()), tuple(row["weight"] for row in rows.values()))
    if not mixture.turns(0):
        weights = ", ".join(f"{weight:g}" for weight in mixture.weights)
        raise UserError(f"data.train: with the weights {weights} an epoch of {ends[-1]} pairs would have none")
    write_json(folder / ORIGINS, list(rows.values()))


def _told(config: Config, corpus: Path, name: str, total: "Encoded", say: Say) -> dict[str, Any]:
    """Says what became of a data set's pairs; the counts for the record."""
    record: dict[str, Any] = dict(total.counts)
    if total.long:
        record["too_long_lines"] = total.long[:1000]
        _tell_too_long(config.training, corpus, name, total.long, total.counts["too_long"], say)
    counts = total.counts
    say(f"{name}: {counts['pairs']} pairs, {counts['source']} source and {counts['target']} target pieces")
    return record


@dataclass
class _Lines:
    """Some pairs of the corpus as they are on disk."""

    first: int
    """Number of the first pair."""
    position: tuple[int, int]
    """Where its lines begin in the two files, in bytes."""
    sources: list[bytes]
    targets: list[bytes]


@dataclass
class Encoded:
    """The ids of some pairs, and what is known of them."""

    read: int = 0
    ids: NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.uint32))
    """Of source and target of each pair, end to end."""
    lengths: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """(2 N,): ids of source and target of each pair in turn."""
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """(N,): the pairs' numbers in the corpus."""
    places: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    """(N, 2): where their lines begin, in bytes."""
    long: list[int] = field(default_factory=list)
    """Numbers of the first thousand pairs that are too long."""
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Encoded") -> None:
        """Takes in the counts of further pairs."""
        self.read += other.read
        self.long += other.long[: max(0, 1000 - len(self.long))]
        self.counts += other.counts


def too_long(lengths: NDArray[np.int64], most: int) -> NDArray[np.bool_]:
    """Which pairs have more than `most` pieces on a side; lengths (N, 2) -> (N,)."""
    return (lengths[:, 0] > most) | (lengths[:, 1] > most)


class Encoder:
    """Encodes pairs, in whatever process: what comes out depends on nothing but the lines."""

    def __init__(self, tokenizer: Path, max_tokens: int, *, cut: bool) -> None:
        """Sides of more than `max_tokens` ids, `</s>` counted, are cut, or their pairs left out."""
        self._models, self._room, self._cut = subwords.Tokenizer(tokenizer), max_tokens - 1, cut
        for side in self._models.sides:
            side.threads = 1  # there is a process a core

    def __call__(self, lines: _Lines) -> Encoded:
        """The ids of some lines."""
        source = self._models.encode_source(list(map(files.text_of, lines.sources)))
        target = self._models.encode_target(list(map(files.text_of, lines.targets)))
        lengths = np.asarray([(len(one), len(other)) for one, other in zip(source, target, strict=True)], np.int64)
        long = too_long(lengths, self._room)
        kept = np.flatnonzero(~long | self._cut)
        room = self._room
        ids = [token for pair in kept.tolist() for side in (source[pair], target[pair]) for token in side[:room]]
        lengths = np.minimum(lengths[kept], room)
        counts = Counter(pairs=len(kept), too_long=int(long.sum()))
        counts += Counter(source=int(lengths[:, 0].sum()), target=int(lengths[:, 1].sum()))
        places = np.stack([_begins(lines.sources), _begins(lines.targets)], 1) + np.asarray(lines.position)
        return Encoded(
            len(long), np.asarray(ids, np.uint32), lengths.ravel(), kept + lines.first, places[kept],
            (np.flatnonzero(long)[:1000] + lines.first).tolist(), +counts,
        )  # fmt: skip


def _begins(lines: list[bytes]) -> NDArray[np.int64]:
    ends = np.cumsum(np.asarray([len(line) for line in lines], np.int64))
    return np.concatenate([np.zeros(1, np.int64), ends[:-1]])


def _lines(source: Path, target: Path) -> Iterator[_Lines]:
    """The lines of two files, in chunks."""
    # Cleaned text has no byte order mark, which `files.lines` would leave out and which would have to be counted.
    first, position = 0, (0, 0)
    rows = zip(files.lines(source), files.lines(target), strict=True)
    while chunk := list(islice(rows, CHUNK_PAIRS)):
        sources_, targets = (list(side) for side in zip(*chunk, strict=True))
        yield _Lines(first, position, sources_, targets)
        first += len(chunk)
        position = position[0] + sum(map(len, sources_)), position[1] + sum(map(len, targets))


def _tell_too_long(training: Training, corpus: Path, name: str, numbers: list[int], count: int, say: Say) -> None:
    """Says which lines were too long, by their numbers in the files they came from."""
    plural = "" if count == 1 else "s"
    more = ", ..." if count > SHOWN_LINES else ""
    unit = "line" if (corpus / f"{name}.lines").is_file() else "pair"  # of several files together
    where = f"({unit}{plural} {', '.join(_origins(corpus, name, numbers[:SHOWN_LINES]))}{more})"
    limit = f"training.max_tokens {training.max_tokens}"
    if training.too_long == "error":
        raise UserError(f"{name}: {count} pair{plural} longer than {limit} {where}; training.too_long is error")
    done = "left out" if training.too_long == "skip" else "cut"
    say(f"{name}: {count} pair{plural} over the limit {limit} {done} {where}")


def _origins(corpus: Path, name: str, numbers: list[int]) -> list[str]:
    """Line numbers in the sources, with the source where there are several."""
    if not (corpus / f"{name}.lines").is_file():
        return [str(number + 1) for number in numbers]
    lines = np.memmap(corpus / f"{name}.lines", "<i8", "r")
    origins = read_json(corpus / f"{name}.sources.json")
    if len(origins) == 1:
        return [str(lines[number]) for number in numbers]
    names = [next(origin["source"] for origin in origins if number < origin["end"]) for number in numbers]
    return [f"{lines[number]} of {source}" for number, source in zip(numbers, names, strict=True)]

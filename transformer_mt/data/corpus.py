"""The first stage: from sources to a corpus of cleaned text. It streams, with constant memory, on all cores.

The functions write plain files into a folder and return counts as JSON data for the record; making folders appear
whole and skipping what is up to date is `stages.py`'s work.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from transformer_mt.atomic import naming, write_json
from transformer_mt.config import Config, HubSource, Languages, Source
from transformer_mt.data import hub, sources
from transformer_mt.data.clean import EXAMPLE_CHARACTERS, EXAMPLES, Chunk, Cleaned, Cleaner, keys_of, warnings
from transformer_mt.data.duplicates import Duplicates
from transformer_mt.data.files import lines as lines_of
from transformer_mt.data.languages import scripts_of
from transformer_mt.data.parallel import cores, in_order
from transformer_mt.data.shards import Share, SharedChunks
from transformer_mt.data.sources import Tally, reasons
from transformer_mt.errors import UserError
from transformer_mt.progress import Meter

Say = Callable[[str], None]
CHUNK_PAIRS = 20_000
ORIGINS = "train.sources.json"
"""Which file each training pair came from: where the pairs of each end, and which source it is of (from 0)."""


def test_names(config: Config) -> list[str]:
    """Names of the test sets in files: `test`, further ones by their own name."""
    names: list[str] = []
    for place, source in enumerate(config.data.test):
        number = place
        name = wanted = "test" if number == 0 else sources.name_of(source, f"test-{number + 1}")
        while name in {*names, "train", "validation"}:
            number += 1
            name = f"{wanted}-{number}"
        names.append(name)
    return names


def sides(folder: Path, name: str, languages: Languages) -> tuple[Path, Path]:
    """The two files of a data set in a corpus."""
    return folder / f"{name}.{languages.source}", folder / f"{name}.{languages.target}"


def make_corpus(
    config: Config, folder: Path, say: Say, pinned: Sequence[dict[str, Any]] = (), *, workers: int = 0,
    rejected: BinaryIO | None = None, ready: Iterable[Cleaned] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Writes validation and test text untouched, training text cleaned, and where each training pair came from.

    `train.lines` holds the line number of each training pair in its file, eight bytes each, and
    `train.sources.json` where each file's pairs end. Returns counts by reason, and what hub data sets were
    resolved to; those in `pinned` keep the commit they were resolved to before. `workers` processes clean (0: one a
    core); what comes out is the same for any number. All dropped pairs are written to `rejected`, one JSON object
    a line. `ready`: what was made of all chunks elsewhere, in their order (`clean_share`).
    """
    config = resolved(config, pinned)
    record: dict[str, Any] = {"hub": hub_sources(config)}
    held_out: frozenset[int] = frozenset()
    for name, chosen in _held_out(config):
        record[name], keys = _write_untouched(config, folder, name, chosen, say)
        held_out |= keys
    reader = _Reader(config, inf if rejected else EXAMPLES)
    training = _Training(config, reader, folder, say, rejected)
    make = _cleaner(config, held_out, keep_rejected=rejected is not None)
    with nullcontext(ready) if ready is not None else in_order(make, reader.chunks(), workers or cores()) as results:
        record["train"] = training.write(results)
    return record


def clean_share(config: Config, made: SharedChunks, share: Share, say: Say, workers: int = 0) -> None:
    """Cleans one machine's share of the training sources, whose hub data sets are resolved."""
    counts: Counter[str] = Counter()
    reading = (
        sources.read(source, config.languages, config.data.on_bad_bytes, counts)
        for _, chosen in _held_out(config)
        for source in chosen
    )
    held_out = keys_of(pair for pairs in reading for pair in pairs)
    reader = _Reader(config, EXAMPLES)
    with Meter(say, f"share {share}") as progress:
        own = made.own(reader.chunks(), share)
        with in_order(_cleaner(config, held_out), own, workers or cores()) as results:
            for cleaned in results:
                made.save(cleaned)
                progress.add(cleaned.read, reader.share)
    made.finish(share)


def _cleaner(config: Config, held_out: frozenset[int], *, keep_rejected: bool = False) -> Callable[[], Cleaner]:
    return partial(Cleaner, config.data.cleaning, config.languages, held_out, keep_rejected=keep_rejected)


def _held_out(config: Config) -> list[tuple[str, Sequence[Source]]]:
    """Names of the validation and test data in files, with their sources."""
    tests: list[tuple[str, Sequence[Source]]]
    tests = [(name, (source,)) for name, source in zip(test_names(config), config.data.test, strict=True)]
    return [("validation", config.data.validation), *tests]


def hub_sources(config: Config) -> list[dict[str, Any]]:
    """The hub data sets of a configuration as plain data."""
    given = (*config.data.train, *config.data.validation, *config.data.test)
    return [source.model_dump(mode="json") for source in given if isinstance(source, HubSource)]


def resolved(config: Config, pinned: Sequence[dict[str, Any]]) -> Config:
    """The configuration with the subset and the commit of each hub data set filled in, asked for once for all."""
    found: dict[tuple[str, str | None, str | None], HubSource] = {}

    def resolve(source: Source) -> Source:
        if not isinstance(source, HubSource):
            return source
        key = source.hub, source.subset, source.revision
        if key not in found:
            known = next((old for old in pinned if old["hub"] == source.hub and _same_data(old, source)), None)
            found[key] = HubSource(**known) if known else hub.resolve_hub(source, config.languages)
        return source.model_copy(update={"subset": found[key].subset, "revision": found[key].revision})

    splits = {split: tuple(map(resolve, getattr(config.data, split))) for split in ("train", "validation", "test")}
    return config.model_copy(update={"data": config.data.model_copy(update=splits)})


def _same_data(old: dict[str, Any], source: HubSource) -> bool:
    return source.subset in (None, old["subset"]) and source.revision in (None, old["revision"])


def _write_untouched(
    config: Config, folder: Path, name: str, given: Sequence[Source], say: Say
) -> tuple[dict[str, Any], frozenset[int]]:
    """Writes the text of validation or test sources as it is; counts, and the keys of both sides."""
    counts: Counter[str] = Counter()
    keys, written, empty, shown = [], 0, 0, list[str]()
    with ExitStack() as stack:
        one, other = (stack.enter_context(path.open("wb")) for path in sides(folder, name, config.languages))
        for source in given:
            reading = sources.read_lists(source, config.languages, config.data.on_bad_bytes, counts, CHUNK_PAIRS)
            for part, chunk in reading:
                one.write("".join(f"{pair.source}\n" for pair in chunk).encode())
                other.write("".join(f"{pair.target}\n" for pair in chunk).encode())
                keys.append(keys_of(chunk))
                written += len(chunk)
                lines = [pair.line for pair in chunk if not (pair.source.strip() and pair.target.strip())]
                empty += len(lines)
                shown += [f"line {line} of {sources.describe(part)}" for line in lines[: EXAMPLES - len(shown)]]
    say(f"{name}: {written} pairs{reasons(counts)}")
    if empty:
        counts["empty_side"] = empty
        more = ", ..." * (empty > len(shown))
        say(f"warning: {name}: {empty} pairs with an empty side stay: {', '.join(shown)}{more}")
    return {"pairs": written, **counts}, frozenset().union(*keys)


@dataclass
class _Sums:
    """What became of the pairs so far."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    noticed: Counter[str] = field(default_factory=Counter)
    reading: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        return {
            "pairs": self.kept,
            "read": self.read,
            "dropped": dict(self.dropped),
            "noticed": dict(self.noticed),
            "examples": self.examples,
            **self.reading,
        }


class _Reader:
    """Reads the training sources, file after file, in chunks."""

    def __init__(self, config: Config, keep: float) -> None:
        """`keep`: how many of the pairs of a file that are left out for one reason to remember with their text."""
        self._config, self._keep = config, keep
        self.parts = [
            (number, part) for number, source in enumerate(config.data.train) for part in sources.parts(source)
        ]
        """Single files and the like, each with the number of its source: two sources may be equal."""
        self.share = 0.0
        """About how much of all of them has been read, as far as they tell."""

    def chunks(self) -> Iterator[Chunk]:
        """The sources' pairs; each file has at least one chunk, which tells what was left out in reading it."""
        sizes = _sizes([part for _, part in self.parts])
        found, left_out = 0, Counter[str]()
        for number, (source, part) in enumerate(self.parts):
            reading, told = Counter[str](), Counter[str]()
            tally = Tally(self._config.data.on_bad_bytes, reading, self._keep)
            pairs = sources.pairs_of(part, self._config.languages, tally)
            rows, ended = list(islice(pairs, CHUNK_PAIRS)), False
            while not ended:
                found += len(rows)
                one, other, lines = zip(*rows, strict=True) if rows else ((), (), ())
                ended = len(rows) < CHUNK_PAIRS
                self.share = (sum(sizes[:number]) + sizes[number] * tally.share_read) / max(1, sum(sizes))
                numbers = np.asarray(lines, np.int64)
                yield Chunk(number, list(one), list(other), numbers, reading - told, tally.taken())
                told, rows = reading.copy(), [] if ended else list(islice(pairs, CHUNK_PAIRS))
            left_out += reading
            if number + 1 == len(self.parts) or self.parts[number + 1][0] != source:
                if not found:
                    raise sources.no_pairs(self._config.data.train[source], left_out)
                found, left_out = 0, Counter()


class _Training:
    """Puts together what cleaning makes of the training sources, and writes it."""

    def __init__(self, config: Config, reader: _Reader, folder: Path, say: Say, rejected: BinaryIO | None) -> None:
        self._config, self._folder, self._say, self._rejected = config, folder, say, rejected
        self._parts, self._reader = [part for _, part in reader.parts], reader
        self._names = [sources.describe(part) for part in self._parts]
        self._ends = [0] * len(self._parts)
        self._sums = _Sums()

    def write(self, results: Iterable[Cleaned]) -> dict[str, Any]:
        """Writes all files of the training data; its record."""
        with ExitStack() as stack:
            deduplicate = self._config.data.cleaning.deduplicate
            duplicates = stack.enter_context(Duplicates(self._folder / "keys")) if deduplicate else None
            files = [stack.enter_context(path.open("wb")) for path in self._files()]
            progress = stack.enter_context(Meter(self._say, "train"))
            for cleaned in results:
                self._add(cleaned, files)
                if duplicates:
                    duplicates.add(cleaned.keys)
                progress.add(cleaned.read, self._reader.share)
            if duplicates and (again := duplicates.repeated()).any():
                for file in files:
                    file.close()
                self._leave_out(again)
        self._finish()
        return self._sums.record()

    def _files(self) -> list[Path]:
        return [*sides(self._folder, "train", self._config.languages), self._folder / "train.lines"]

    def _add(self, cleaned: Cleaned, files: Sequence[BinaryIO]) -> None:
        """Writes what stays of a chunk and counts the rest."""
        sums, tag = self._sums, self._parts[cleaned.part].tag
        source = _tagged(cleaned.source, tag) if tag else cleaned.source
        for file, content in zip(files, (source, cleaned.target, cleaned.lines.astype("<i8").tobytes()), strict=True):
            file.write(content)
        sums.read += cleaned.read
        sums.kept += len(cleaned.lines)
        self._ends[cleaned.part] = sums.kept
        sums.dropped += cleaned.dropped
        sums.noticed += cleaned.noticed
        sums.reading += cleaned.reading
        for reason, line, one, other in cleaned.rejected:
            self._reject(reason, cleaned.part, line, (one, other), self._rejected)
        for reason, line, one, other in cleaned.spared:
            self._reject(reason, cleaned.part, line, (one, other), None)

    def _reject(self, reason: str, part: int, line: int, texts: tuple[str, str], log: BinaryIO | None) -> None:
        """Keeps a pair as an example of its reason, and in the file of those dropped."""
        row = {"reason": reason, "file": self._names[part], "line": line, "source": texts[0], "target": texts[1]}
        if log:
            with naming(log.name):
                log.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
        examples = self._sums.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            cut = {side: str(row[side])[:EXAMPLE_CHARACTERS] for side in ("source", "target")}
            examples.append({"file": self._names[part], "line": line, **cut})

    def _leave_out(self, again: NDArray[np.bool_]) -> None:
        """Writes the files anew without the pairs that repeat an earlier one."""
        source, target, numbers = self._files()
        before = np.memmap(numbers, "<i8", "r")
        kept = [0] * len(self._ends)
        part = 0
        partials = [path.with_name(path.name + ".kept") for path in (source, target, numbers)]
        with ExitStack() as stack:
            one, other, lines = (stack.enter_context(path.open("wb")) for path in partials)
            pairs = zip(lines_of(source), lines_of(target), strict=True)
            progress = stack.enter_context(Meter(self._say, "train without duplicates", len(again)))
            for start in range(0, len(again), CHUNK_PAIRS):
                marks = again[start : start + CHUNK_PAIRS]
                stay = []
                for number, (mark, pair) in enumerate(
                    zip(marks.tolist(), islice(pairs, len(marks)), strict=True), start
                ):
                    while number >= self._ends[part]:
                        part += 1
                    if mark:
                        tag = self._parts[part].tag
                        text = pair[0].decode().removeprefix(f"{tag} " if tag else "")
                        texts = text.rstrip("\n"), pair[1].decode().rstrip("\n")
                        self._reject("duplicate", part, int(before[number]), texts, self._rejected)
                    else:
                        stay.append(pair)
                        kept[part] += 1
                one.write(b"".join(pair[0] for pair in stay))
                other.write(b"".join(pair[1] for pair in stay))
                lines.write(before[start : start + CHUNK_PAIRS][~marks].tobytes())
                progress.add(len(marks))
        for path, partial_file in zip((source, target, numbers), partials, strict=True):
            partial_file.replace(path)
        self._ends = np.cumsum(kept).tolist()
        self._sums.dropped["duplicate"] = int(again.sum())
        self._sums.kept -= int(again.sum())

    def _finish(self) -> None:
        """Writes where pairs came from, and says what became of them."""
        sums = self._sums
        ends = np.maximum.accumulate(self._ends).tolist()
        rows = zip(self._names, ends, (source for source, _ in self._reader.parts), strict=True)
        write_json(self._folder / ORIGINS, [dict(zip(("source", "end", "of"), row, strict=True)) for row in rows])
        odd = warnings(sums.read, sums.kept, sums.dropped, sums.noticed)
        if not sums.kept:
            raise UserError(f"no usable training pair: {sums.read} read{reasons(sums.dropped)}", *odd)
        languages = self._config.languages
        if self._config.data.cleaning.check_script:
            unknown = [code for code in (languages.source, languages.target) if not scripts_of(code)]
            odd += [f"check_script: the script of {code} is not known, its side was not checked" for code in unknown]
        self._say(f"train: {sums.kept} pairs kept of {sums.read}{reasons(sums.dropped)}{reasons(sums.reading)}")
        for warning in odd:
            self._say(f"warning: {warning}")


def _sizes(parts: Sequence[Source]) -> list[int]:
    """How large each part is beside the others: bytes of its (first) file, or all the same where one has none."""
    paths = list(map(sources.paths_of, parts))
    return [own[0].stat().st_size for own in paths] if all(paths) else [1] * len(parts)


def _tagged(lines: bytes, tag: str) -> bytes:
    """The tag before each line."""
    head = tag.encode() + b" "
    return b"".join(head + line + b"\n" for line in lines.split(b"\n")[:-1]) if lines else b""

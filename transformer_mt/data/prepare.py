"""From sources to what training reads: cleaned text, a learned tokenizer, token ids. Each fills one folder.

The functions stream, write plain files, and return counts as JSON data for the record; making folders appear whole
and skipping what is up to date is `stages.py`'s work.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transformer_mt.atomic import write_json
from transformer_mt.config import Config, HubSource, Languages, Source, Training
from transformer_mt.data import files, hub, sources
from transformer_mt.data import tokenizer as subwords
from transformer_mt.data.bpe_dropout import BpeDropout
from transformer_mt.data.clean import Cleaner
from transformer_mt.data.readers import Pair
from transformer_mt.data.store import StoreWriter
from transformer_mt.errors import UserError

Say = Callable[[str], None]
Encoded = tuple[list[int], list[int]]
CHUNK_LINES = 20_000
SHOWN_LINES = 5


def test_names(config: Config) -> list[str]:
    """Names of the test sets in files: `test`, further ones by their own name."""
    names: list[str] = []
    for number, source in enumerate(config.data.test):
        name = "test" if number == 0 else sources.name_of(source, f"test-{number + 1}")
        names.append(name if name not in {*names, "train", "validation"} else f"{name}-{number + 1}")
    return names


def check_sources(config: Config) -> None:
    """Raises UserError with all that can be seen to be wrong with the sources before any work."""
    problems = []
    for split in ("train", "validation", "test"):
        for number, source in enumerate(getattr(config.data, split)):
            problems += [f"data.{split}[{number}]: {text}" for text in sources.check(source, config.languages)]
    problems += _problems_of_tokenizer(config)
    initial = config.training.initial_model
    trained = any((config.output / "checkpoints").glob("step-*"))  # then it is not asked for any more
    if initial and not trained and not initial.is_dir():
        problems.append(f"training.initial_model: {initial} does not exist, wanted a model, run or checkpoint folder")
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


def make_corpus(config: Config, folder: Path, say: Say, pinned: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Writes validation and test text untouched, training text cleaned, and where each training pair came from.

    `train.lines` holds the line number of each training pair in its source, eight bytes each, and
    `train.sources.json` where each source's pairs end. Returns counts by reason, and what hub data sets were
    resolved to; those in `pinned` keep the commit they were resolved to before.
    """
    config = _resolved(config, pinned)
    held_out: list[str] = []
    given = (*config.data.train, *config.data.validation, *config.data.test)
    pinned = [source.model_dump(mode="json") for source in given if isinstance(source, HubSource)]
    record: dict[str, Any] = {"hub": pinned}
    test_sets = zip(test_names(config), config.data.test, strict=True)
    for name, given in [("validation", config.data.validation), *((name, (source,)) for name, source in test_sets)]:
        pairs, counts = _read(given, config)
        written = list(pairs)
        if not written:
            raise UserError(f"no pairs in {' and '.join(map(sources.describe, given))} ({name})")
        _write_pairs(folder, name, config.languages, written)
        held_out += [pair.source for pair in written]
        record[name] = {"pairs": len(written), **counts}
        say(f"{name}: {len(written)} pairs{_reasons(counts)}")
    cleaner = Cleaner(config.data.cleaning, held_out)
    record["train"] = _write_training(config, folder, cleaner, say)
    for warning in cleaner.warnings():
        say(f"warning: {warning}")
    return record


def _resolved(config: Config, pinned: Sequence[dict[str, Any]]) -> Config:
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


def _read(given: Iterable[Source], config: Config) -> tuple[Iterator[Pair], Counter[str]]:
    """Pairs of several sources one after the other, and what is counted while they are read."""
    counts: Counter[str] = Counter()
    reading = (sources.read(source, config.languages, config.data.on_bad_bytes, counts) for source in given)
    return chain.from_iterable(reading), counts


def _write_training(config: Config, folder: Path, cleaner: Cleaner, say: Say) -> dict[str, Any]:
    """Writes the training pairs that stay; counts in all, and pairs kept of each source."""
    kept, ends = 0, []
    reading: Counter[str] = Counter()
    with ExitStack() as stack:
        one, other = (stack.enter_context(path.open("wb")) for path in _sides(folder, "train", config.languages))
        numbers = stack.enter_context((folder / "train.lines").open("wb"))
        for source in config.data.train:
            pairs, counts = _read([source], config)
            for chunk in _chunks(cleaner.clean(pairs), CHUNK_LINES):
                one.write("".join(f"{pair.source}\n" for pair in chunk).encode())
                other.write("".join(f"{pair.target}\n" for pair in chunk).encode())
                numbers.write(np.asarray([pair.line for pair in chunk], "<i8").tobytes())
                kept += len(chunk)
            ends.append({"source": sources.describe(source), "end": kept})
            reading += counts
    write_json(folder / "train.sources.json", ends)
    dropped = {reason: number for reason, number in cleaner.counts.items() if reason not in ("read", "kept")}
    if not kept:
        raise UserError(
            f"no usable training pair: {cleaner.counts['read']} read{_reasons(dropped)}",
            *cleaner.warnings(),
        )
    say(f"train: {kept} pairs kept of {cleaner.counts['read']}{_reasons(dropped)}{_reasons(reading)}")
    return {"pairs": kept, "read": cleaner.counts["read"], "dropped": dropped, **reading}


def _reasons(counts: Counter[str] | dict[str, int]) -> str:
    return "".join(f", {reason} {number}" for reason, number in sorted(counts.items()) if number)


def _sides(folder: Path, name: str, languages: Languages) -> tuple[Path, Path]:
    return folder / f"{name}.{languages.source}", folder / f"{name}.{languages.target}"


def _write_pairs(folder: Path, name: str, languages: Languages, pairs: Sequence[Pair]) -> None:
    source, target = _sides(folder, name, languages)
    source.write_bytes("".join(f"{pair.source}\n" for pair in pairs).encode())
    target.write_bytes("".join(f"{pair.target}\n" for pair in pairs).encode())


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def learn_tokenizer(config: Config, corpus: Path, pairs: int, folder: Path, say: Say) -> dict[str, Any]:
    """Learns the models from the training text, or takes given ones over.

    They are spm.model, or source.model and target.model; vocabulary.json comes with those of an imported model.
    """
    source, target = _sides(corpus, "train", config.languages)
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
            continue
        lines = (line.decode() for path in texts for line in files.lines(path))
        learned = subwords.learn(lines, pairs * len(texts), settings, seed=1)
        (folder / name).write_bytes(learned.model)
        size = subwords.load_model(folder / name).get_piece_size()
        record[name] = {
            "pieces": size,
            "lines": learned.lines,
            "sampled": learned.sampled,
            "too_long": learned.too_long,
        }
        say(
            f"{name}: {settings.algorithm}, {size} pieces, normalization {settings.normalization}, "
            f"sampled {learned.sampled} of {learned.lines} lines"
        )
        if learned.too_long:
            lines_are = "line" if learned.too_long == 1 else "lines"
            limit = f"{settings.max_line_bytes} bytes"
            say(f"warning: {learned.too_long} {lines_are} longer than {limit} left out of learning")
    return record


def encode_corpus(config: Config, corpus: Path, tokenizer: Path, folder: Path, say: Say) -> dict[str, Any]:
    """Writes the ids of training and validation pairs; applies `max_tokens` and `too_long` to both alike.

    With `subword_sampling` also `train.text`: where in the corpus's two files, in bytes, the lines of each training
    pair begin, eight bytes each.
    """
    models = subwords.Tokenizer(tokenizer)
    record: dict[str, Any] = {}
    for name in ("train", "validation"):
        counts: Counter[str] = Counter()
        lines: list[int] = []
        with ExitStack() as stack:
            store = stack.enter_context(StoreWriter(folder, name, max(models.source_size, models.target_size)))
            text = folder / f"{name}.text" if name == "train" and config.training.subword_sampling else None
            places = stack.enter_context(text.open("wb")) if text else None
            for first, begins, encoded in _encoded(models, _sides(corpus, name, config.languages)):
                fitted = _fitted(encoded, first, config.training, lines, counts)
                store.write(fitted.values())
                if places:
                    places.write(begins[[number - first for number in fitted]].tobytes())
        if not counts["pairs"]:
            raise UserError(f"no {name} pair is left within training.max_tokens {config.training.max_tokens}")
        record[name] = dict(counts)
        if lines:
            record[name]["too_long_lines"] = lines[:1000]
            _tell_too_long(config.training, corpus, name, lines, say)
        say(f"{name}: {counts['pairs']} pairs, {counts['source']} source and {counts['target']} target pieces")
    return record


def _encoded(
    models: subwords.Tokenizer, sides: tuple[Path, Path]
) -> Iterator[tuple[int, NDArray[np.int64], list[Encoded]]]:
    """Chunks of encoded pairs, with the number of their first pair and the places (N, 2) where their lines begin."""
    # Cleaned text has no byte order mark, which `files.lines` would leave out and which would have to be counted.
    first, position = 0, np.zeros(2, "<i8")
    rows = zip(files.lines(sides[0]), files.lines(sides[1]), strict=True)
    for chunk in _chunks(rows, CHUNK_LINES):
        sizes = np.asarray([(len(source), len(target)) for source, target in chunk], "<i8")
        ends = position + sizes.cumsum(0)
        source = models.encode_source([pair[0].decode() for pair in chunk])
        target = models.encode_target([pair[1].decode() for pair in chunk])
        yield first, ends - sizes, list(zip(source, target, strict=True))
        first, position = first + len(chunk), ends[-1]


def _fitted(
    pairs: list[Encoded], first: int, training: Training, long: list[int], counts: Counter[str]
) -> dict[int, Encoded]:
    """The pairs within max_tokens, `</s>` counted, by their numbers; numbers of the longer ones go to `long`."""
    room, fitted = training.max_tokens - 1, {}
    for number, (source, target) in enumerate(pairs, first):
        if len(source) > room or len(target) > room:
            long.append(number)
            counts["too_long"] += 1
            if training.too_long != "truncate":
                continue
        fitted[number] = source[:room], target[:room]
    counts["pairs"] += len(fitted)
    counts["source"] += sum(len(source) for source, _ in fitted.values())
    counts["target"] += sum(len(target) for _, target in fitted.values())
    return fitted


def _tell_too_long(training: Training, corpus: Path, name: str, numbers: list[int], say: Say) -> None:
    """Says which lines were too long, by their numbers in the files they came from."""
    plural, verb = ("", "line") if len(numbers) == 1 else ("s", "lines")
    more = ", ..." if len(numbers) > SHOWN_LINES else ""
    where = f"({verb} {', '.join(_origins(corpus, name, numbers[:SHOWN_LINES]))}{more})"
    limit = f"training.max_tokens {training.max_tokens}"
    if training.too_long == "error":
        raise UserError(f"{name}: {len(numbers)} pair{plural} longer than {limit} {where}; training.too_long is error")
    done = "left out" if training.too_long == "skip" else "cut"
    say(f"{name}: {len(numbers)} pair{plural} over the limit {limit} {done} {where}")


def _origins(corpus: Path, name: str, numbers: list[int]) -> list[str]:
    """Line numbers in the sources, with the source where there are several."""
    if not (corpus / f"{name}.lines").is_file():
        return [str(number + 1) for number in numbers]
    lines = np.memmap(corpus / f"{name}.lines", "<i8", "r")
    origins = json.loads((corpus / f"{name}.sources.json").read_text("utf-8"))
    if len(origins) == 1:
        return [str(lines[number]) for number in numbers]
    names = [next(origin["source"] for origin in origins if number < origin["end"]) for number in numbers]
    return [f"{lines[number]} of {source}" for number, source in zip(numbers, names, strict=True)]

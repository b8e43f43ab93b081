"""The `clean` command: what reading and cleaning a config's sources comes to, as a table with examples."""

import tempfile
from contextlib import ExitStack, nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any

from transformer_mt.atomic import naming, whole_file
from transformer_mt.config import Config, UrlSource
from transformer_mt.data.clean import filters
from transformer_mt.data.corpus import make_corpus
from transformer_mt.data.prepare import check_sources
from transformer_mt.data.sources import paths_of
from transformer_mt.errors import UserError
from transformer_mt.progress import Speaker
from transformer_mt.stages import pinned, prepare_run, read_record


def clean(config: Config, say: Speaker, *, dry_run: bool, rejected: Path | None, workers: int) -> dict[str, Any]:
    """The counts of the `download` stage, which is run for them where it is not up to date.

    With `dry_run` or `rejected` nothing is written into the run folder. `rejected` is a file for all pairs that are
    dropped, one JSON object a line; it appears whole.
    """
    if dry_run or rejected:
        check_sources(config)
        return _tried(config, say, rejected, workers)
    prepare_run(config, say, names=("download",), workers=workers)
    record: dict[str, Any] = (read_record(config.output / "corpus") or {})["counts"]
    return record


def _tried(config: Config, say: Speaker, rejected: Path | None, workers: int) -> dict[str, Any]:
    """Cleans into a folder that is gone afterwards."""
    if problem := _problem_of(rejected, config):
        raise UserError(f"--rejected {rejected}{problem}")
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory())
        log = stack.enter_context(whole_file(rejected)) if rejected else None
        stack.enter_context(naming(place))
        return make_corpus(config, Path(place), say, pinned(config.output), workers=workers, rejected=log)


def _problem_of(rejected: Path | None, config: Config) -> str:
    """Why the dropped pairs cannot go there, to be put behind the path; nothing if they can."""
    if not rejected:
        return ""
    if rejected.is_dir():
        return " is a folder, wanted a file"
    if not rejected.absolute().parent.is_dir():
        return f": there is no folder {rejected.absolute().parent}"
    data = config.data
    given = (*data.train, *data.validation, *data.test)
    read = {path.resolve() for source in given for path in paths_of(source)}
    read |= {Path(source.url.removeprefix("file://")) for source in given if isinstance(source, UrlSource)}
    if rejected.resolve() in read:
        return " is one of the sources"
    with rejected.open("rb") if rejected.is_file() else nullcontext(BytesIO()) as file:
        other = file.read(1) not in (b"", b"{")
    return " is there and holds something else than dropped pairs: give another name, or delete it" if other else ""


def lines(config: Config, record: dict[str, Any]) -> list[str]:
    """The record as a table for people, with examples of each reason."""
    train, cleaning = record["train"], config.data.cleaning
    read, kept = train["read"], train["pairs"]
    rows = [("filter", "setting", "pairs", "share")]
    settings = {rule.name: (rule.setting or "always on", rule.on) for rule in filters(cleaning, config.languages)}
    settings["test_overlap"] = _switch("remove_test_overlap", cleaning.remove_test_overlap)
    settings["duplicate"] = _switch("deduplicate", cleaning.deduplicate)
    noticed = train.get("noticed", {})  # an older corpus has none, nor examples
    for name, (setting, on) in settings.items():
        known_number = on or (name != "duplicate" and "noticed" in train)
        number = train["dropped" if on else "noticed"].get(name, 0) if known_number else 0
        drops = f"{setting}: would drop" if number and not on else setting
        rows.append((name, drops, f"{number:,}" if known_number else "not counted", _percent(number, read)))
    known = {"pairs", "read", "dropped", "noticed", "examples"}
    reading = {name: number for name, number in train.items() if name not in known}
    rows += [(name, "in reading", f"{number:,}", _percent(number, read)) for name, number in sorted(reading.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}" for row in rows
    ]
    head = f"{read:,} pairs read, {kept:,} kept ({_percent(kept, read)})"
    return [head, "", *table, *_direction(noticed), *_examples(train.get("examples", {}))]


def _switch(key: str, on: bool) -> tuple[str, bool]:
    return f"{key} {str(on).lower()}", on


def _percent(part: int, whole: int) -> str:
    return f"{part / max(1, whole):.2%}"


def _direction(noticed: dict[str, int]) -> list[str]:
    """How many pairs look as if their sides were swapped."""
    looked = noticed.get("looked_at", 0)
    if not looked:
        return ["", "direction: not known for these languages"]
    straight, swapped = noticed.get("as_named", 0), noticed.get("swapped", 0)
    shares = f"{_percent(straight, looked)} are as named, {_percent(swapped, looked)} swapped"
    return ["", f"direction: of {looked:,} pairs looked at, {shares}; the others tell nothing"]


def _examples(examples: dict[str, list[dict[str, Any]]]) -> list[str]:
    rows = []
    for reason, pairs in examples.items():
        rows += ["", f"{reason}:"]
        for pair in pairs:
            rows += [f"  {pair['file']}, line {pair['line']}"]
            rows += [f"    {pair['source']}", f"    {pair['target']}"]
    return rows

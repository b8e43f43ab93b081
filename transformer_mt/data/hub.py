"""Data sets of the Hugging Face hub: choosing the part, pinning the commit, loading, and plain words for failures."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformer_mt.config import HubSource, Languages, UrlSource
from transformer_mt.data.readers import BATCH_ROWS
from transformer_mt.errors import RunError, UserError
from transformer_mt.libraries import quiet

_LOCAL_FILES = "to use local files instead: data.train: [{source: train.en, target: train.de}]"


def resolve_hub(source: HubSource, languages: Languages) -> HubSource:
    """The same source with its subset chosen and its revision pinned to a commit.

    The subset is the one named after the two language codes in either order, or `default` where there is no other.
    Offline both come from what the client prepared before; a commit that it lacks is noticed by `load`.

    Raises:
        UserError: no such data set, revision or subset (the message lists the subsets), or no way to reach the hub.
    """
    with _explained(source):
        if _offline():
            return _resolve_from_cache(source, languages)
        import datasets
        import huggingface_hub

        revision = huggingface_hub.HfApi().dataset_info(source.hub, revision=source.revision).sha
        available = sorted(datasets.get_dataset_config_names(_address(source), revision=revision))
        subset = _choose_subset(source, languages, available)
        return source.model_copy(update={"subset": subset, "revision": revision})


def load(source: HubSource, languages: Languages, tell: Callable[[float], None]) -> Iterator[Any]:
    """The split's rows as pyarrow tables of at most BATCH_ROWS rows; a missing subset is chosen first.

    `tell` is told how much of them has been read, 0 to 1, where the number of rows is known.

    Raises:
        UserError: it cannot be had; one line that says why and what to do.
        RunError: the client failed in another way, as on a full disk.
    """
    if source.subset is None or source.revision is None:
        source = resolve_hub(source, languages)
    with _explained(source):
        import datasets

        if source.streaming:
            stream = datasets.load_dataset(
                _address(source), source.subset, split=source.split, revision=source.revision, streaming=True
            )
            split = (stream.info.splits or {}).get(source.split)
            yield from _told(stream, split.num_examples if split else None, tell)
            return
        rows = datasets.load_dataset(_address(source), source.subset, split=source.split, revision=source.revision)
        # Offline the client takes the newest data it has, whatever commit is asked for.
        if _offline() and not all(source.revision in file["filename"] for file in rows.cache_files):
            raise ConnectionError
    yield from _told(rows, len(rows), tell)


def _told(rows: Any, count: int | None, tell: Callable[[float], None]) -> Iterator[Any]:
    for number, table in enumerate(rows.with_format("arrow").iter(batch_size=BATCH_ROWS), start=1):
        if count:
            tell(min(1.0, number * BATCH_ROWS / count))
        yield table


def stream(source: UrlSource) -> Iterator[Any]:
    """The rows of Parquet files somewhere else as pyarrow tables of at most BATCH_ROWS rows, as they come.

    Raises:
        UserError: they cannot be read.
    """
    with _quiet():
        import datasets

        try:
            rows = datasets.load_dataset("parquet", data_files={"train": source.url}, split="train", streaming=True)
            yield from rows.with_format("arrow").iter(batch_size=BATCH_ROWS)
        except Exception as failure:  # the client and the storages have a great many
            words = f"{type(failure).__name__}: {_first_line(failure)}"
            raise UserError(f"{source.url} cannot be read: {words}") from failure


def describe(source: HubSource) -> str:
    """Name, subset and split: `wmt/wmt14 de-en train`."""
    return " ".join(part for part in (source.hub, source.subset, source.split) if part)


def _address(source: HubSource) -> str:
    """The name in a form that the client never takes for a folder that happens to be here."""
    return f"hf://datasets/{source.hub}"


def _resolve_from_cache(source: HubSource, languages: Languages) -> HubSource:
    cached = _cached_commits(source)
    if not cached:
        raise ConnectionError
    subset = _choose_subset(source, languages, sorted(cached))
    return source.model_copy(update={"subset": subset, "revision": source.revision or cached[subset][0]})


def _cached_commits(source: HubSource) -> dict[str, list[str]]:
    """The commits that each subset was prepared from, newest first: the client has no call that tells."""
    from datasets import config
    from datasets.naming import camelcase_to_snakecase

    *owner, name = source.hub.split("/")
    folder = Path(config.HF_DATASETS_CACHE) / "___".join([*owner, camelcase_to_snakecase(name)])
    commits: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*/*/*/"), key=lambda path: path.stat().st_mtime, reverse=True):
        if re.fullmatch("[0-9a-f]{40}", path.name):
            commits.setdefault(path.parts[-3], []).append(path.name)
    return commits


def _choose_subset(source: HubSource, languages: Languages, available: list[str]) -> str:
    one, other = languages.source, languages.target
    wanted = [source.subset] if source.subset else [f"{one}-{other}", f"{other}-{one}"]
    for name in wanted:
        if name in available:
            return name
    if not source.subset and available == ["default"]:
        return "default"
    found = f"available{' offline' * _offline()}: {', '.join(available) or 'none'}"
    raise UserError(f"data set {source.hub} has no subset {' or '.join(wanted)}; {found}")


def _offline() -> bool:
    import huggingface_hub.constants

    return bool(huggingface_hub.constants.HF_HUB_OFFLINE) or os.environ.get("HF_DATASETS_OFFLINE", "").upper() in (
        "1", "ON", "YES", "TRUE",
    )  # fmt: skip


@contextmanager
def _explained(source: HubSource) -> Iterator[None]:
    """Keeps the client quiet, and turns its many exceptions into one line for people."""
    try:
        with _quiet():
            yield
    except UserError:
        raise
    except Exception as failure:
        if sentence := _sentence(source, failure):
            raise UserError(sentence) from failure
        words = f"{type(failure).__name__}: {_first_line(failure)}"
        raise RunError(f"data set {source.hub} cannot be read: {words}") from failure


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings about retries, and no progress bars where nobody watches."""
    import datasets
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
        disable_progress_bars()
    with quiet("datasets", "huggingface_hub", "fsspec"):
        yield


def _sentence(source: HubSource, failure: Exception) -> str | None:
    """What a failure of the client means, told by its kind first and its words last; None for one not foreseen."""
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub import errors

    data_set, words = f"data set {source.hub}", str(failure)
    if isinstance(failure, errors.GatedRepoError) or "is a gated dataset" in words:
        return f"{data_set} is gated: ask for access at its page, then set HF_TOKEN"
    if isinstance(failure, errors.RevisionNotFoundError):
        return f"{data_set} has no revision {source.revision}"
    if isinstance(failure, (errors.RepositoryNotFoundError, DatasetNotFoundError)):
        return f"{data_set} does not exist on the hub, or is private (set HF_TOKEN); {_LOCAL_FILES}"
    if "scripts are no longer supported" in words:
        return (
            f"{data_set} is made by a Python script at this revision, which `datasets` does not run any more; "
            f"choose another revision; {_LOCAL_FILES}"
        )
    if split := re.search(
        r"(?:Unknown split.*Should be one of|Bad split.*Available splits:) \[(.*?)\]", words, re.DOTALL
    ):
        whole = " (streaming: true takes whole splits)" if source.streaming and "[" in source.split else ""
        return f"{data_set} has no split {source.split}; available: {split[1].replace(chr(39), '')}{whole}"
    if subsets := re.search(r"BuilderConfig .* not found. Available: \[(.*?)\]", words, re.DOTALL):
        return f"{data_set} has no subset {source.subset}; available: {subsets[1].replace(chr(39), '')}"
    if not _is_network(failure):
        return None
    if _offline():
        return (
            f"{data_set} is not in the cache, and the hub is offline (HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set); "
            f"{_LOCAL_FILES}"
        )
    return f"{data_set}: the hub cannot be reached ({type(failure).__name__}: {_first_line(failure)}); {_LOCAL_FILES}"


def _first_line(failure: Exception) -> str:
    return next(iter(str(failure).strip().split("\n")), "") or "no reason given"


def _is_network(failure: BaseException | None) -> bool:
    """Whether the failure, or what it came from, is one of the connection or of the server."""
    while failure is not None:
        # The HTTP library's own base class, by its name: the client has changed libraries before.
        transport = any(base.__name__ == "TransportError" for base in type(failure).__mro__)
        status = getattr(getattr(failure, "response", None), "status_code", 0)
        if transport or isinstance(failure, (ConnectionError, TimeoutError)) or status >= 500:
            return True
        failure = failure.__cause__ or failure.__context__
    return False

"""A stage's work shared out among machines that see one folder: `--shard I/N`, and putting the shares together."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from transformer_mt.atomic import LOCK, locked, read_json
from transformer_mt.config import Config
from transformer_mt.data import corpus, prepare
from transformer_mt.data.shards import MADE_FROM, Share, SharedChunks
from transformer_mt.errors import UserError
from transformer_mt.stages import Stage, check, parts_folder, refuse_changes, stages
from transformer_mt.stages import pinned as pinned_before

Result = TypeVar("Result")
Say = Callable[[str], None]


def make_share(config: Config, name: str, share: Share, say: Say, workers: int) -> None:
    """Makes one share of a stage (download or encode), or what is still missing of it."""
    check(config)
    refuse_changes(config, say)
    run, folder = config.output, parts_folder(config.output, name)
    every = stages(config, say)
    stage = next(stage for stage in every if stage.name == name)
    before = [change for earlier in every[: every.index(stage)] for change in earlier.stale()]
    if before:
        raise UserError(f"{run} is not ready: run `download`, then `tokenize --learn-only`", *before)
    if not stage.stale() and stage.whole():
        say(f"{stage.folder}: up to date")
        return
    run.mkdir(parents=True, exist_ok=True)
    (run / LOCK).touch()  # marks the folder as a run's; other shares may be at work in it
    if name == "download":
        config = corpus.resolved(config, pinned(run) or pinned_before(run))
    made = SharedChunks(folder, _made_from(stage, share.count, corpus.hub_sources(config)))
    with locked(folder / f"share-{share.number}"):
        if name == "download":
            corpus.clean_share(config, made, share, say, workers)
        else:
            prepare.encode_share(config, run / "corpus", run / "tokenizer", made, share, say, workers)
    say(f"share {share} of {stage.name} is made in {folder}")


def pinned(run: Path) -> list[dict[str, Any]] | None:
    """The hub data sets that shares of the corpus are made from, each with its commit; None where there are none."""
    made_from = read_json(parts_folder(run, "download") / MADE_FROM)
    return made_from["hub"] if made_from else None


def ready(stage: Stage, run: Path, kind: type[Result]) -> Iterator[Result] | None:
    """What other machines have made of a stage, in order; None where its work was not shared out.

    Raises:
        UserError: shares are missing, or were made from something else.
    """
    folder = parts_folder(run, stage.name)
    made_from = read_json(folder / MADE_FROM)
    if not made_from:
        return None
    count = int(made_from["shares"])
    return SharedChunks(folder, _made_from(stage, count, made_from["hub"])).results(kind, count)


def _made_from(stage: Stage, count: int, hub: list[dict[str, Any]]) -> dict[str, Any]:
    """What the shares of a stage depend on."""
    chunk = corpus.CHUNK_PAIRS if stage.name == "download" else prepare.CHUNK_PAIRS
    return {**stage.depends_on(), "shares": count, "chunk": chunk, "hub": hub}

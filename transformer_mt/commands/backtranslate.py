"""Text of the target language translated back: pairs to train the other direction on, made block by block.

Each block of lines is a file of its own until all are there, so that work may be stopped, taken up and shared out.
No process waits for another one: a block that two of them make is put in its place twice, whole each time.
"""

import hashlib
import json
import re
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import transformer_mt
from transformer_mt.atomic import naming, read_json, sha256, sync
from transformer_mt.commands.translate import Say, load_translator
from transformer_mt.config import Config
from transformer_mt.config.values import digest
from transformer_mt.data import files
from transformer_mt.data.clean import normalize
from transformer_mt.data.shards import Share
from transformer_mt.decode.translator import Translator
from transformer_mt.distributed import Process, on_first_rank
from transformer_mt.errors import RunError, UserError
from transformer_mt.model import folder
from transformer_mt.progress import Meter

CHANGE_NOTHING = ("batch_size", "batch_tokens", "cuda_graphs", "alignment_layer", "n_best")
"""Keys of `decoding` that no pair depends on."""
LEFT_OUT = ("empty_line", "too_long", "empty_translation")
"""Why a line has no pair."""


@dataclass(frozen=True)
class Request:
    """What is to be translated back, and which part of it here."""

    source: Path
    """The text, a sentence a line, plain or compressed."""
    output: Path
    """The pairs, tab-separated: translation, line."""
    shard: str | None = None
    """I/N: of N blocks in a row the I-th one, from 1."""
    block_lines: int = 10_000
    precision: str = "float32"
    engine: str = "native"


def backtranslate(
    models: Sequence[Path], config: Config | None, changes: dict[str, Any], request: Request, process: Process, say: Say
) -> None:
    """Writes pairs of a translation and its line, in the order of the lines; those without one are counted.

    Blocks that are there already are not made again. The output appears when the last one is made, by whomever.
    """
    part = Share.parse(request.shard or "1/1")
    share = range(part.number - 1, 1 << 62, part.count)
    on_first_rank(partial(_check_files, request))
    translator, loaded = load_translator(
        models, config, process, changes, say, precision=request.precision, engine=request.engine
    )
    stamp = _stamp(request.source)
    blocks = on_first_rank(partial(_begun, translator, loaded, request))
    if blocks is None:
        say(f"{request.output} is there already, made from the same text in the same way: nothing to do")
        return
    languages = loaded[0].languages
    to_make = on_first_rank(partial(blocks.missing, share))
    say(f"{request.source}: {blocks.lines} lines from {languages.source} to {languages.target}; "
        f"of {blocks.count} blocks {len(to_make)} are to be made here")  # fmt: skip
    lines = files.text_lines(request.source)
    with Meter(say, request.source.name, sum(map(blocks.size, to_make)), unit="lines") as progress:
        work = _Work(translator, blocks, process, progress)
        for number in range(max(to_make, default=-1) + 1):
            block = list(islice(lines, blocks.block_lines))
            if _stamp(request.source) != stamp:
                raise RunError(f"{request.source} changed while it was read: run the command again")
            if number in to_make and not work.make(number, block):
                break
    on_first_rank(partial(_finish, blocks, {"languages": languages.model_dump()}, say))


def _stamp(path: Path) -> tuple[int, int]:
    """What changes when a file is written to."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _check_files(request: Request) -> None:
    """Tells what is wrong with the files, before anything is loaded."""
    source, output, problems = request.source, request.output, []
    if problem := files.path_problem(source):
        problems.append(f"--input: {problem}")
    elif kind := files.kind_of(source):
        problems.append(f"{source} looks like {kind}; wanted {files.ENCODING} text, one sentence a line")
    if output.is_dir():
        problems.append(f"--output {output} is a folder; wanted a file")
    elif not output.parent.is_dir():
        problems.append(f"folder {output.parent} of --output does not exist")
    if problems:
        raise UserError(*problems)


def _begun(translator: Translator, loaded: Sequence[folder.Loaded], request: Request) -> "Blocks | None":
    """The blocks of this work, some of them made or none; None if the output is there already."""
    output = request.output.resolve()
    lines = sum(1 for _ in files.text_lines(request.source))  # and no work is lost to a line that is no text
    if not lines:
        raise UserError(f"{request.source} has no line")
    blocks = Blocks(output, lines, request.block_lines, _basis(translator, loaded, request))
    if output.exists():
        if not blocks.are_joined():
            raise UserError(f"{request.output} is there already: give another --output, or delete it")
        blocks.clear()
        return None
    blocks.begin()
    return blocks


def _basis(translator: Translator, loaded: Sequence[folder.Loaded], request: Request) -> dict[str, Any]:
    """All that the pairs depend on."""
    search = translator.settings.model_dump(mode="json")
    return {
        "input_sha256": sha256(request.source),
        "shard_lines": request.block_lines,
        "model_sha256": [sha256(each.origin / folder.WEIGHTS) for each in loaded],
        "tokenizer_sha256": [sha256(path) for path in translator.tokenizer.files],
        "precision": request.precision,
        "engine": request.engine,
        **{key: value for key, value in search.items() if key not in CHANGE_NOTHING},
    }


@dataclass(frozen=True)
class Blocks:
    """The blocks of a work, each a file of a folder beside the output; and the output that they become.

    A block's file begins with a line of JSON, which tells what it was made from; its pairs follow.
    """

    output: Path
    lines: int
    """Of the whole input."""
    block_lines: int
    basis: dict[str, Any]
    """All that the pairs depend on."""

    @property
    def folder(self) -> Path:
        """Where the blocks are."""
        return self.output.with_name(f"{self.output.name}.parts")

    @property
    def record(self) -> Path:
        """The file beside the output that tells how it was made."""
        return self.output.with_name(f"{self.output.name}.json")

    @property
    def count(self) -> int:
        """How many there are, made or not."""
        return -(-self.lines // self.block_lines)

    def size(self, number: int) -> int:
        """Lines of a block."""
        return min(self.block_lines, self.lines - number * self.block_lines)

    def missing(self, share: range) -> set[int]:
        """The blocks of a share that are not made yet."""
        return {number for number in range(self.count) if number in share and self._header(number) is None}

    def begin(self) -> None:
        """Makes the folder, or takes up one that was begun with the same input, model and settings."""
        if self.record.exists() and "basis_sha256" not in (read_json(self.record) or {}):
            raise UserError(f"{self.record} is in the way of what is to be told of the output: move it")
        try:
            self.folder.mkdir(exist_ok=True)
        except FileExistsError:
            raise UserError(f"{self.folder} is a file, wanted a folder for the blocks: move it") from None
        path = self.folder / "basis.json"
        names = [each.name for each in self.folder.iterdir() if not each.name.startswith(".")]
        begun = read_json(path)  # after the listing: another process may be about to write it
        if begun is None and names:
            raise UserError(f"{self.folder} has {names[0]} and no basis.json: move it, or give another --output")
        if begun is not None and begun != self.basis:
            raise UserError(f"{self.folder} was begun in another way: {_differences(begun, self.basis)}; "
                            "go on as it was begun, give another --output, or delete that folder")  # fmt: skip
        if begun is None:
            self._place(path, json.dumps(self.basis, indent=1, ensure_ascii=False).encode() + b"\n")

    def state(self, number: int) -> Literal["made", "open", "joined"]:
        """How it stands with a block; joined: the output is there, made by another process."""
        if self._header(number) is not None:
            return "made"
        return "joined" if self.output.exists() else "open"

    def keep(self, number: int, pairs: bytes, counts: Counter[str]) -> None:
        """Puts a block in its place, whole."""
        header = {"basis_sha256": digest(self.basis), "sha256": hashlib.sha256(pairs).hexdigest(), "counts": counts}
        try:
            self._place(self._path(number), json.dumps(header).encode() + b"\n" + pairs)
        except FileNotFoundError:  # the folder is gone: with the last block that another process made?
            if not self.output.exists():
                raise

    def made(self) -> int:
        """How many blocks are made."""
        return sum(self._path(number).exists() for number in range(self.count))

    def join(self, facts: dict[str, Any]) -> dict[str, Any]:
        """Makes the output of all blocks, which are gone then; what is told beside it. Several processes may do so."""
        if not self.output.exists():
            unfinished = self._unfinished()
            try:
                self._write(unfinished, facts)
            except FileNotFoundError:  # another process was faster, and has cleared the folder
                if not self.output.exists():
                    raise
            finally:
                unfinished.unlink(missing_ok=True)
        if not self.are_joined():
            raise UserError(f"{self.output} has come in the meantime, from elsewhere: move it, and run this again")
        self.clear()
        return dict(read_json(self.record))

    def _write(self, unfinished: Path, facts: dict[str, Any]) -> None:
        """Writes what is told of the output, then the output: that it is there says that all is done."""
        counts = Counter(dict.fromkeys(("pairs", *LEFT_OUT, "hit_length_limit"), 0))
        with unfinished.open("wb") as file:
            for number in range(self.count):
                counts.update(self._append(number, file))
        sync(unfinished)
        told = {"lines": self.lines, **counts, **facts, "version": transformer_mt.__version__,
                "output_sha256": sha256(unfinished), "basis_sha256": digest(self.basis), **self.basis}  # fmt: skip
        self._place(self.record, json.dumps(told, indent=1, ensure_ascii=False).encode() + b"\n")
        unfinished.replace(self.output)
        sync(self.output.parent)

    def are_joined(self) -> bool:
        """Whether the output that is there was made from the same in the same way, and is as it was made."""
        told = read_json(self.record)
        made = (told or {}).get("basis_sha256") == digest(self.basis)
        return made and told["output_sha256"] == sha256(self.output)

    def clear(self) -> None:
        """Takes the folder away, unless it holds anything that is not ours."""
        for pattern in ("*.part", "basis.json", ".*.partial"):
            for path in self.folder.glob(pattern):
                path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.part"

    def _unfinished(self) -> Path:
        """A name that no other process has, and that goes with the folder if this one is killed."""
        return self.folder / f".{uuid.uuid4().hex}.partial"

    def _place(self, path: Path, content: bytes) -> None:
        unfinished = self._unfinished()
        try:
            with naming(path):
                unfinished.write_bytes(content)
                sync(unfinished)
            unfinished.replace(path)
            sync(path.parent)
        finally:
            unfinished.unlink(missing_ok=True)

    def _header(self, number: int) -> dict[str, Any] | None:
        """What a block's file tells of it, None where there is none."""
        try:
            with self._path(number).open("rb") as file:
                return self._read_header(number, file)
        except FileNotFoundError:
            return None

    def _read_header(self, number: int, file: BinaryIO) -> dict[str, Any]:
        try:
            header: dict[str, Any] = json.loads(file.readline())
            known = header["basis_sha256"]
        except (ValueError, KeyError, TypeError):
            raise self._damaged(number) from None
        if known != digest(self.basis):
            raise UserError(f"{self._path(number)} was made in another way than this work: delete {self.folder}")
        return header

    def _append(self, number: int, file: BinaryIO) -> dict[str, int]:
        """Adds a block's pairs to a file; what was counted in it."""
        seen = hashlib.sha256()
        with self._path(number).open("rb") as block:
            header = self._read_header(number, block)
            while chunk := block.read(1 << 20):
                seen.update(chunk)
                file.write(chunk)
        if seen.hexdigest() != header.get("sha256"):
            raise self._damaged(number)
        return dict(header["counts"])

    def _damaged(self, number: int) -> UserError:
        return UserError(f"{self._path(number)} is damaged: delete it, and run this again to have it made anew")


def _differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """What differs, for people: digests by their beginnings."""

    def shown(value: Any) -> str:
        values = [str(each)[:12] if re.fullmatch(r"[0-9a-f]{64}", str(each)) else each for each in
                  (value if isinstance(value, list) else [value])]  # fmt: skip
        return " ".join(each if isinstance(each, str) else json.dumps(each) for each in values)

    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return ", ".join(f"{key} was {shown(before.get(key))}, is {shown(now.get(key))}" for key in keys)


class _Work:
    """What makes blocks, one after the other; all ranks make each of them together."""

    def __init__(self, translator: Translator, blocks: Blocks, process: Process, progress: Meter) -> None:
        self._translator, self._blocks, self._process, self._progress = translator, blocks, process, progress
        self._untold = 0

    def make(self, number: int, lines: Sequence[str]) -> bool:
        """Makes a block, unless another process has done so; False if there is nothing to do any more, for any."""
        state = on_first_rank(partial(self._blocks.state, number))
        self._untold = len(lines)
        if state == "open":
            pairs, counts = self._pairs(lines, number * self._blocks.block_lines)
            on_first_rank(partial(self._blocks.keep, number, pairs, counts))
        self._progress.add(self._untold)
        return state != "joined"

    def _tell(self, lines: int) -> None:
        """Lines that this rank has done; the others have done about as many."""
        told = min(self._untold, lines * self._process.ranks)
        self._untold -= told
        self._progress.add(told)

    def _pairs(self, lines: Sequence[str], first: int) -> tuple[bytes, Counter[str]]:
        """The pairs of a block, and what was counted; `first` is the number of its first line among all."""
        tokenizer, most = self._translator.tokenizer, self._translator.most_pieces
        asked = [normalize(line) for line in lines]
        # What asks a model of several languages for one of them is no part of the text.
        texts = [line[len(tokenizer.source_language(line)) :].lstrip() for line in asked]
        too_long = [len(ids) > most for ids in tokenizer.encode_source(asked)]
        asked = [line if text and not long else "" for line, text, long in zip(asked, texts, too_long, strict=True)]
        found = self._translator.translate(asked, self._process, self._tell, first=first)
        rows, counts = [], Counter[str]()
        for text, long, translation in zip(texts, too_long, found, strict=True):
            made = normalize(translation.text)  # no tab either, which a vocabulary with bytes can write
            empty = "" if made else "empty_translation"
            reason = "empty_line" if not text else "too_long" if long else empty
            counts[reason or "pairs"] += 1
            if not reason:
                counts["hit_length_limit"] += translation.hit_limit
                rows.append(f"{made}\t{text}\n")
        return "".join(rows).encode(), counts


def _finish(blocks: Blocks, facts: dict[str, Any], say: Say) -> None:
    """Makes the output if all blocks are there, and tells what became of the lines; else what is missing."""
    made = blocks.made()
    if made < blocks.count and not blocks.output.exists():
        say(f"{blocks.folder}: {made} of {blocks.count} blocks are made; the output comes with the last one "
            "(without --shard, all that are missing are made)")  # fmt: skip
        return
    told = blocks.join(facts)
    left_out = [f"{reason.replace('_', ' ')} {told[reason]}" for reason in LEFT_OUT if told[reason]]
    limit = f"; hit length limit {told['hit_length_limit']}" if told["hit_length_limit"] else ""
    lines = f"{told['lines']} lines" + (f" (left out: {', '.join(left_out)})" if left_out else "")
    say(f"{blocks.output}: {told['pairs']} pairs of {lines}{limit}")
    if not told["pairs"]:
        say(f"warning: {blocks.output} has no pair")

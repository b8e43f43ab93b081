"""Test sets that sacreBLEU knows: fetched by it once, kept where it keeps them, and read from there."""

import difflib
import http.client
import re
import socket
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformer_mt.atomic import in_turn
from transformer_mt.config import Languages
from transformer_mt.data import files
from transformer_mt.data.readers import Pair
from transformer_mt.errors import RunError, UserError
from transformer_mt.libraries import quiet

_PATIENCE_SECONDS = 60.0
"""How long a server may say nothing."""


def problem(name: str, languages: Languages) -> str | None:
    """Why there cannot be such pairs, told without asking the network: no such test set or languages; or None."""
    import sacrebleu

    known = sacrebleu.get_available_testsets()
    if name not in known:
        close = ", ".join(difflib.get_close_matches(name, known))
        return f"sacreBLEU {sacrebleu.__version__} has no test set {name}; " + (
            f"did you mean {close}?" if close else f"it has {len(known)}, which sacrebleu --list shows"
        )
    if _direction(name, languages) is None:
        pairs = ", ".join(sorted(sacrebleu.get_langpairs_for_testset(name)))
        return f"sacreBLEU's test set {name} has no {languages.source}-{languages.target}; it has {pairs}"
    return None


def test_set_pairs(name: str, languages: Languages) -> Iterator[Pair]:
    """The sources of a test set, each with its first reference; `line` is the line in sacreBLEU's files.

    It is the one of the two languages in this order, told by the first parts of their codes where there is none of
    the whole codes.

    Raises:
        UserError: no such test set, or it cannot be fetched.
        RunError: sacreBLEU's copy cannot be made or read.
    """
    direction = _direction(name, languages)
    if direction is None:
        raise UserError(problem(name, languages) or "")
    source, reference = _fetched(name, direction, languages)
    sources, references = list(files.text_lines(source)), list(files.text_lines(reference))
    if len(sources) != len(references):
        raise RunError(
            f"{source} and {reference} have different numbers of lines ({len(sources)} and {len(references)}): "
            f"sacreBLEU was stopped while it wrote them; delete {source.parent} to have the test set fetched again"
        )
    for number, (one, other) in enumerate(zip(sources, references, strict=True), start=1):
        yield Pair(one, other, number)


def _direction(name: str, languages: Languages) -> str | None:
    import sacrebleu

    codes = languages.source, languages.target
    bases = [re.split("[-_]", code)[0].lower() for code in codes]
    available = sacrebleu.get_langpairs_for_testset(name)
    return next((pair for pair in ("-".join(codes), "-".join(bases)) if pair in available), None)


def _fetched(name: str, direction: str, languages: Languages) -> tuple[Path, Path]:
    """Where the source and the first reference are, fetched before if they have to be."""
    import sacrebleu

    # sacreBLEU writes its files in place, where another process, of a job array say, may be reading already.
    with _explained(name, languages), in_turn(Path(sacrebleu.SACREBLEU_DIR) / f"{name}.turn".replace("/", "-")):
        source = sacrebleu.get_source_file(name, direction)
        references = sacrebleu.get_reference_files(name, direction)
    if not references:
        raise UserError(f"sacreBLEU's test set {name} has no reference for {direction}")
    return Path(source), Path(references[0])


@contextmanager
def _explained(name: str, languages: Languages) -> Iterator[None]:
    """Keeps sacreBLEU quiet and its waiting bounded, and turns what it raises into one line for people."""
    import sacrebleu

    one, other = languages.source, languages.target
    test_set, folder = f"sacreBLEU's test set {name}", Path(sacrebleu.SACREBLEU_DIR) / name
    again = f"delete {folder} to have it fetched again"
    local = f"to use local files instead: {{source: test.{one}, target: test.{other}}}"
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE_SECONDS)
    try:
        with quiet("sacrebleu"):
            yield
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as failure:
        raise UserError(f"{test_set} cannot be fetched ({_words(failure)}); {local}") from failure
    except SystemExit:  # it leaves so where a checksum differs
        raise UserError(f"{test_set}: what was fetched is not what sacreBLEU expects; {again}; {local}") from None
    except Exception as failure:
        raise RunError(f"{test_set} cannot be made or read ({_words(failure)}); {again}; {local}") from failure
    finally:
        socket.setdefaulttimeout(patience)


def _words(failure: Exception) -> str:
    return f"{type(failure).__name__}: {' '.join(str(failure).split()) or 'no reason given'}"

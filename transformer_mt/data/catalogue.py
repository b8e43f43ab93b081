"""Gettext catalogues (PO), read by translate-toolkit; the whole file is in memory meanwhile, which PO files allow."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from transformer_mt.data import files
from transformer_mt.data.readers import Pair, Tally
from transformer_mt.errors import UserError
from transformer_mt.libraries import quiet

_TOOLKIT = "translate.storage.pypo"
_HEADER = re.compile(rb'^msgid\s+""\s*^msgstr\s+((?:".*"\s*)+)', re.MULTILINE)
_CHARSET = re.compile(rb'charset=\s*([^\s\\";]+)')
_ESCAPED = re.compile("[\udc80-\udcff]")
_BAD = "\ufdd0"
"""Stands for a byte that is none of the charset: no character, so no text has it."""


def problem(path: Path) -> str | None:
    """Why no catalogue can be read at all, such as this one, or None."""
    try:
        import_module(_TOOLKIT)
    except ImportError as failure:
        extra = 'needs the extra [formats]: pip install "transformer-mt[formats]"'
        return f"{path}: reading gettext catalogues (PO) {extra} ({failure})"
    return None


def po_pairs(path: Path, tally: Tally) -> Iterator[Pair]:
    """The translated entries, msgid as the source and msgstr as the target.

    `line` is the line where the entry begins with its comments; versions of the toolkit before 3.18 (Python 3.10 has
    no other) do not tell it, and with them it is the entry's number.

    Left out and counted, the first that is true: "obsolete", "fuzzy", "plural", "untranslated". The header and
    comments that stand alone are no entries. Escapes are resolved, contexts (msgctxt) are passed over. The charset is
    the one in the header, UTF-8 without one; bytes that are none of it matter in texts that are read, not in comments.

    Raises:
        UserError: no PO, a file that ends inside an entry, an unknown charset, or bad bytes.
    """
    if found := problem(path):
        raise UserError(found)
    text, charset = _decoded(path)
    for number, entry in enumerate(_entries(path, text), start=1):
        line = getattr(entry, "line_number", None)
        source, target = str(entry.source), str(entry.target)
        if reason := _reason_against(entry):
            tally.leave_out(reason, line or number, source, target)
        elif _BAD not in source + target:
            yield Pair(tally.value(source), tally.value(target), line or number)
        elif not tally.skips_bad_bytes(line or number, source, target):
            where = f"entry at line {line}" if line else f"entry {number}"
            raise UserError(
                f"{path}, {where}: bytes that are not {charset}, the charset expected; mend it, or leave such pairs "
                "out with data.on_bad_bytes: skip_pair"
            )


def _decoded(path: Path) -> tuple[str, str]:
    """The file's text, as if it were written in UTF-8 and with LF, and the charset that it is written in.

    The toolkit is not asked to decode: some of its versions cannot read a charset that differs from UTF-8.
    """
    with files.opened(path) as stream:
        content = stream.read().replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if max(content.rfind(b"\nmsgid"), content.rfind(b"\nmsgctxt")) > content.rfind(b"\nmsgstr"):
        raise UserError(f"{path} is incomplete: its last entry has no msgstr; fetch or make it again")
    charset, header = files.ENCODING, _HEADER.search(content)
    if header and (named := _CHARSET.search(content, *header.span(1))) and named[1] != b"CHARSET":
        charset = named[1].decode("ascii", "replace")
        content = content[: named.start(1)] + files.ENCODING.encode() + content[named.end(1) :]
    try:
        text = content.decode(charset, "surrogateescape")
    except (LookupError, ValueError) as failure:
        raise UserError(
            f"{path}: its header names the charset {charset!r}, which cannot be read ({failure}); convert the file to "
            f"{files.ENCODING} (msgconv -t UTF-8)"
        ) from None
    return _ESCAPED.sub(_BAD, text), charset


def _entries(path: Path, text: str) -> list[Any]:
    toolkit = import_module(_TOOLKIT)
    try:
        with quiet("translate"):
            return [entry for entry in toolkit.pofile.parsestring(text.encode()).units if entry.source]
    except (ValueError, IndexError) as failure:
        raise UserError(f"{path} cannot be read as a gettext catalogue: {failure!s:.200}") from None


def _reason_against(entry: Any) -> str | None:
    reasons = {
        "obsolete": entry.isobsolete(),
        "fuzzy": entry.isfuzzy(),
        "plural": entry.hasplural(),
        "untranslated": not entry.target,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)

"""Translation memories (TMX 1.4), unit by unit: memory does not grow with the file.

Nothing outside the file is read for it: a DTD that it names is passed over, and entities of its own are refused.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from lxml import etree

from transformer_mt.config import Languages
from transformer_mt.data import files
from transformer_mt.data.languages import subtags
from transformer_mt.data.readers import Pair, Tally
from transformer_mt.errors import UserError

_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_UNIT, _VARIANT, _SEGMENT = "{*}tu", "{*}tuv", "{*}seg"
_CODE = ("{*}bpt", "{*}ept", "{*}ph", "{*}it", "{*}ut")
# huge_tree stays off: it lifts the parser's limits, which guard against files made to use up all memory.
_SAFE = {"resolve_entities": False, "load_dtd": False, "no_network": True}
_SHOWN_LANGUAGES = 12
Fit = tuple[int, ...]


def tmx_pairs(path: Path, languages: Languages, tally: Tally) -> Iterator[Pair]:
    """One pair for each unit that has both languages; `line` is the unit's number in the file, from 1.

    Left out and counted: "missing_language", units without one of the languages; "empty_segment", units with nothing
    on one side; "further_variant", variants after the best one of a language. A variant's language is the best fit
    by the parts of its code, the first of which must be the same: `de` takes de-AT, deu, and rather de.
    The text is without the code of inline elements (bpt, ept, ph, it, ut, with any sub-flow in them).

    Raises:
        UserError: no TMX, broken XML, entities that the file defines or lacks, or no unit with both languages.
    """
    _check_head(path)
    sides = _Sides(languages)
    number, paired = 0, False
    for number, unit in enumerate(_units(path, tally), start=1):
        sources, targets = sides.of(unit)
        if not (sources and targets):
            one, other = ("".join(side[0].itertext()).strip() if side else "" for side in (sources, targets))
            tally.leave_out("missing_language", number, one, other)
            continue
        paired = True
        for _ in sources[1:] + targets[1:]:
            tally.count("further_variant")
        source, target = (tally.value(_text(path, variant)) for variant in (sources[0], targets[0]))
        if source.strip() and target.strip():
            yield Pair(source, target, number)
        else:
            tally.leave_out("empty_segment", number, source, target)
    if not number:
        raise UserError(f"{path} has no <tu>, wanted translation units")
    if not paired:
        raise UserError(f"{path} has the languages {sides.listed()}; wanted {sides.wanted} in one unit")


def _check_head(path: Path) -> None:
    """Refuses another kind of XML, and a document type that defines entities."""
    root = next(_elements(path, events=("start",)))
    name = etree.QName(root).localname
    if name != "tmx":
        raise UserError(f"{path} is XML whose first element is <{name}>, wanted <tmx>, a translation memory")
    document_type = root.getroottree().docinfo.internalDTD
    entities = [] if document_type is None else [entity.name for entity in document_type.iterentities()]
    if entities:
        raise UserError(
            f"{path}: its document type defines entities ({', '.join(entities[:5])}), which are not expanded, as they "
            "can stand for other files or for endless text; wanted a TMX without them"
        )


def _units(path: Path, tally: Tally) -> Iterator[Any]:
    """The file's units, each one gone when the next is asked for."""
    for unit in _elements(path, tally.read_so_far, tag=_UNIT):
        yield unit
        unit.clear()
        while unit.getprevious() is not None:
            del unit.getparent()[0]


def _elements(path: Path, tell: Callable[[float], None] | None = None, **which: Any) -> Iterator[Any]:
    """Elements as the parser comes to them. Raises UserError that tells where XML is broken, and how."""
    with files.opened_with_share(path) as (stream, share):
        parser = etree.iterparse(stream, **which, **_SAFE)
        try:
            for _, element in parser:
                if tell:
                    tell(share())
                yield element
        except etree.XMLSyntaxError as failure:
            # What the exception itself says can be a mere "no element found".
            faults = parser.error_log.filter_from_fatals() or parser.error_log
            if not faults:
                raise UserError(f"{path} is not XML: {failure.msg}") from None
            where = f"{path}, line {faults[0].line}, column {faults[0].column}"
            raise UserError(f"{where}: broken XML: {faults[0].message}") from None


def _text(path: Path, variant: Any) -> str:
    segment = variant.find(_SEGMENT)
    if segment is None:
        return ""
    if len(segment):
        etree.strip_elements(segment, *_CODE, with_tail=False)
        for entity in segment.iter(etree.Entity):
            raise UserError(
                f"{path}, line {entity.sourceline}: the file does not define the entity {entity.text}; wanted the "
                "character itself, or its number as in &#233;"
            )
    return "".join(segment.itertext())


class _Sides:
    """Tells which variants of a unit are of the two languages, and remembers what languages it saw."""

    def __init__(self, languages: Languages) -> None:
        self.wanted = f"{languages.source} and {languages.target}"
        self._wanted = subtags(languages.source), subtags(languages.target)
        self._seen: Counter[str] = Counter()
        self._fits: dict[str, tuple[Fit, Fit]] = {}

    def of(self, unit: Any) -> tuple[list[Any], list[Any]]:
        """The variants of the source and of the target language, the best ones first."""
        found: tuple[list[tuple[Fit, Any]], list[tuple[Fit, Any]]] = [], []
        for variant in unit.iterchildren(_VARIANT):
            code = variant.get(_LANGUAGE) or variant.get("lang") or "(none)"
            self._seen[code] += 1
            source_fit, target_fit = self._fits_of(code)
            if source_fit > target_fit:
                found[0].append((source_fit, variant))
            elif target_fit > source_fit:
                found[1].append((target_fit, variant))
        sources, targets = (sorted(side, key=lambda item: item[0], reverse=True) for side in found)
        return [variant for _, variant in sources], [variant for _, variant in targets]

    def _fits_of(self, code: str) -> tuple[Fit, Fit]:
        if code not in self._fits:
            parts = subtags(code)
            self._fits[code] = _fit(parts, self._wanted[0]), _fit(parts, self._wanted[1])
        return self._fits[code]

    def listed(self) -> str:
        """The languages seen, with how many variants are of each."""
        shown = [f"{code:.30} ({count})" for code, count in self._seen.most_common(_SHOWN_LANGUAGES)]
        return ", ".join(shown + ["..."] * (len(self._seen) > _SHOWN_LANGUAGES)) or "(none)"


def _fit(found: list[str], wanted: list[str]) -> Fit:
    """How well a code fits, to be compared: all that is wanted first, then as much of it as can be had, then no more.

    () where the first parts differ.
    """
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(found, wanted, strict=False))))
    return (same == len(wanted), same, -len(found)) if same else ()

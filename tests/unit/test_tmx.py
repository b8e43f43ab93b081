"""Translation memories: which text of which variants, what is left out, and what is refused in which words."""

import gzip
from collections import Counter
from pathlib import Path

import pytest

from transformer_mt.config import Languages
from transformer_mt.data import tmx
from transformer_mt.data.readers import Pair, Tally
from transformer_mt.errors import UserError

ENGLISH_GERMAN = Languages(source="en", target="de")
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n'
OUTSIDE = "http://127.0.0.1:9/tmx14.dtd"


def variant(language: str, text: str) -> str:
    return f'<tuv xml:lang="{language}"><prop type="x">p</prop><seg>{text}</seg></tuv>'


def unit(source: str, target: str, languages: tuple[str, str] = ("en", "de")) -> str:
    return f"<tu><note>n</note>{variant(languages[0], source)}{variant(languages[1], target)}</tu>\n"


def document(*units: str, head: str = HEAD) -> str:
    return f'{head}<tmx version="1.4">\n<header srclang="en"/>\n<body>\n{"".join(units)}</body>\n</tmx>\n'


def read(
    folder: Path, content: str | bytes, languages: Languages = ENGLISH_GERMAN
) -> tuple[list[tuple[str, str]], Counter[str]]:
    """The pairs, and what was counted."""
    pairs, counts = numbered(folder, content, languages)
    return [(pair.source, pair.target) for pair in pairs], counts


def numbered(
    folder: Path, content: str | bytes, languages: Languages = ENGLISH_GERMAN
) -> tuple[list[Pair], Counter[str]]:
    counts: Counter[str] = Counter()
    (folder / "m.tmx").write_bytes(content.encode() if isinstance(content, str) else content)
    return list(tmx.tmx_pairs(folder / "m.tmx", languages, Tally("error", counts))), counts


def refused(folder: Path, content: str | bytes, languages: Languages = ENGLISH_GERMAN) -> str:
    """The one sentence after the file's path with which reading ends."""
    with pytest.raises(UserError) as failure:
        read(folder, content, languages)
    (message,) = failure.value.messages
    assert "\n" not in message
    assert message.startswith(f"{folder}/m.tmx")
    return message.removeprefix(f"{folder}/m.tmx")


@pytest.mark.parametrize(
    ("segment", "text"),
    [
        ("Salt &amp; pepper &lt; &#169; &quot;now&quot;", 'Salt & pepper < © "now"'),
        ("<![CDATA[a <b> & c]]>", "a <b> & c"),
        ('It <bpt i="1">&lt;b&gt;</bpt>returns<ept i="1">&lt;/b&gt;</ept> a number', "It returns a number"),
        ('<bpt i="1">{\\i <sub>note</sub></bpt><bpt i="2">{\\b </bpt>this<ept i="2">}</ept><ept i="1">}</ept>', "this"),
        ('equal<ph x="1">&lt;br/&gt;</ph>.', "equal."),
        ('<it pos="begin">&lt;i&gt;</it>could<ut>{\\x}</ut> not', "could not"),
        ('Enter <hi type="term"><hi>your</hi></hi> address', "Enter your address"),
        ("<ph>a<hi>b</hi>c</ph>d<hi>e<ph>f</ph>g</hi>h", "degh"),
        ("a<!-- no text -->b<?no text?>c", "abc"),
        ("The\r\n      device", "The       device"),
        ("<hi>" * 200 + "deep" + "</hi>" * 200, "deep"),
    ],
)
def test_the_text_of_a_segment(tmp_path: Path, segment: str, text: str) -> None:
    assert read(tmp_path, document(unit(segment, "Ziel")))[0] == [(text, "Ziel")]
    assert read(tmp_path, document(unit("source", segment)))[0] == [("source", text)]


def test_a_line_break_in_a_segment_is_counted(tmp_path: Path) -> None:
    pairs, counts = read(tmp_path, document(unit("one\ntwo", "eins\nzwei"), unit("three", "drei")))
    assert pairs == [("one two", "eins zwei"), ("three", "drei")]
    assert counts == {"line_break_in_value": 2}


def test_what_is_left_out_is_counted_and_units_keep_their_numbers(tmp_path: Path) -> None:
    units = [
        unit("one", "eins"),
        f"<tu>{variant('en', 'alone')}</tu>",
        unit("nothing", ""),
        unit(" \n ", "leer"),
        "<tu><tuv xml:lang='en'><seg>no segment</seg></tuv><tuv xml:lang='de'/></tu>",
        f"<!-- {unit('commented', 'kommentiert')} -->",
        f"<tu>{variant('de', 'sechs')}{variant('fr', 'six')}{variant('en', 'six')}</tu>",
    ]
    pairs, counts = numbered(tmp_path, document(*units))
    assert pairs == [Pair("one", "eins", 1), Pair("six", "sechs", 6)]
    assert counts == {"missing_language": 1, "empty_segment": 3, "line_break_in_value": 1}


def test_a_unit_without_text_on_one_side_in_all_the_file_is_no_lack_of_languages(tmp_path: Path) -> None:
    assert read(tmp_path, document(unit("nothing", ""))) == ([], {"empty_segment": 1})


@pytest.mark.parametrize("code", ["en", "EN", "en-US", "en_GB", "En-Latn-US", "eng"])
def test_a_language_is_told_by_the_first_part_of_its_code(tmp_path: Path, code: str) -> None:
    content = document(unit("one", "eins", (code, "de-AT")), unit("enm", "fremd", ("enm", "de")))
    assert read(tmp_path, content) == ([("one", "eins")], {"missing_language": 1})


def test_the_attribute_of_older_versions_names_the_language(tmp_path: Path) -> None:
    assert read(tmp_path, document(unit("one", "eins")).replace("xml:lang", "lang"))[0] == [("one", "eins")]
    both = '<tu><tuv xml:lang="en" lang="de"><seg>one</seg></tuv><tuv lang="de"><seg>eins</seg></tuv></tu>'
    assert read(tmp_path, document(both))[0] == [("one", "eins")]


@pytest.mark.parametrize(
    ("wanted", "found", "chosen"),
    [
        ("de", ["de-AT", "de-CH"], "de-AT"),
        ("de", ["de-AT", "de"], "de"),
        ("de-CH", ["de", "de-AT", "de_ch"], "de_ch"),
        ("de-CH", ["de-AT", "de"], "de"),
        ("pt-BR", ["pt-PT", "pt-BR-x"], "pt-BR-x"),
        ("zh-Hant", ["zh-Hans", "zh-Hant-TW"], "zh-Hant-TW"),
    ],
)
def test_the_variant_that_fits_best_is_taken(tmp_path: Path, wanted: str, found: list[str], chosen: str) -> None:
    content = document(f"<tu>{''.join(variant(code, code) for code in found)}{variant('en', 'text')}</tu>")
    pairs, counts = read(tmp_path, content, Languages(source="en", target=wanted))
    assert pairs == [("text", chosen)]
    assert counts == {"further_variant": len(found) - 1}


def test_two_languages_of_one_first_part_are_not_mixed_up(tmp_path: Path) -> None:
    simple = Languages(source="en", target="en-simple")
    assert read(tmp_path, document(unit("simple", "normal", ("en-simple", "en-GB"))), simple)[0] == [
        ("normal", "simple")
    ]
    scripts = Languages(source="zh-Hans", target="zh-Hant")
    assert "zh-CN (1), zh-TW (1); wanted zh-Hans and zh-Hant" in refused(
        tmp_path, document(unit("a", "b", ("zh-CN", "zh-TW"))), scripts
    )


def test_languages_that_are_not_there_are_told_with_those_that_are(tmp_path: Path) -> None:
    units = [unit("a", "b", ("en-US", "fr"))] * 3 + [f"<tu>{variant('en-US', 'a')}<tuv><seg>b</seg></tuv></tu>"]
    assert refused(tmp_path, document(*units)) == (
        " has the languages en-US (4), fr (3), (none) (1); wanted en and de in one unit"
    )
    assert refused(tmp_path, document("<tu/>")) == " has the languages (none); wanted en and de in one unit"
    many = [f"<tu>{variant(f'en-{number}', 'a')}</tu>" for number in range(40)]
    assert "en-11 (1), ...; wanted" in refused(tmp_path, document(*many))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-8-sig", "latin1"])
def test_the_encoding_is_the_one_that_the_file_declares(tmp_path: Path, encoding: str) -> None:
    head = f'<?xml version="1.0" encoding="{encoding[:6] if encoding != "utf-8-sig" else "utf-8"}"?>\n'
    content = document(*(unit(f"size {number}", f"Größe {number}") for number in range(1000)), head=head)
    packed = content.encode(encoding)
    expected = [(f"size {number}", f"Größe {number}") for number in range(1000)]
    assert read(tmp_path, packed)[0] == expected
    assert read(tmp_path, gzip.compress(packed))[0] == expected


def test_bytes_of_another_encoding_are_refused(tmp_path: Path) -> None:
    assert ", line 6, column " in refused(tmp_path, document(unit("size", "Größe")).encode("latin1"))


def test_a_cut_compressed_file_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(document(*(unit(f"a {number}", "b") for number in range(1000))).encode())
    assert " is incomplete" in refused(tmp_path, packed[: len(packed) // 2])


def test_a_namespace_changes_nothing(tmp_path: Path) -> None:
    content = document(unit("<ph>x</ph>one", "eins")).replace("<tmx ", '<tmx xmlns="http://www.lisa.org/tmx14" ')
    assert read(tmp_path, content)[0] == [("one", "eins")]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (document(unit("one", "eins"))[:-15], ", line 7, column 1: broken XML: Premature end of data in tag body"),
        (document(unit("one", "<b>eins")), ", line 6, column "),
        (document(unit("a\x0bb", "x")), ", line 6, column "),
        (document(unit("a" * 10_000_001, "x")), ", line 6, column "),
        (document(unit("<x:a/>", "x"), "</tu>"), ", line 7, column 6: broken XML: Opening and ending tag mismatch"),
        ("Just text.\n", ", line 1, column 1: broken XML: Start tag expected"),
        ("", " is not XML"),
        ("<xliff version='1.2'/>", " is XML whose first element is <xliff>, wanted <tmx>"),
        (document(), " has no <tu>"),
    ],
)
def test_what_is_no_whole_memory_is_refused_with_its_place(tmp_path: Path, content: str, words: str) -> None:
    refused(tmp_path, "<tmx>\n\n\n\n<a></b></tmx>")  # the parser's library remembers faults of other files
    assert words in refused(tmp_path, content)


def test_another_kind_of_xml_is_refused_at_its_first_element(tmp_path: Path) -> None:
    assert "<html>" in refused(tmp_path, "<html>" + "<p>text</p>" * 100_000)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        list(tmx.tmx_pairs(tmp_path / "none.tmx", ENGLISH_GERMAN, Tally("error", Counter())))


@pytest.mark.parametrize("system", ["tmx14.dtd", OUTSIDE])
def test_a_document_type_elsewhere_is_not_loaded(tmp_path: Path, system: str) -> None:
    (tmp_path / "tmx14.dtd").write_text('<!ENTITY eacute "é">')
    head = f'<?xml version="1.0"?>\n<!DOCTYPE tmx SYSTEM "{system}">\n'
    assert read(tmp_path, document(unit("one", "eins"), head=head))[0] == [("one", "eins")]
    message = refused(tmp_path, document(unit("caf&eacute;", "Kaffee"), head=head))
    assert message.startswith(", line 6: the file does not define the entity &eacute;")


def test_an_entity_that_nothing_defines_is_refused_but_in_code(tmp_path: Path) -> None:
    assert "line 4, column" in (message := refused(tmp_path, document(unit("a", "b &nbsp; c"), head="")))
    assert "Entity 'nbsp' not defined" in message
    assert read(tmp_path, document(unit("a<ph>&nbsp;</ph>", "b")))[0] == [("a", "b")]


@pytest.mark.parametrize(
    ("subset", "names"),
    [
        ('<!ENTITY other SYSTEM "secret.txt">', "other"),
        ('<!ENTITY a "aaaaaaaaaa"> <!ENTITY b "&a;&a;&a;&a;">', "a, b"),
        ('<!ENTITY % more SYSTEM "secret.txt"> %more;', "more"),
    ],
)
def test_a_document_type_with_entities_is_refused(tmp_path: Path, subset: str, names: str) -> None:
    (tmp_path / "secret.txt").write_text('<!ENTITY secret "secret">')
    for text in ("plain", "&other;"):
        content = document(unit(text, "Ziel"), head=f"<!DOCTYPE tmx [{subset}]>\n")
        assert f"its document type defines entities ({names})" in refused(tmp_path, content)


def test_a_document_type_that_only_declares_elements_is_accepted(tmp_path: Path) -> None:
    content = document(unit("one", "eins"), head="<!DOCTYPE tmx [<!ELEMENT tmx ANY> <!ATTLIST tu lang CDATA 'en'>]>\n")
    assert read(tmp_path, content)[0] == [("one", "eins")]


@pytest.mark.timeout(60)
def test_entities_without_end_are_not_expanded(tmp_path: Path) -> None:
    layers = (f'<!ENTITY e{layer} "{f"&e{layer - 1};" * 10}">' for layer in range(1, 10))
    head = f'<!DOCTYPE tmx [<!ENTITY e0 "aaaaaaaaaa">{"".join(layers)}]>\n'
    assert "defines entities" in refused(tmp_path, document(unit("&e9;", "b"), head=head))
    assert "amplification" in refused(tmp_path, f'{head}<tmx version="&e9;"><body/></tmx>')


def test_units_are_gone_once_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.tmx"
    path.write_text(document(*(f"<!-- {number} -->{unit('one', 'eins')}" for number in range(2000))))
    for element in tmx._units(path, Tally("error", Counter())):
        before = list(element.itersiblings(preceding=True))
        assert len(before) <= 2  # a comment, and the unit before
        assert not any(len(sibling) for sibling in before)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's account of memory")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path, content = tmp_path / "m.tmx", unit("source " * 700, "target " * 700)
    path.write_text(document(*[content] * 4000))
    assert path.stat().st_size > 35e6
    before, most = resident_megabytes(), 0.0
    for pair in tmx.tmx_pairs(path, ENGLISH_GERMAN, Tally("error", Counter())):
        if pair.line % 500 == 0:
            most = max(most, resident_megabytes())
    assert 0 < most < before + 16


def resident_megabytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

"""What a translation has to hold: lists of terms, patterns, and whether it is there."""

import random
import time
from itertools import pairwise
from pathlib import Path

import pytest

from transformer_mt.decode.terms import PATTERNS, Finder, Term, compiled, missing, read_terms
from transformer_mt.errors import UserError


def listed(folder: Path, content: bytes) -> Path:
    path = folder / "terms.tsv"
    path.write_bytes(content)
    return path


def terms(**pairs: str) -> list[Term]:
    return [Term(source.replace("_", " "), target) for source, target in pairs.items()]


def found(line: str, pairs: list[Term] | None = None, groups: list[str] | None = None) -> list[str]:
    finder = Finder(pairs or [], compiled(PATTERNS if groups is None else groups))
    return [need.text for need in finder.required(line)]


# Reading


def test_a_list_of_terms(tmp_path: Path) -> None:
    content = "# source\ttarget\r\n#\n\n \t \nHund\tdog\r\n  großer\u00a0 Hund \t big dog\n"
    content += "#1\tnumber one\nHund\tdog\ne\u0301\tx"
    path = listed(tmp_path, b"\xef\xbb\xbf" + content.encode())
    known = terms(Hund="dog", großer_Hund="big dog")
    assert read_terms(path) == [*known, Term("#1", "number one"), Term("é", "x")]
    assert read_terms(listed(tmp_path, b"")) == []


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    path = listed(tmp_path, b"Hund\tdog\nKatze\nHund\thound\na\tb\tc\n\tb\na\t\n\xff\tx\nok\tok\n")
    with pytest.raises(UserError) as failure:
        read_terms(path)
    messages = failure.value.messages
    wanted = "wanted two columns: source, tab, target"
    assert messages[0] == f"{path}, line 2: found no tab; {wanted}"
    assert messages[1].startswith(f"{path}, line 3: found 'hound' for 'Hund', which line 1 makes 'dog'; wanted")
    assert messages[2] == f"{path}, line 4: found 3 columns; {wanted}"
    assert messages[3].startswith(f"{path}, line 5: found an empty source; wanted")
    assert messages[4].startswith(f"{path}, line 6: found an empty target; wanted")
    assert messages[5].startswith(f"{path}, line 7: byte 0xFF") and "UTF-8" in messages[5]
    assert len(messages) == 6


def test_not_thousands_of_messages(tmp_path: Path) -> None:
    with pytest.raises(UserError) as failure:
        read_terms(listed(tmp_path, b"x\n" * 1000))
    assert len(failure.value.messages) == 51 and "only the first 50" in failure.value.messages[-1]
    with pytest.raises(UserError) as failure:
        read_terms(listed(tmp_path, b"x\n" * 50))
    assert len(failure.value.messages) == 50


@pytest.mark.parametrize("name", ["nothing.tsv", "."])
def test_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="list of terms"):
        read_terms(tmp_path / name)


# Terms


@pytest.mark.parametrize(
    ("line", "targets"),
    [
        ("Ein Hund, zwei Hunde", ["dog"]),
        ("Hund Hund(Hund) Hund.", ["dog"] * 4),
        ("hund HUND Hundes Schäferhund Hund1 1Hund", []),
        ("Ein großer Hund bellt", ["big dog"]),
        ("großer Hunde Hund", ["dog"]),
        ("Die Katze. katze! KATZE", ["cat", "cat"]),
        ("l'Hund Bundes-Hund Hund_x", ["dog"] * 3),
        ("Hu\u0301nd Hund\u0301", []),
        ("New York City und New York", ["NYC", "NY"]),
        ("New New York York", ["NY"]),
        ("我爱北京大学和北京,Hund北京", ["BeiDa", "Beijing", "dog", "Beijing"]),
        ("हिन्दी हिन्दीx हिन्द", ["Hindi"]),
        ("C++ C++x xC++ C+", ["cpp", "cpp"]),
        ("", []),
    ],
)
def test_terms_are_whole_words_and_the_longest(line: str, targets: list[str]) -> None:
    known = terms(Hund="dog", großer_Hund="big dog", katze="cat", New_York="NY", New_York_City="NYC", York_York="YY")
    known += [Term("北京", "Beijing"), Term("北京大学", "BeiDa"), Term("हिन्दी", "Hindi"), Term("C++", "cpp")]
    assert found(line, known) == targets


def test_a_listed_capital_wins() -> None:
    assert found("Essen essen", terms(essen="eat", Essen="food")) == ["food", "eat"]
    assert found("Essen essen", terms(Essen="food")) == ["food"]
    assert found("Über über", terms(über="over")) == ["over", "over"]
    assert found("IPhone iPhone", terms(iPhone="phone")) == ["phone"]


def test_short_terms_and_joined_letters() -> None:
    assert found("x x y xy", [*terms(x="one", x_y="two")]) == ["one", "two"]
    assert found("می\u200cروم می", [Term("می", "may")]) == ["may"]


# Patterns


@pytest.mark.parametrize(
    ("line", "texts"),
    [
        ("<b>bold</b> <br/> <br /> <1>x</1>", ["<b>", "</b>", "<br/>", "<br />", "<1>", "</1>"]),
        ("<a href=\"x>y\" id='1' n=2>x</a>", ["<a href=\"x>y\" id='1' n=2>", "</a>"]),
        ("a < b and c > d, a <b and c> d, <>, </>, <3", []),
        ("{0} {name} {{x}} {{ user.name }} ${var} %{n} {} {a.b:.2f}",
         ["{0}", "{name}", "{{x}}", "{{ user.name }}", "${var}", "%{n}", "{}", "{a.b:.2f}"]),
        ("%s %d, %1$s:%2$s %(name)s %5.2f %ld%% %dms", ["%s", "%d", "%1$s", "%2$s", "%(name)s", "%5.2f", "%ld", "%%",
         "%d"]),
        ("100%ig 50% der 5 % sind %C3%A4 %c3%a4 %20", []),
        ("__PH_1__ und __x__, aber __ und a__b", ["__PH_1__", "__x__"]),
        ("xwww.a.de, siehe https://a.de/b?c=1&d=(x)#e. Und (http://a.de/x_(y)), www.a.de!",
         ["https://a.de/b?c=1&d=(x)#e", "http://a.de/x_(y)", "www.a.de"]),
        ("访问http://a.cn/b谢谢。“ftp://a.b/c”", ["http://a.cn/b", "ftp://a.b/c"]),
        ("Mail an a.b+c@d-e.co.uk. Oder <x_y@müller.de>, nicht a@b oder @c.de",
         ["a.b+c@d-e.co.uk", "x_y@müller.de"]),
        ("http://a.de/{id}/%s?x=__y__", ["http://a.de/{id}/%s?x=__y__"]),
        ('<a href="http://a.de/">http://a.de/</a>', ['<a href="http://a.de/">', "http://a.de/", "</a>"]),
        ("http:// www. https://.", []),
    ],
)  # fmt: skip
def test_what_survives_unchanged(line: str, texts: list[str]) -> None:
    assert found(line) == texts


def test_groups_are_chosen_by_name_and_people_have_their_own() -> None:
    line = "<b>{0} a@b.de www.x.de ABC-12"
    assert found(line, groups=["placeholders"]) == ["{0}"]
    assert found(line, groups=["emails", "tags"]) == ["<b>", "a@b.de"]
    own = Finder([], compiled([], [r"[A-Z]+-(\d)\d", "(?i)ABC"]))
    assert [need.text for need in own.required(line)] == ["ABC-12"]
    assert Finder([], compiled([])).required(line) == []
    nothing = Finder(terms(ab="x"), compiled([], ["(?=b)"]))
    assert [need.text for need in nothing.required("ab")] == ["x"]


def test_what_is_wrong_with_patterns_is_told_at_once() -> None:
    with pytest.raises(UserError) as failure:
        compiled(["tags", "tag"], ["(", "a*", "b"])
    unknown, broken, empty = failure.value.messages
    assert "'tag'" in unknown and "tags, placeholders, urls, emails" in unknown
    assert "'('" in broken and "'a*'" in empty


def test_patterns_take_no_time() -> None:
    units = ["a", "a.", "<a ", "<a x=1", ' x="', "{", "%0", "__a", "www.", "http://(", "a@", "@a.", "%(", "_a", "- "]
    for unit in units:
        line = "<a" + unit * (100_000 // len(unit))
        for pattern in compiled(PATTERNS):
            begin = time.process_time()
            assert pattern.sub("", line) is not None
            assert time.process_time() - begin < 1, (unit, pattern)


# Both together


def test_order_places_and_neighbours() -> None:
    line = "Der <b>Hund</b> (Hund) {0}"
    finder = Finder(terms(Hund="dog", b="be"), compiled(PATTERNS))
    needs = finder.required(line)
    assert [(need.text, need.touches_left, need.touches_right) for need in needs] == [
        ("<b>", False, True), ("dog", True, True), ("</b>", True, False), ("dog", True, True), ("{0}", False, False),
    ]  # fmt: skip
    assert [line[need.start : need.end] for need in needs] == ["<b>", "Hund", "</b>", "Hund", "{0}"]
    assert [need.forms for need in needs[:2]] == [("<b>",), ("dog", "Dog")]
    (url,) = finder.required("www.a.de!")
    assert (url.touches_left, url.touches_right, url.forms) == (False, True, ("www.a.de",))


def test_patterns_win_over_terms() -> None:
    assert found("see www.dog.de dog", terms(dog="Hund", see_www="x")) == ["www.dog.de", "Hund"]


def test_random_lines_have_no_overlaps() -> None:
    rng, units = (
        random.Random(4),
        ["a", "b", " ", "<b>", "{0}", "中", "文", "%s", ".", "A", "www.a", "a@b.c ", "\u0301"],
    )
    sources = {"".join(rng.choices("abA 中文", k=rng.randrange(1, 5))).strip() for _ in range(60)} - {""}
    finder = Finder([Term(source, source.swapcase()) for source in sources], compiled(PATTERNS))
    for _ in range(1000):
        line = "".join(rng.choices(units, k=rng.randrange(20)))
        needs = finder.required(line)
        assert all(one.end <= other.start for one, other in pairwise(needs))
        for need in needs:
            text = line[need.start : need.end]
            if not need.term:
                assert text == need.text
            else:
                assert text in sources or text[0].lower() + text[1:] in sources
        unchanged = [need for need in needs if not need.term]
        assert missing(line, unchanged) == []
        assert missing("", needs) == [need.text for need in needs]


# What an output lacks


def lacking(line: str, output: str, **pairs: str) -> list[str]:
    return missing(output, Finder(terms(**pairs), compiled(PATTERNS)).required(line))


def test_what_an_output_lacks() -> None:
    line = "<b>Hund</b> und <b>Hund</b> {0}"
    assert lacking(line, "<b>dog</b> and <b>dog</b> {0}", Hund="dog") == []
    assert lacking(line, "{0}</b><b>Dog</b>dog<b>", Hund="dog") == []
    assert lacking(line, "<b>dog</b> and dogs {1}", Hund="dog") == ["<b>", "dog", "</b>", "{0}"]
    assert lacking("Hund", "DOG dogma", Hund="dog") == ["dog"]
    assert lacking("Hund", "a dog", Hund="Dog") == ["Dog"]
    assert lacking("%s", "x%sx") == []


def test_one_place_serves_for_one_text() -> None:
    pairs = {"York": "York", "New_York": "New York"}
    assert lacking("York New York", "New York", **pairs) == ["York"]
    assert lacking("York New York", "New York, York", **pairs) == []
    assert lacking("%s %s", "%s") == ["%s"]
    assert lacking("Haha", "hahaha", Haha="haha") == ["haha"]
    assert lacking("{0} {{0}}", "{{0}}") == ["{0}"]

"""Text cut into sentences, and into parts that fit, with nothing lost."""

import random
import time
import unicodedata

import pytest

from transformer_mt.decode.sentences import Paragraph, pieces_within, split

# Sentences of one line each, "|" where a cut has to be; white space around it is not shown.
CUT = """
The dog barks. | The cat sleeps! | Is it late? | Yes.
He was born in 1999. | She came in 2001. | Then it was 2010.
He was 25. | She was 30. | The U.S. | The rest. | It was 5 p.m. | We left.
Apples, pears, etc. | The rest was sold. | See the work of Smith et al. | But not now.
He wrote to Mr. J. R. R. Tolkien, Mrs. Smith and Dr. Jones Jr. at St. Paul's. | They answered.
See Fig. 3 and No. 5, e.g. Berlin, i.e. I mean vs. Paris. | No. | He said no.
Visit www.example.com. | Then read http://a.de/x.y?z=1.5!A and write to a.b@c.de. | Version 3.5 of 1,000.50 is out.
"Stop!" he said. | "Go." | She went (at last). | [He stayed.] | 20 people came.
Wait… | What?! | Really??? | Well... | Then go.
He left.[1] | She stayed.[23] | <b>It was late.</b> | <i>They slept.</i>
Wait ... Smith comes. | Wait . . . Smith comes. | The [...] Company and the great … Smith came.
I said "No. | No!" and left.
- Yes. | - No. | — Perhaps. | • Never.
1. First of all, this. | 2. Second, that. | III. The third.
She has vitamin C. Nobody knows.
5 %. | The price is 100 €. | It fell.
How are you ? | I am fine . | Thanks .
Am 3. Oktober 1990 kam der 2. Zug im 19. Jahrhundert zum 100. Mal. | Er fuhr ab.
Am 24.12. Heiligabend, am 24.12.2010. | Der 1. FC Köln gewann das 10./11. Spiel.
Das ist z. B. Herr Dr. Müller, d. h. Sie, bzw. Frau Prof. Schmidt, vgl. Abb. 5 u. a. Bilder. | Ja.
Das sind z.B. Äpfel, d.h. Obst, ca. 5 Mio. Euro, Nr. 5 in der Hauptstr. 7, Art. 3 GG, Abs. 2. | Das gilt.
Am Bhf. Zoo stand Hptm. Krause vom WDR. | Paul war vom Hptm. | Er ging.
Ludwig XIV. Frankreichs König. | Es war Heinrich VIII. | Dann kam Karl V. Habsburg.
Er kam usw. | Sie ging. | 44 v. Chr. | Danach im 3. Jh. | Die Römer.
»Komm!« rief er. | »Nein.« | „Doch.“ | „Wirklich?“ fragte sie. | ‚Ja.‘ | So war es.
M. Dupont et Mme. Durand, p. ex. Paul, cf. Marie, av. J.-C. | Le roi. | Il dort.
Ça va ? | Oui ! | « Bonjour. » | Il part ; elle reste. | « Non ! » dit-il. | L'art. 5 existe.
¿Qué hora es? | ¡Hola! | ¿Y tú? | Él duerme.
Он спит. | А. С. Пушкин писал. | Она нет.
यह घर है। | वह जाता है।
هل هذا بيت؟ | نعم.
你好。 | 世界！ | 你是谁？ | 我是小明。 | iPhone很好。 | 3个。
他说：“你好。”然后走了。 | “再见！” | “好。” | 他走了……然后回来。
「はい。」と言った。 | そうですか。 | 「ええ。 | いいえ。」 | 終わり。
我用了3.5版。 | 访问http://a.cn/b?c=1。 | 谢谢。
안녕하세요. | 반갑습니다.
한국은 좋다! | 네.
""".strip().splitlines()


@pytest.mark.parametrize("line", CUT)
@pytest.mark.parametrize("blank", [" ", "\t  ", "\u00a0"])
def test_where_sentences_end(line: str, blank: str) -> None:
    sentences = line.split(" | ")
    text = blank.join(sentences)
    assert list(split(text).sentences) == sentences
    assert split(text).text == text


@pytest.mark.parametrize("line", [line for line in CUT if "。" in line])
def test_chinese_and_japanese_need_no_blank(line: str) -> None:
    """Only after a quote: there the sentence around it might go on."""
    sentences = line.split(" | ")
    joints = ["" if left.endswith(("。", "！", "？")) else " " for left in sentences]
    text = "".join(sentence + joint for sentence, joint in zip(sentences, joints, strict=True))
    assert list(split(text).sentences) == sentences


@pytest.mark.parametrize(
    "text", ["", " ", "\t \u3000", "...", ". . .", "。", "。你好", "你好。，世界", "a", "A. B. C.", "no end", "U.S. A."]
)
def test_nothing_to_cut(text: str) -> None:
    found = split(text)
    assert list(found.sentences) == ([text] if text.strip() else [])
    assert found.text == text


def test_quotes_that_follow_each_other() -> None:
    assert split("「はい。」「いいえ。」彼は").sentences == ("「はい。」", "「いいえ。」彼は")


def test_white_space_is_kept() -> None:
    found = split(" \u3000A dog.\t\tA cat. \u00a0 A cow.  ")
    assert found.sentences == ("A dog.", "A cat.", "A cow.")
    assert found.joints == (" \u3000", "\t\t", " \u00a0 ", "  ")
    assert found.filled(["Ein Hund.", "", "Eine Kuh."]).text == " \u3000Ein Hund.\t\t \u00a0 Eine Kuh.  "


def test_blanks_that_only_one_language_writes() -> None:
    chinese, english = "他来了。“你好。” 再见！A3？", ["He came.", "“Hello.”", "Goodbye!", "A3?"]
    found = split(chinese)
    assert found.sentences == ("他来了。", "“你好。”", "再见！", "A3？")
    assert found.filled(english).text == "He came. “Hello.” Goodbye! A3?"
    assert split(" ".join(english)).filled(found.sentences).text == "他来了。“你好。”再见！A3？"
    assert split("\t".join(english)).filled(found.sentences).text == "他来了。\t“你好。”\t再见！\tA3？"
    assert found.filled(["Yes", "", "No", "A"]).text == "Yes No A"
    with pytest.raises(ValueError):
        found.filled(english[1:])


NASTY = [*" \t\u00a0\u3000\u2028\x1c\x85\n\r.!?…。！？｡,;:—–-()[]{}<>\"'“”„»«「」¿¡&%@/#0123aäßAÄЖжक्षאبé中文あ한😀▁⁇"]
NASTY += [*"\u0301\u200d\u200b\ufe0f\ufffd\udc80\u202f", ". ", ". ", "。", "Dr. ", "z. B. ", "3. "]
NASTY += ["http://a.b/", "The ", "Hund ", "你好", "<b>", "</b>", "...", " »", "« "]


def nasty(rng: random.Random, most: int) -> str:
    return "".join(rng.choices(NASTY, k=rng.randrange(most)))


def test_nothing_is_lost_of_any_text() -> None:
    rng, cut = random.Random(1), 0
    for _ in range(3000):
        text = nasty(rng, 60)
        found = split(text)
        assert found.text == found.filled(found.sentences).text == text
        assert len(found.joints) == len(found.sentences) + 1
        assert all(sentence and sentence == sentence.strip() for sentence in found.sentences)
        assert not "".join(found.joints).strip()
        cut += len(found.sentences) > 1
    assert cut > 1000


def weighed(text: str) -> int:
    """A count as a tokenizer's: blanks are free, some characters are several pieces, and neighbours merge."""
    return sum(3 if character > "\u2fff" else 1 for character in text.replace("ab", "a") if not character.isspace())


def test_parts_fit_and_nothing_is_lost() -> None:
    rng = random.Random(2)
    for _ in range(500):
        text, limit = nasty(rng, 120), rng.randrange(1, 30)
        for count in (len, weighed):
            found = pieces_within(text, limit, count)
            assert found.text == text
            assert all(count(part) <= limit or len(part) == 1 for part in found.sentences)
            assert len(found.sentences) <= 1 or count(text.strip()) > limit
        paragraph = split(text).within(limit, len)
        assert paragraph.text == text and all(len(part) <= limit for part in paragraph.sentences)


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        ("one two three, four five six; seven eight", 30, ["one two three, four five six;", "seven eight"]),
        ("one two three, four five six seven eight", 30, ["one two three,", "four five six seven eight"]),
        ("one, two three four five six seven eight", 30, ["one, two three four", "five six seven eight"]),
        ("see https://a.de/" + "x" * 20, 33, ["see", "https://a.de/" + "x" * 20]),
        ("at 12:30,5 we—that is—left", 20, ["at 12:30,5 we—", "that is—left"]),
        ("我们今天去公园，明天去学校上课", 10, ["我们今天去公园，", "明天去学校上课"]),
        ("see " + "x" * 32, 10, ["see", *["x" * 8] * 4]),
        ("abcdefgh", 4, ["ab", "cde", "fgh"]),
        ("abcde", 4, ["ab", "cde"]),
        ("abc", 3, ["abc"]),
        ("abc", 0, ["a", "b", "c"]),
        ("one. two", 100, ["one. two"]),
    ],
)
def test_the_best_place_to_cut(text: str, limit: int, parts: list[str]) -> None:
    found = pieces_within(text, limit, len)
    assert list(found.sentences) == parts and found.text == text


def test_no_word_is_cut_that_fits() -> None:
    rng = random.Random(3)
    words = ["x" * rng.randrange(1, 9) for _ in range(2000)]
    parts = pieces_within(" ".join(words), 20, len).sentences
    assert [word for part in parts for word in part.split()] == words
    assert sum(map(len, parts)) / len(parts) > 10


def test_accents_and_emoji_stay_whole() -> None:
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    for part in pieces_within("e\u0301" * 50, 7, len).sentences:
        assert not unicodedata.combining(part[0])
    for part in pieces_within(family * 20, 12, len).sentences:
        assert part.replace(family, "") == ""


def test_words_are_numbered_over_the_whole_text() -> None:
    texts = [("", ["a b", "c", "d e f"], " "), ("\t", ["a b", "c", "d"], ""), (" ", ["a", "", "b", "", "c"], "")]
    for lead, sentences, joint in [*texts, ("", ["a", " b ", "c"], ""), ("", ["", "a", "b c"], " ")]:
        found = Paragraph(tuple(sentences), (lead, *[joint] * len(sentences)))
        for place, number in enumerate(found.first_words()):
            so_far = Paragraph(found.sentences[: place + 1], found.joints[: place + 1])
            if sentences[place]:
                assert number == len(so_far.text.split()) - len(sentences[place].split())
    assert Paragraph((), ("",)).first_words() == []


def test_long_lines_take_no_time() -> None:
    for unit in (
        "He left. Dr. J. said so! ",
        ".",
        "a.",
        ". ",
        "1. ",
        "你好。",
        "(",
        "x",
        " ",
        "<b> ",
        ". » ",
        "...!? ",
    ):
        text = unit * (50_000 // len(unit))
        begin = time.process_time()
        assert split(text).text == text
        assert time.process_time() - begin < 2, unit
    calls: list[int] = []

    def count(text: str) -> int:
        calls.append(len(text))
        return len(text)

    assert pieces_within("x" * 200_000, 100, count).text == "x" * 200_000
    assert sum(calls) < 3 * 200_000

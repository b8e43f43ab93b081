"""What is known of languages: the scripts they are written in, and the small words that give them away.

Enough to see a pair whose sides are the wrong way round or in the wrong script; no more is claimed, and of languages
that are not listed nothing is.
"""

import re
import unicodedata
from functools import lru_cache

_CYRILLIC = "be bg kk ky mk mn ru sr tg tt uk"
_ARABIC = "ar arz fa ku ps sd ug ur"
_DEVANAGARI = "hi mr ne sa mai bho"
_LATIN = (
    "af az bs ca cs cy da de en eo es et eu fi fo fr fy ga gd gl ha hr hsb ht hu id ig is it jv ku la lb lt lv mg mi "
    "ms mt nb nl nn no oc pl pt rn ro rw sk sl sn so sq sr st su sv sw tk tl tn tr uz vi wo xh yo zu"
)
_SINGLE = {
    "am": "ETHIOPIC", "bn": "BENGALI", "el": "GREEK", "gu": "GUJARATI", "he": "HEBREW", "hy": "ARMENIAN",
    "ka": "GEORGIAN", "km": "KHMER", "kn": "KANNADA", "ko": "HANGUL CJK", "lo": "LAO", "ml": "MALAYALAM",
    "my": "MYANMAR", "or": "ORIYA", "pa": "GURMUKHI", "si": "SINHALA", "ta": "TAMIL", "te": "TELUGU", "th": "THAI",
    "ti": "ETHIOPIC", "yi": "HEBREW", "zh": "CJK", "yue": "CJK", "ja": "HIRAGANA KATAKANA CJK", "as": "BENGALI",
}  # fmt: skip
_SUBTAGS = {
    "latn": "LATIN", "cyrl": "CYRILLIC", "arab": "ARABIC", "hans": "CJK", "hant": "CJK", "grek": "GREEK",
    "hebr": "HEBREW", "deva": "DEVANAGARI", "jpan": "HIRAGANA KATAKANA CJK", "kore": "HANGUL CJK", "thai": "THAI",
}  # fmt: skip
_CODES = (
    "af afr, am amh, ar ara arb, as asm, az aze azj, be bel, bg bul, bn ben, bs bos, ca cat, cs ces cze, cy cym wel, "
    "da dan, de deu ger, el ell gre, en eng, eo epo, es spa, et est ekk, eu eus baq, fa fas per pes, fi fin, fo fao, "
    "fr fra fre, fy fry, ga gle, gd gla, gl glg, gu guj, ha hau, he heb, hi hin, hr hrv, ht hat, hu hun, hy hye arm, "
    "id ind, ig ibo, is isl ice, it ita, ja jpn, jv jav, ka kat geo, kk kaz, km khm, kn kan, ko kor, ku kur kmr, "
    "ky kir, la lat, lb ltz, lo lao, lt lit, lv lav lvs, mg mlg plt, mi mri mao, mk mkd mac, ml mal, mn mon khk, "
    "mr mar, ms msa may zsm, mt mlt, my mya bur, nb nob, ne nep npi, nl nld dut, nn nno, no nor, oc oci, or ori ory, "
    "pa pan, pl pol, ps pus pbt, pt por, rn run, ro ron rum, ru rus, rw kin, sa san, sd snd, si sin, sk slk slo, "
    "sl slv, sn sna, so som, sq sqi alb als, sr srp, st sot, su sun, sv swe, sw swa swh, ta tam, te tel, tg tgk, "
    "th tha, ti tir, tk tuk, tl tgl fil, tn tsn, tr tur, tt tat, ug uig, uk ukr, ur urd, uz uzb uzn, vi vie, wo wol, "
    "xh xho, yi yid ydd, yo yor, zh zho chi cmn, zu zul"
)
"""Of each language of this file that ISO 639-1 gives two letters: these, then its codes in ISO 639-2 and 639-3."""
_TWO_LETTERS = {code: short for short, *codes in map(str.split, _CODES.split(", ")) for code in codes}
_FUNCTION_WORDS = {
    "cs": "a že se na je to si do pro jsem byl jako ale není jsou které který tak nebo když",
    "da": "og i at det er en til af på med den for ikke der som jeg har de et fra",
    "de": "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es werden oder sie",
    "en": "the of and to in is that for it as with was on be by this are at from or an have not you which",
    "es": "de la que el en y los se del las un por con no una su para es al lo como más",
    "et": "ja on ei et see ta ma kui oli ka mis aga siis oma seda või ning",
    "fi": "ja on ei että se hän oli mutta ovat kun joka tai niin myös kuin ole sen",
    "fr": "de la le et les des en un du une que est pour qui dans par plus pas au sur ne se ce avec",
    "hr": "i je da se na u za su ne od kao to ali koji što iz bi smo sam",
    "hu": "a az és hogy nem is egy ez meg csak volt de már mint van ha vagy azt",
    "it": "di e il la che in un per è non una del con i sono le si da come dei della",
    "lt": "ir kad yra tai su bet į iš ne kaip apie buvo tik jis už arba dėl",
    "lv": "un ir ka ar no par uz kas bet tas nav to vai kā viņš arī",
    "nb": "og i det er på en til som av for at med de ikke den har jeg et fra ble",
    "nl": "de het een van en in is dat op te zijn met voor niet aan er om ook als bij door",
    "no": "og i det er på en til som av for at med de ikke den har jeg et fra ble",
    "pl": "i w na z że się do nie to jest o jak ale po co tak za od jego",
    "pt": "de a o que e do da em um para com não uma os no se na por mais as dos",
    "ro": "de și în la a cu nu pe care este un o din mai să că pentru se au",
    "sk": "a sa na je že to si do pre som bol ako ale nie sú ktoré ktorý tak alebo keď",
    "sl": "in je se da na v za so ne ki pa z tudi kot bi po od sem",
    "sv": "och i att det som en på är av för med den till inte om ett har de jag från",
    "tr": "bir ve bu da de için çok ne ile gibi daha var ben o olarak kadar",
    "vi": "và là của có không được cho một người này trong các đã với những để",
    "id": "yang dan di itu dengan untuk tidak ini dari dalam akan pada juga saya ke",
    "bg": "на и да се за от не е че са в по като с си но",
    "ru": "и в не на что с он как это по но из у за то так от все же",
    "uk": "і в не на що з він як це та до але за від у його є",
}  # fmt: skip
_WORD = re.compile(r"[^\W\d_]+")
_MARKS = 2
"""By how many small words the other language must lead before a side is said to be in it."""


def subtags(language: str) -> list[str]:
    """A code in small letters and parts, the language by its shortest code: `deu_Latn` is `de`, `latn`."""
    code, *rest = re.split("[-_]", language.strip().lower())
    return [_TWO_LETTERS.get(code, code), *rest]


def scripts_of(language: str) -> frozenset[str]:
    """Names of the scripts a language is written in, as Unicode's character names begin; none where not known."""
    code, *rest = subtags(language)
    for subtag in rest:
        if subtag in _SUBTAGS:
            return frozenset(_SUBTAGS[subtag].split())
    found = _SINGLE.get(code, "").split()
    for name, codes in (("CYRILLIC", _CYRILLIC), ("ARABIC", _ARABIC), ("DEVANAGARI", _DEVANAGARI), ("LATIN", _LATIN)):
        found += [name] if code in codes.split() else []
    return frozenset(found)


@lru_cache(maxsize=1 << 16)
def script_of(character: str) -> str:
    """The script of a letter, as its Unicode name begins; "" for what is no letter."""
    if not character.isalpha():
        return ""
    name = unicodedata.name(character, "").split(" ")
    return name[1] if name[0] in ("FULLWIDTH", "HALFWIDTH", "MODIFIER") and len(name) > 1 else name[0].split("-")[0]


def is_foreign(text: str, scripts: frozenset[str]) -> bool:
    """Whether more than half of a text's letters are of other scripts than these; not where none is known."""
    if not scripts or ("LATIN" in scripts and text.isascii()):
        return False
    found = [script for script in map(script_of, text) if script]
    return 2 * sum(script in scripts for script in found) < len(found)


def function_words(language: str) -> frozenset[str]:
    """The most frequent small words of a language; none where not known."""
    return frozenset(_FUNCTION_WORDS.get(subtags(language)[0], "").split())


def words_of(text: str) -> list[str]:
    """The words of a text in small letters, without digits and signs."""
    return _WORD.findall(text.lower())


class Direction:
    """Tells whether a pair looks as if its sides were swapped."""

    def __init__(self, source: str, target: str) -> None:
        """Codes of the languages."""
        self._scripts = scripts_of(source), scripts_of(target)
        words = function_words(source), function_words(target)
        self._words = words[0] - words[1], words[1] - words[0]

    @property
    def can_tell(self) -> bool:
        """Whether enough is known of these languages."""
        scripts = all(self._scripts) and not self._scripts[0] & self._scripts[1]
        return scripts or all(self._words)

    def of(self, source: str, target: str) -> int:
        """1: the sides are as they should be; -1: the other way round; 0: nobody knows."""
        one, other = self._lead(source), -self._lead(target)
        return (min(one, other) >= _MARKS) - (max(one, other) <= -_MARKS)

    def _lead(self, text: str) -> int:
        """By how many words, or letters, the source language leads over the target language in a text."""
        first, second = self._scripts
        if first and second and not first & second:
            found = list(map(script_of, text))
            return sum(script in first for script in found) - sum(script in second for script in found)
        words = words_of(text)
        return sum(word in self._words[0] for word in words) - sum(word in self._words[1] for word in words)

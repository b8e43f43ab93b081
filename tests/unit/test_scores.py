"""Scores: the numbers, their signatures, their directions, and the paper's own BLEU."""

import hashlib
import json
import logging
import math
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from transformer_mt.errors import UserError
from transformer_mt.evaluate import scores
from transformer_mt.evaluate.scores import (
    METRICS,
    Score,
    corpus_digest,
    empty_lines,
    is_better,
    paper_bleu,
    paper_bleu_available,
    score,
    split_compounds,
)

HYPOTHESES = ["The cat sat on the mat, quietly.", "It's 3.5 o'clock - she said so!", "nothing in common here"]
REFERENCES = ["The cat sat on the mat quietly.", "It is 3.5 o'clock, she said.", "a wholly different line of words"]
OTHER_REFERENCES = ["A cat was on the mat, quietly.", "It's half past three - she said so!", "nothing to see"]

needs_sacremoses = pytest.mark.skipif(not paper_bleu_available(), reason="needs the extra [moses]")


def one_score(
    hypotheses: list[str], references: list[str], metric: str = "bleu", source: str = "en", target: str = "de"
) -> Score:
    [result] = score(hypotheses, [references], metrics=[metric], source_language=source, target_language=target)
    return result


def paper(hypotheses: list[str], reference: list[str], target: str) -> Score:
    result = paper_bleu(hypotheses, reference, source_language="en", target_language=target)
    assert result is not None
    return result


# --- blank references, languages, raw references -------------------------------------------------------------


def test_blank_reference_is_kept_and_scored() -> None:
    hypotheses = ["the cat sat on the mat", "a dog ran in the park", "x y z"]
    references = [*hypotheses[:2], ""]
    result = one_score(hypotheses, references)
    assert f"{result.value:.2f}" == "87.74"
    # by hand: 12 of 15 words, 10 of 12 pairs, 8 of 9 triples and all 6 quadruples match
    assert result.value == pytest.approx(100 * (12 / 15 * 10 / 12 * 8 / 9) ** (1 / 4))
    assert (result.details["hypothesis_length"], result.details["reference_length"]) == (15, 12)
    assert empty_lines(references) == 1


def test_chinese_target_uses_the_chinese_tokeniser() -> None:
    hypotheses, references = ["猫坐在垫子上。今天天气不错。"], ["猫坐在垫子上。今天天气很好。"]
    chinese = one_score(hypotheses, references, target="zh")
    assert f"{chinese.value:.2f}" == "77.44"
    assert "tok:zh" in chinese.signature.split("|")
    default = one_score(hypotheses, references, target="de")
    assert default.value == 0.0
    assert "tok:13a" in default.signature.split("|")


@pytest.mark.parametrize("language", ["zh-Hans", "zh_CN", "ZH"])
def test_script_country_and_case_of_a_language_do_not_change_the_tokeniser(language: str) -> None:
    assert "|tok:zh|" in one_score(["猫坐"], ["猫坐"], target=language).signature


@pytest.mark.parametrize(
    ("target", "module", "command"),
    [
        ("ja", "tokenizer_ja_mecab", "pip install 'sacrebleu[ja]'"),
        ("ko", "tokenizer_ko_mecab", "pip install 'sacrebleu[ko]'"),
    ],
)
def test_missing_segmenter_names_the_extra(
    target: str, module: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # sacreBLEU's own mark of a segmenter that is not installed, so that the test holds where it is
    monkeypatch.setattr(f"sacrebleu.tokenizers.{module}.MeCab", None)
    with pytest.raises(UserError) as failure:
        one_score(["a"], ["a"], target=target)
    assert command in str(failure.value)
    # only BLEU needs the segmenter
    assert one_score(["a"], ["a"], metric="chrf", target=target).value == 100.0


def test_source_language_does_not_change_a_score() -> None:
    assert one_score(HYPOTHESES, REFERENCES, source="zh") == one_score(HYPOTHESES, REFERENCES, source="en")


def test_raw_references_reach_the_metric_untouched() -> None:
    raw = ["½ Liter … „so“", "zwei  Blanks und “quotes” bleiben", " Rand 'hier' und ﬁn "]
    result = one_score(raw, raw)
    assert result.value == 100.0
    normalised = ["1\u20442 Liter ... „so“", "zwei Blanks und “quotes” bleiben", "Rand 'hier' und fin"]
    assert one_score(normalised, raw).value < 100.0
    assert one_score(normalised, raw, metric="chrf").value < 100.0


def test_metrics_receive_the_very_lines_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu.metrics.bleu import BLEU

    received: list[object] = []
    original = BLEU.corpus_score

    def spy(self: BLEU, hypotheses: object, references: object) -> object:
        received.extend([hypotheses, references])
        return original(self, hypotheses, references)  # type: ignore[arg-type]

    monkeypatch.setattr(BLEU, "corpus_score", spy)
    raw = ["  ½ … ", "", "e\u0301 \u00a0 x"]
    one_score(raw, raw)
    assert received == [raw, [raw]]


# --- agreement with the sacrebleu command --------------------------------------------------------------------


def write_lines(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
    return str(path)


def command_line_scores(
    folder: Path, hypotheses: list[str], references: list[list[str]], target: str
) -> dict[str, tuple[float, str]]:
    files = [write_lines(folder / f"reference{number}", lines) for number, lines in enumerate(references)]
    command = [sys.executable, "-m", "sacrebleu", *files, "--input", write_lines(folder / "hypothesis", hypotheses)]
    options = ["--language-pair", f"en-{target}", "--metrics", "bleu", "chrf", "ter", "--format", "json"]
    output = subprocess.run([*command, *options, "--width", "9"], capture_output=True, check=True, encoding="utf-8")
    return {entry["name"]: (entry["score"], entry["signature"]) for entry in json.loads(output.stdout)}


@pytest.mark.parametrize(
    ("hypotheses", "references", "target"),
    [
        pytest.param(HYPOTHESES, [REFERENCES], "de", id="one reference"),
        pytest.param(HYPOTHESES, [REFERENCES, OTHER_REFERENCES], "de", id="two references"),
        pytest.param([*HYPOTHESES, "x y z"], [[*REFERENCES, ""]], "fr", id="blank reference"),
        pytest.param(["猫坐在垫子上。今天不错。"], [["猫坐在垫子上。今天天气很好。"]], "zh", id="Chinese"),
    ],
)
def test_scores_and_signatures_equal_the_command_line_tool(
    hypotheses: list[str], references: list[list[str]], target: str, tmp_path: Path
) -> None:
    ours = score(hypotheses, references, metrics=list(METRICS), source_language="en", target_language=target)
    theirs = command_line_scores(tmp_path, hypotheses, references, target)
    assert [result.name for result in ours] == ["BLEU", "chrF2", "TER"]
    assert {result.name: (round(result.value, 9), result.signature) for result in ours} == theirs
    assert all("version:" in result.signature for result in ours)


def test_order_of_results_follows_the_metrics_asked_for() -> None:
    results = score(HYPOTHESES, [REFERENCES], metrics=["ter", "bleu"], source_language="en", target_language="de")
    assert [(result.name, result.lower_is_better) for result in results] == [("TER", True), ("BLEU", False)]


def test_ter_above_one_hundred_is_reported_as_it_is() -> None:
    assert one_score(["a b c d"], ["x"], metric="ter").value == 400.0


# --- form ----------------------------------------------------------------------------------------------------


def test_bleu_details_on_a_case_worked_by_hand() -> None:
    # "the" and "sat" match out of three words, no two in a row; the reference has one word more
    result = one_score(["the dog sat"], ["the cat sat down"])
    assert result.details["precision_1"] == pytest.approx(200 / 3)
    assert result.details["brevity_penalty"] == pytest.approx(math.exp(1 - 4 / 3))
    assert (result.details["hypothesis_length"], result.details["reference_length"]) == (3, 4)
    assert result.details["length_ratio"] == 0.75
    assert set(result.details) == {
        *(f"precision_{order}" for order in (1, 2, 3, 4)),
        *("brevity_penalty", "hypothesis_length", "reference_length", "length_ratio"),
    }


def test_importing_the_module_imports_no_library_of_weight() -> None:
    code = (
        "import sys; before = set(sys.modules); import transformer_mt.evaluate.scores;"
        "print({'torch', 'sacrebleu', 'sacremoses', 'numpy'} & (set(sys.modules) - before))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, encoding="utf-8")
    assert output.stdout.strip() == "set()"


# --- a person's mistakes -------------------------------------------------------------------------------------


def test_unequal_counts_are_refused_with_both_counts() -> None:
    with pytest.raises(UserError, match="3 hypotheses but 2 lines in reference 1"):
        one_score(HYPOTHESES, REFERENCES[:2])


def test_every_reference_of_wrong_length_is_named() -> None:
    with pytest.raises(UserError) as failure:
        score(
            HYPOTHESES,
            [REFERENCES, REFERENCES[:2], [*REFERENCES, "more"]],
            metrics=["chrf"],
            source_language="en",
            target_language="de",
        )
    assert str(failure.value).splitlines() == [
        "3 hypotheses but 2 lines in reference 2",
        "3 hypotheses but 4 lines in reference 3",
    ]


def test_no_segments_are_refused() -> None:
    with pytest.raises(UserError, match="0 hypotheses"):
        one_score([], [])


def test_no_references_are_refused() -> None:
    with pytest.raises(UserError, match="no references"):
        score(HYPOTHESES, [], metrics=["bleu"], source_language="en", target_language="de")


@pytest.mark.parametrize("metric", ["loss", "BLEU", "meteor"])
def test_unknown_metric_is_refused_with_those_known(metric: str) -> None:
    with pytest.raises(UserError, match=f"unknown metric '{metric}': known are bleu, chrf, ter$"):
        one_score(HYPOTHESES, REFERENCES, metric=metric)


def test_tokenised_hypotheses_are_warned_about_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        one_score(["a b c d ."] * 99, ["a b c d."] * 99)
        one_score(["a b c d ."] * 100, ["a b c d."] * 100, metric="chrf")
    assert caplog.messages == []
    with caplog.at_level(logging.WARNING):
        one_score(["a b c d ."] * 100, ["a b c d."] * 100)
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("100 hypotheses end in a separate full stop")


# --- direction -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_higher_is_better(metric: str) -> None:
    assert is_better(metric, 0.2, 0.1)
    assert not is_better(metric, 0.15, 0.2)


@pytest.mark.parametrize("metric", ["ter", "loss", "nll", "ppl"])
def test_lower_is_better(metric: str) -> None:
    assert is_better(metric, 2.0, 3.0)
    assert not is_better(metric, 2.5, 2.0)


@pytest.mark.parametrize(("metric", "values"), [("bleu", [0.1, 0.2, 0.15]), ("loss", [3.0, 2.0, 2.5])])
def test_best_of_three_is_the_second(metric: str, values: list[float]) -> None:
    best: float | None = None
    improved = []
    for value in values:
        improved.append(is_better(metric, value, best))
        best = value if improved[-1] else best
    assert improved == [True, True, False]


@pytest.mark.parametrize("metric", ["bleu", "ppl"])
def test_a_tie_or_nan_is_no_improvement(metric: str) -> None:
    assert not is_better(metric, 5.0, 5.0)
    assert not is_better(metric, math.nan, 5.0)
    assert not is_better(metric, math.nan, None)
    assert is_better(metric, 5.0, None)


def test_direction_of_an_unknown_metric_is_an_error_that_lists_those_known() -> None:
    with pytest.raises(UserError, match="unknown metric 'accuracy': known are bleu, chrf, ter, loss, nll, ppl"):
        is_better("accuracy", 1.0, None)


def test_a_score_and_the_table_of_metrics_agree_on_direction() -> None:
    for metric, lower_is_better in METRICS.items():
        result = one_score(HYPOTHESES, REFERENCES, metric=metric)
        assert result.lower_is_better is lower_is_better
        assert is_better(metric, 1.0, 2.0) is lower_is_better


# --- compounds -----------------------------------------------------------------------------------------------

COMPOUNDS = [
    ("rich-text format", "rich ##AT##-##AT## text format"),
    ("ab-cd-ef", "ab ##AT##-##AT## cd ##AT##-##AT## ef"),
    ("x-y-z", "x ##AT##-##AT## y-z"),  # the first match consumes y, so the second hyphen has no neighbour left
    ("ab-c-de", "ab ##AT##-##AT## c-de"),
    ("a-b-c-d-e", "a ##AT##-##AT## b-c ##AT##-##AT## d-e"),
    ("x-ü-z", "x ##AT##-##AT## ü ##AT##-##AT## z"),  # two bytes in the middle: one for each hyphen
    ("1-2-3 10-20", "1 ##AT##-##AT## 2-3 10 ##AT##-##AT## 20"),
    ("-Anfang", "-Anfang"),
    ("Ende-", "Ende-"),
    ("Nord- und Südsee", "Nord- und Südsee"),
    ("a - b", "a - b"),
    ("a -b c- d", "a -b c- d"),
    ("a--b", "a ##AT##-##AT## -b"),
    ("a---b", "a ##AT##-##AT## --b"),
    ("a----b", "a ##AT##-##AT## -- ##AT##-##AT## b"),
    ("--", "--"),
    ("---", "- ##AT##-##AT## -"),
    ("Nord-Süd-Ost-West", "Nord ##AT##-##AT## Süd ##AT##-##AT## Ost ##AT##-##AT## West"),
    ("(E-Mail)-Adresse", "(E ##AT##-##AT## Mail) ##AT##-##AT## Adresse"),
    ("a\u00a0-\u00a0b", "a\u00a0 ##AT##-##AT## \u00a0b"),  # to perl, reading bytes, a no-break space is no blank
    ("Geistes\u2013Blitz", "Geistes\u2013Blitz"),  # an en dash is no hyphen
    ("", ""),
]


@pytest.mark.parametrize(("line", "expected"), COMPOUNDS)
def test_compounds_are_split_as_worked_out_by_hand(line: str, expected: str) -> None:
    assert split_compounds(line) == expected


@pytest.mark.skipif(shutil.which("perl") is None, reason="needs perl")
def test_compounds_are_split_as_perl_does() -> None:
    lines = [line for line, _ in COMPOUNDS]
    output = subprocess.run(
        ["perl", "-ple", r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"],
        input="".join(f"{line}\n" for line in lines).encode(),
        capture_output=True,
        check=True,
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
    )
    assert [split_compounds(line) for line in lines] == output.stdout.decode().split("\n")[:-1]


# --- the paper's BLEU ----------------------------------------------------------------------------------------


@needs_sacremoses
def test_paper_bleu_on_a_case_worked_by_hand() -> None:
    # Tokens: Die / E ATAT Mail / kam / heute / . against the same with "gestern": 6 of 7 words match,
    # 4 of 6 pairs, 3 of 5 triples, 2 of 4 quadruples.
    result = paper(["Die E-Mail kam heute."], ["Die E-Mail kam gestern."], "de")
    assert result.details["hypothesis_length"] == result.details["reference_length"] == 7
    expected = 100 * (6 / 7 * 4 / 6 * 3 / 5 * 2 / 4) ** (1 / 4)
    assert result.value == pytest.approx(expected, abs=1e-9)
    assert (result.name, result.lower_is_better) == ("paper BLEU", False)


@needs_sacremoses
def test_french_compounds_stay_whole_and_apostrophes_split_to_the_left() -> None:
    # Tokens: C&apos; / est / peut-être / vrai / .
    result = paper(["C'est peut-être vrai."], ["C'est peut-être vrai."], "fr")
    assert result.value == 100.0
    assert result.details["hypothesis_length"] == 5


@needs_sacremoses
def test_paper_bleu_is_corpus_level_without_smoothing_and_case_sensitive() -> None:
    assert paper(["eins zwei drei"], ["eins zwei drei"], "de").value == 0.0  # no quadruple at all
    assert paper(["Eins zwei drei vier"], ["eins zwei drei vier"], "de").value == 0.0  # the only quadruple differs
    together = paper(["eins zwei drei", "eins zwei drei vier"], ["eins zwei drei", "eins zwei drei vier"], "de")
    assert together.value == 100.0


@needs_sacremoses
def test_paper_bleu_brevity_penalty() -> None:
    result = paper(["a b c d"], ["a b c d e f"], "de")
    assert result.value == pytest.approx(100 * math.exp(1 - 6 / 4))


@needs_sacremoses
def test_punctuation_is_replaced_in_the_hypothesis_only() -> None:
    plain, curly = 'Er sagt "ja" und geht weg', "Er sagt “ja” und geht weg"
    assert paper([curly], [plain], "de").value == 100.0
    assert paper([plain], [curly], "de").value < 100.0
    assert paper([curly], [curly], "de").value < 100.0


@needs_sacremoses
def test_markup_characters_are_escaped_as_by_default_in_moses() -> None:
    assert scores._paper_tokens(['a & b\'s [c] <d> "e" f|g'], ["x"], "de")[0] == [
        "a &amp; b &apos; s &#91; c &#93; &lt; d &gt; &quot; e &quot; f &#124; g"
    ]


@needs_sacremoses
@pytest.mark.parametrize(
    ("line", "target", "expected"),
    [
        # what Moses' tokenizer.perl of December 2016 prints
        ("Es war am 3. Oktober, z.B. in Berlin.", "de", "Es war am 3. Oktober , z.B. in Berlin ."),
        ("1.000,5 % usw.", "de", "1.000,5 % usw."),
        ("ging weg...", "de", "ging weg ..."),
        ("A,B,C,D,E 1,a a,1 3,5", "de", "A , B , C , D , E 1 , a a , 1 3,5"),
        ("qu'il l'a dit aujourd'hui ?", "fr", "qu&apos; il l&apos; a dit aujourd&apos; hui ?"),
    ],
)
def test_tokens_are_those_of_moses(line: str, target: str, expected: str) -> None:
    hypothesis_tokens, reference_tokens = scores._paper_tokens([line], [line], target)
    assert hypothesis_tokens == reference_tokens == [expected]


@needs_sacremoses
def test_paper_signature_states_every_step_and_version() -> None:
    fields = {
        target: dict(part.split(":", 1) for part in paper(["a b c d"], ["a b c d"], target).signature.split("|"))
        for target in ("de", "fr")
    }
    assert fields["de"] == {
        "nrefs": "1",
        "case": "mixed",
        "eff": "no",
        "tok": "moses-de",
        "sacremoses": version("sacremoses"),
        "punct": "unicode-replaced-in-hypothesis",
        "compounds": "atat",
        "smooth": "none",
        "version": version("sacrebleu"),
    }
    assert fields["fr"] == {**fields["de"], "tok": "moses-fr", "compounds": "no"}


@needs_sacremoses
def test_paper_bleu_says_nothing_about_its_tokenised_text(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    paper(["Das ist ein Satz ."] * 150, ["Das ist ein Satz."] * 150, "de")
    assert caplog.messages == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("source", "target"), [("en", "ru"), ("de", "en"), ("fr", "de"), ("en", "zh")])
def test_paper_bleu_is_for_its_two_pairs_only(source: str, target: str) -> None:
    assert paper_bleu(["a"], ["a"], source_language=source, target_language=target) is None


@needs_sacremoses
def test_paper_bleu_takes_languages_with_a_country() -> None:
    result = paper_bleu(["a b c d"], ["a b c d"], source_language="en-GB", target_language="de_AT")
    assert result is not None
    assert "tok:moses-de|" in result.signature


def test_without_sacremoses_the_paper_bleu_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacremoses", None)  # makes an import of it fail
    with pytest.raises(UserError, match=r"pip install 'transformer-mt\[moses\]'"):
        paper_bleu(["a"], ["a"], source_language="en", target_language="de")
    assert not paper_bleu_available()


def test_paper_bleu_refuses_unequal_counts_and_no_segments() -> None:
    with pytest.raises(UserError, match="2 hypotheses but 1 lines in reference 1"):
        paper_bleu(["a", "b"], ["a"], source_language="en", target_language="de")
    with pytest.raises(UserError, match="0 hypotheses"):
        paper_bleu([], [], source_language="en", target_language="fr")


# --- the reference side --------------------------------------------------------------------------------------


def test_digest_is_that_of_the_file(tmp_path: Path) -> None:
    lines = ["½ … zwei  Blanks ", "", "“quotes” \u2028 inside"]
    file = Path(write_lines(tmp_path / "reference", lines))
    assert corpus_digest(lines) == hashlib.sha256(file.read_bytes()).hexdigest()
    assert corpus_digest(iter(lines)) == corpus_digest(lines)


@pytest.mark.parametrize("changed", [["a b", "c "], ["a b c"], ["a b", "c", ""], ["c", "a b"], ["a  b", "c"]])
def test_digest_sees_every_change(changed: list[str]) -> None:
    assert corpus_digest(changed) != corpus_digest(["a b", "c"])


def test_digest_of_a_known_line() -> None:
    # printf 'abc\n' | sha256sum
    assert corpus_digest(["abc"]) == "edeaaff3f1774ad2888673770c6d64097e391bc362d7d6fb34982ddf0efd18cb"


def test_lines_of_white_space_count_as_empty() -> None:
    assert empty_lines(["a", "", "  ", "\t", "\u00a0", " b "]) == 4
    assert empty_lines([]) == 0

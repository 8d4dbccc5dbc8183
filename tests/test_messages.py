"""Both languages say everything, with the same values; errors carry both."""

import ast
import functools
import pickle
import re
import string
from collections import Counter
from pathlib import Path

import pytest

from repro_tutorial.messages import (
    InputError,
    Transcript,
    catalog,
    default_language,
    render,
    text,
)

ROOT = Path(__file__).parent.parent
SOURCES = [
    *(ROOT / "repro_tutorial").rglob("*.py"),
    *(ROOT / "demos").glob("*.py"),
    ROOT / "docs" / "hooks.py",
]


def fields(sentence: str) -> set[str]:
    return {name.split("[")[0] for _, name, _, _ in string.Formatter().parse(sentence) if name}


def test_both_languages_have_the_same_keys_and_values():
    english, chinese = catalog("en"), catalog("zh")
    assert english.keys() == chinese.keys()
    for key, sentence in english.items():
        if not key.startswith("argparse."):
            assert fields(sentence) == fields(chinese[key]), key


def test_chinese_sentences_are_chinese_with_full_width_punctuation():
    calls = re.compile(r"([\w.]+\([^()]*\)、?)+")  # code reads the same in every language
    for key, sentence in catalog("zh").items():
        if not key.startswith("argparse.") and not calls.fullmatch(sentence):
            assert re.search(r"[\u4e00-\u9fff]", sentence) or not re.search(
                "[a-z]{2}", re.sub(r"\{.*?\}", "", sentence)
            ), key
        # A half-width mark directly beside a Chinese character is a slip.
        assert not re.search(r"[\u4e00-\u9fff][,;:?!()]|[,;:?!()][\u4e00-\u9fff]", sentence), key


@functools.cache
def keys_in_code() -> set[str]:
    """Every string literal of the form section.key whose section exists."""
    sections = {key.split(".")[0] for key in catalog("en")}
    keys = set()
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            literal = node.value if isinstance(node, ast.Constant) else None
            if isinstance(literal, str) and re.fullmatch(r"[a-z_]+\.[a-z_]+", literal):
                section = literal.split(".")[0]
                if section in sections and not literal.endswith((".py", ".md", ".toml", ".testing")):
                    keys.add(literal)
    return keys


def test_every_key_that_the_code_names_exists():
    for key in keys_in_code():
        known = catalog("en")
        assert key in known or (key.endswith("_") and any(one.startswith(key) for one in known)), key


def test_every_sentence_is_used():
    """A sentence that nothing says is a leftover. Some keys are put together: those of help, argparse and so on."""
    together = re.compile(
        r"cli\.(help|about)_|argparse\.|errno\.|ineffective\.|compare\.(fingerprint_|identical$|differ$|unmatched$)|\w+\.about$|plots\.|site\."
    )
    beginnings = tuple(key for key in keys_in_code() if key.endswith("_"))  # of f-strings
    unused = {key for key in catalog("en") if key not in keys_in_code() and not key.startswith(beginnings)}
    assert {key for key in unused if not together.match(key)} == set()


def test_what_several_demos_say_is_one_sentence():
    """The same sentence under two keys parts when one of them is mended."""
    both = Counter((catalog("en")[key], catalog("zh")[key]) for key in catalog("en"))
    short = {", ", "none"}  # words, which mean something else in each place
    assert {english for (english, _), count in both.items() if count > 1} <= short


def test_an_error_says_the_same_in_both_languages_and_survives_pickling():
    error = InputError("cli.bad_count", given="'0'")
    again = pickle.loads(pickle.dumps(error))

    assert str(again) == str(error) == "needs a whole number from 1, but was given '0'"
    assert again.in_language("zh") == error.in_language("zh") == "需要一个不小于 1 的整数，收到的是 '0'"
    assert isinstance(again, ValueError)


def test_an_unknown_key_is_a_fault_not_an_empty_line():
    with pytest.raises(KeyError):
        text("cli.nothing")
    with pytest.raises(KeyError):
        text("cli.bad_count")


def test_a_transcript_renders_as_it_was_printed(capsys):
    out = Transcript("en")
    out.print("Device: cpu")
    out.say("demo.identical", runs=2)
    out.print()

    assert [render(line, "en") for line in out.lines] == capsys.readouterr().out.split("\n")[:-1]
    assert render(out.lines[1], "zh") == "2 次运行：逐位相同"


@pytest.mark.parametrize(
    ("variables", "lang"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "en_US.UTF-8"}, "en"),
        ({"LC_ALL": "C.UTF-8", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LC_ALL": "", "LC_MESSAGES": "zh_TW", "LANG": "en_US"}, "zh"),
    ],
)
def test_the_locale_decides_the_language(variables, lang, monkeypatch):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_language() == lang

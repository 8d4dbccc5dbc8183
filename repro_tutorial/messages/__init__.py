"""Everything the tools say to a person, in English and Chinese.

The sentences stand in ``en.toml`` and ``zh.toml`` beside this file, one key for both languages. What a
program printed is kept as keys and values, so that a recorded run reads as the terminal did in either
language.
"""

import errno
import functools
import locale
import os
import sys
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import TypeAlias

LANGUAGES = ("en", "zh")

Line: TypeAlias = str | Mapping[str, object]
"""A printed line: text that reads the same in every language, or ``{"key": ..., "values": {...}}``."""


@functools.cache
def catalog(lang: str) -> Mapping[str, str]:
    """All sentences of one language, by ``section.key``; `lang` is one of `LANGUAGES`."""
    source = resources.files(__name__).joinpath(f"{lang}.toml").read_text(encoding="utf-8")
    sections = tomllib.loads(source)
    return {
        f"{section}.{key}": sentence
        for section, sentences in sections.items()
        for key, sentence in sentences.items()
    }


def text(key: str, lang: str = "en", **values: object) -> str:
    """The sentence `key` in `lang`, with `values` filled in: lists joined, lines of their own rendered.

    Raises:
        KeyError: no such sentence, or a value that it needs is not given.
    """
    return catalog(lang)[key].format(**{name: _shown(value, lang) for name, value in values.items()})


def render(line: Line, lang: str) -> str:
    """A recorded line as the terminal showed it, in `lang`."""
    if isinstance(line, str):
        return line
    values = line.get("values", {})
    assert isinstance(values, Mapping)
    return text(str(line["key"]), lang, **values)


def _shown(value: object, lang: str) -> object:
    if isinstance(value, Mapping):
        return render(value, lang)
    if isinstance(value, list | tuple):
        return catalog(lang)["cli.comma"].join(map(str, value))
    return value


def os_problem(error: OSError) -> Line:
    """What the operating system complains of, in words that exist in every language where it is a usual one."""
    key = f"errno.{errno.errorcode.get(error.errno or 0)}"
    return {"key": key} if key in catalog("en") else str(error.strerror)


def default_language() -> str:
    """``"zh"`` where the locale is Chinese, else ``"en"``.

    The variables are read in POSIX's order of precedence; without any (Windows) the locale that Python
    started with decides.
    """
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
        if name := os.environ.get(variable):
            break
    else:
        name = locale.getlocale()[0] or ""
    return "zh" if name.lower().startswith(("zh", "chinese")) else "en"


class InputError(ValueError):
    """A mistake that its reader can mend, told in one line.

    The line says what was being done, with which value, and what to do. ``str(error)`` is English;
    `in_language` gives the same line in another.
    """

    def __init__(self, key: str, **values: object) -> None:
        super().__init__(text(key, "en", **values))
        self.key = key
        self.values = values

    def in_language(self, lang: str) -> str:
        """The line in `lang`."""
        return text(self.key, lang, **self.values)

    def __reduce__(self) -> tuple[object, tuple[()]]:
        # The default would rebuild the error from its sentence instead of its key.
        return functools.partial(InputError, self.key, **self.values), ()


class Transcript:
    """Prints in one language, and keeps what it printed in a form that renders in every language."""

    def __init__(self, lang: str) -> None:
        self.lang = lang
        self.lines: list[Line] = []

    def print(self, line: str = "") -> None:
        """Print text that reads the same in every language."""
        self._add(line)

    def say(self, key: str, **values: object) -> None:
        """Print the sentence `key` with `values`."""
        self._add({"key": key, "values": values})

    def _add(self, line: Line) -> None:
        self.lines.append(line)
        try:
            print(render(line, self.lang), flush=True)
        except BrokenPipeError:  # its reader, such as `head`, has seen enough; the work goes on
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

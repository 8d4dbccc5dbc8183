"""What the site's build does that MkDocs does not: resolve directives, and mend defects of plug-ins.

A page holds no number and no listing. It names them, ``{{ value line_fit.cpu:seeded.results.runs }}``
or ``{{ code demos/line_fit.py:fit }}``, and the build fetches them in the page's language, or fails.
``python docs/hooks.py --stamp`` marks every Chinese page as written from the English page as it now is.
"""

import ast
import hashlib
import json
import posixpath
import re
import sys
import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import Environment
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.pages import Page

from repro_tutorial import lessons as manifest, messages, runs, site_figures
from repro_tutorial.doctor.kinds import LESSONS, Cause
from repro_tutorial.doctor.report import SEED_CALLS, advice

ROOT = Path(__file__).parents[1]
DIRECTIVE = re.compile(r"\{\{ *(\w*) *(.*?) *\}\}")
STAMP = re.compile(r'^source_sha: "(\w*)"$', re.MULTILINE)


@dataclass
class Place:
    """The page that a directive stands on, and the records that the page has quoted so far."""

    uri: str
    lang: str
    words: Mapping[str, str]
    templates: Environment
    inline: bool = False
    quoted: list[runs.Record] = field(default_factory=list)

    def record(self, name: str) -> runs.Record:
        """The record that `lesson.platform:experiment` names."""
        stem, _, experiment = name.partition(":")
        experiments = runs.load_experiments(ROOT / "docs/assets/records" / f"{stem}.json")
        self.quoted.append(experiments[experiment])
        return experiments[experiment]

    def render(self, template: str, **values: object) -> str:
        """A template of overrides/directives, in the page's language."""
        template = f"directives/{template}.html"
        return self.templates.get_template(template).render(lang=self.lang, words=self.words, **values)


def code(place: Place, name: str) -> str:
    """A function, a class, or the block of constants around a name, cut out of a Python file."""
    path, _, symbol = name.partition(":")
    lines = (ROOT / path).read_text("utf-8").splitlines()
    for node in ast.parse("\n".join(lines)).body:
        first, last = node.lineno, node.end_lineno or node.lineno
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == symbol:
            first = min(part.lineno for part in (node, *node.decorator_list))
        elif isinstance(node, ast.Assign) and symbol in map(ast.unparse, node.targets):
            while first > 1 and lines[first - 2]:
                first -= 1
            while last < len(lines) and lines[last]:
                last += 1
        else:
            continue
        return _fence(f'python title="{path}"', lines[first - 1 : last])
    raise LookupError(f"{path} has no function, class or constant {symbol!r}")


def command(place: Place, name: str) -> str:
    """The command that made a record."""
    line = place.record(name).command
    return f"`{line}`" if place.inline else _fence("sh", [line])


def output(place: Place, name: str, lines: str = ":") -> str:
    """What a recorded run printed, in the page's language; `lines` may cut it, as in ``0:12``."""
    shown = place.record(name).transcript[_cut(lines)]
    return _fence("text", [messages.render(line, place.lang) for line in shown])


def value(place: Place, name: str, spec: str = "") -> str:
    """One number or text of a record, formatted as Python formats it by `spec`."""
    stem, _, path = name.partition(":")
    experiment, *keys = path.split(".")
    found: Any = place.record(f"{stem}:{experiment}").to_json()
    for key in keys:
        found = found[int(key) if isinstance(found, list) else key]
    if isinstance(found, dict | list | None):
        raise LookupError(f"{name} is not one value but {type(found).__name__}")
    return format(found, spec)


def figure(place: Place, name: str, kind: str, of: str = ":") -> str:
    """A plot of a record, drawn for wide and for narrow boxes (CSS shows the one that fits), and its data.

    `of` may choose some of its runs, as in ``0:2``.
    """
    record = place.record(name)
    record = replace(record, runs=record.runs[_cut(of)])
    return place.render(
        "figure",
        draw=lambda width: site_figures.figure_svg(kind, record, place.lang, width),
        table=site_figures.figure_table(kind, record, place.lang),
        command=record.command,
    )


def lessons(place: Place) -> str:
    """The map of the lessons, in teaching order."""
    folder = posixpath.relpath(f"{place.lang}/lessons", posixpath.dirname(place.uri))
    return place.render("lessons", lessons=manifest.load_lessons(ROOT), folder=folder)


def glossary(place: Place) -> str:
    """The terms in both languages; each one's heading is an anchor."""
    terms = tomllib.loads((ROOT / "docs/glossary.toml").read_text("utf-8"))["term"]
    return place.render("glossary", terms=sorted(terms, key=lambda term: str(term["en"]).lower()))


def program(place: Place, name: str) -> str:
    """A planted program of the doctor's tests, without the marks that the tests read."""
    lines = (ROOT / "tests/planted" / name / "train.py").read_text("utf-8").splitlines()
    shown = [
        re.sub(r" *# culprit.*", "", line) for line in lines if not line.startswith(("# kinds", "# options"))
    ]
    return _fence('python title="train.py"', shown)


def report(place: Place, name: str) -> str:
    """What the doctor said of a planted program when its reports were recorded, in the page's language."""
    recorded = json.loads((ROOT / "docs/assets/reports.json").read_text("utf-8"))
    return _fence("text", recorded["reports"][name][place.lang])


def causes(place: Place) -> str:
    """Every cause that the doctor names, with what to do and the lesson that explains it."""
    titles = {lesson.slug: lesson.title[place.lang] for lesson in manifest.load_lessons(ROOT)}
    rows = []
    for kind, slug in LESSONS.items():
        generator = kind.removeprefix("unseeded_")
        cause = Cause(kind, "", None, True, generator if generator in SEED_CALLS else "")
        rows.append((kind, advice(cause, place.lang), slug))
    folder = posixpath.relpath(f"{place.lang}/lessons", posixpath.dirname(place.uri))
    return place.render("causes", rows=rows, titles=titles, folder=folder, text=messages.text)


def _cut(written: str) -> slice:
    return slice(*(int(number) if number else None for number in written.split(":")))


def _fence(info: str, lines: Sequence[str]) -> str:
    return "\n".join([f"```{info}", *lines, "```"])


DIRECTIVES: dict[str, Callable[..., str]] = {
    function.__name__: function
    for function in (code, command, output, value, figure, lessons, glossary, program, report, causes)
}


def on_config(config: MkDocsConfig) -> None:
    """Refuse to build a search that finds no Chinese; the theme would build it without a word."""
    if find_spec("jieba") is None:
        raise PluginError("Chinese search needs jieba: pip install -e '.[docs]'")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Replace each directive; one that fills its line may become a block. Say where the records were made."""
    uri = page.file.src_uri
    place = Place(uri, uri.partition("/")[0], config.extra["words"], config.theme.get_env())

    def resolve(match: re.Match[str]) -> str:
        name, arguments = match.groups()
        try:
            return DIRECTIVES[name](place, *arguments.split())
        except Exception as error:  # whatever went wrong, the author needs to know where
            raise PluginError(f"{uri}: cannot resolve {match[0]}: {type(error).__name__}: {error}") from error

    written = []
    for line in markdown.splitlines():
        place.inline = DIRECTIVE.fullmatch(line.strip()) is None
        indent = "" if place.inline else line[: len(line) - len(line.lstrip())]
        written.append(textwrap.indent(DIRECTIVE.sub(resolve, line.removeprefix(indent)), indent))
    for record in place.quoted:
        note = place.words["recorded"].format(recorded=record.recorded, **record.environment)
        if note not in written:
            written += ["", note, "{.recorded}"]
    return "\n".join(written)


@event_priority(0)  # after i18n
def on_page_context(context: Any, page: Page, config: MkDocsConfig, **_: object) -> None:
    """Make the language links of home pages relative too: i18n starts them at the server's root."""
    alternates = page.file.alternates  # type: ignore[attr-defined]  # set by i18n
    config.extra.alternate = [  # type: ignore[attr-defined]  # i18n sets the attribute beside the key
        {**link, "link": alternates[link["lang"]].url} for link in config.extra["alternate"]
    ]


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """Keep the 404.html of the first language, not the last; write no sitemap without an address."""
    unwanted = config.theme["language"] != "en" if template_name == "404.html" else not config.site_url
    return "" if unwanted else output_content


@event_priority(-200)  # after i18n has merged the languages
def on_post_build(config: MkDocsConfig) -> None:
    """Write the search index as a script, which a page opened from disk may load; and the figures' colors."""
    site = Path(config.site_dir)
    index = (site / "search/search_index.json").read_text("utf-8")
    (site / "search/search_index.js").write_text(f"var __index = {index}", "utf-8")
    (site / "assets/css/plots.css").write_text(site_figures.css_variables(), "utf-8")


def english_sha(chinese: Path) -> str:
    """What `source_sha` of a Chinese page has to be: a hash of the English page's text."""
    english = ROOT / "docs/en" / chinese.relative_to(ROOT / "docs/zh")
    return hashlib.sha256(english.read_bytes()).hexdigest()[:12]


def stamp() -> None:
    """Write `source_sha` into every Chinese page."""
    for path in (ROOT / "docs/zh").rglob("*.md"):
        text = path.read_text("utf-8")
        path.write_text(STAMP.sub(f'source_sha: "{english_sha(path)}"', text, count=1), "utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--stamp"]:
        raise SystemExit("usage: python docs/hooks.py --stamp")
    stamp()

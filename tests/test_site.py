"""The site's sources are equal in structure in both languages, and its build refuses what is wrong."""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from mkdocs.utils.yaml import get_yaml_loader, yaml_load
from site_fixtures import LANGUAGES, PAGES, ROOT, build, build_once, copy_sources, load_hooks

from repro_tutorial.lessons import load_lessons

hooks = load_hooks()
CJK = r"[\u3400-\u9fff]"
FENCE = re.compile(r"^( *)(```+|~~~+) *([\w-]*).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
FRONT_MATTER = re.compile(r"\A---\n.*?^---\n", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    return build_once(tmp_path_factory)


@pytest.fixture(scope="session")
def settings() -> dict:
    with (ROOT / "mkdocs.yml").open(encoding="utf-8") as file:
        return yaml_load(file, get_yaml_loader())


def read(lang: str, page: str) -> str:
    return (ROOT / "docs" / lang / page).read_text("utf-8")


def html_pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


# Two languages -------------------------------------------------------------------------------------------


def sections(text: str) -> list[dict[str, object]]:
    """What a translation may not change, per section: the order of sentences may differ, so links are sorted."""
    fences = [match[3] for match in FENCE.finditer(text)]
    text = FENCE.sub("\n", FRONT_MATTER.sub("", text))
    parts = re.split(r"^(#+) .*?(?:\{ *#([\w-]+) *\})?$", text, flags=re.MULTILINE)
    found: list[dict[str, object]] = [{"fences of the page": fences}]
    for level, anchor, body in zip(["", *parts[1::3]], ["", *parts[2::3]], parts[0::3], strict=True):
        found.append(
            {
                "heading": f"{level} #{anchor}",
                "directives": sorted(hooks.DIRECTIVE.findall(body)),
                "links": sorted(re.findall(r"\]\(([^)]*)\)", body)),
                "notes": re.findall(r"^ *(?:!!!|\?\?\?\+?|===) *([\w-]*)", body, re.MULTILINE),
                "tables": len(re.findall(r"^ *\|[-: |]+\|$", body, re.MULTILINE)),
                "list items": Counter(re.findall(r"^ *(?:(\d)+\.|[-*]) ", body, re.MULTILINE)),
                "tags": re.findall(r"<\w+[^>]*>", body),
                "classes": re.findall(r"^ *\{: *\.([\w-]+) *\}|^ *\{\.([\w-]+)\}$", body, re.MULTILINE),
            }
        )
    return found


def test_both_languages_have_the_same_pages() -> None:
    """Where a Chinese page is missing, the build puts the English one in its place and says nothing."""
    chinese = {path.relative_to(ROOT / "docs/zh").as_posix() for path in (ROOT / "docs/zh").rglob("*.md")}

    assert chinese == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_both_languages_have_the_same_structure(page: str) -> None:
    """A page that is mended in one language alone: a section, a quote, a link that the other lacks."""
    assert sections(read("zh", page)) == sections(read("en", page))


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("page", PAGES)
def test_every_heading_has_an_id_of_its_own(lang: str, page: str) -> None:
    """Without {#id} the anchor comes from the words, so links break when the words or the language change."""
    text = FENCE.sub("\n", read(lang, page))
    headings = re.findall(r"^#+ .*$", text, re.MULTILINE)
    ids = re.findall(r"^#+ .*\{#([a-z0-9-]+)\}$", text, re.MULTILINE)

    assert len(ids) == len(headings) == len(set(ids))


@pytest.mark.parametrize("page", PAGES)
def test_chinese_page_follows_the_english_page_as_it_is(page: str) -> None:
    """An English page that moved on while its translation stayed behind: readers cannot see that."""
    path = ROOT / "docs/zh" / page
    stamp = hooks.STAMP.search(path.read_text("utf-8"))

    assert stamp, f'docs/zh/{page} needs the line `source_sha: ""` in its front matter, then `make stamp`'
    assert stamp[1] == hooks.english_sha(path), (
        f"docs/en/{page} has changed since docs/zh/{page} was written from it: "
        "bring the Chinese page up to date, then run `make stamp` (python docs/hooks.py --stamp)"
    )


def test_stamp_marks_a_page_as_up_to_date(tmp_path: Path) -> None:
    """The remedy that the message above names must work, and touch nothing but the stamp."""
    root = copy_sources(tmp_path)
    (root / "docs/en/index.md").write_text("# Changed {#question}\n", "utf-8")
    before = (root / "docs/zh/index.md").read_text("utf-8")

    subprocess.run([sys.executable, root / "docs/hooks.py", "--stamp"], check=True)

    after = (root / "docs/zh/index.md").read_text("utf-8")
    assert after != before
    assert hooks.STAMP.sub("", after) == hooks.STAMP.sub("", before)


def test_both_languages_have_the_same_words_around_the_pages(settings: dict) -> None:
    """A word that templates use and one language lacks would vanish from its pages."""
    i18n = next(plugin["i18n"] for plugin in settings["plugins"] if "i18n" in plugin)
    english, chinese = (language["extra"]["words"] for language in i18n["languages"])

    assert english.keys() == chinese.keys()
    for key, word in english.items():
        assert sorted(re.findall(r"\{\w+\}", word)) == sorted(re.findall(r"\{\w+\}", chinese[key]))


# Chinese text --------------------------------------------------------------------------------------------


def chinese_texts() -> Iterator[tuple[str, str]]:
    """Everything Chinese in docs/ and mkdocs.yml, without code, markup and what the build puts in."""
    for page in PAGES:
        text = FENCE.sub("\n", FRONT_MATTER.sub("", read("zh", page)))
        text = re.sub(r"^ *\{\{[^}]*\}\} *$", "\n", text, flags=re.MULTILINE)
        text = hooks.DIRECTIVE.sub("0", text)
        text = re.sub(r"^ *(?:!!!|\?\?\?\+?|===) *[\w-]*", "", text, flags=re.MULTILINE)
        text = re.sub(r"`[^`\n]*`", "`code`", text)
        text = re.sub(r"\]\([^)]*\)|\{[#.:][^}]*\}|<[^>]+>", "", text)
        yield page, text
    for term in tomllib.loads((ROOT / "docs/glossary.toml").read_text("utf-8"))["term"]:
        yield f"glossary.toml {term['id']}", f"{term['zh']}\n\n{term['meaning_zh']}"
    yield (
        "mkdocs.yml",
        "\n\n".join(re.findall(rf"^.*{CJK}.*$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M)),
    )


def test_chinese_has_full_width_punctuation() -> None:
    """中文,这样写 reads as a slip; half-width marks belong to code and to Latin text."""
    pattern = re.compile(rf".{{0,9}}(?:{CJK}[,.?!;()]|{CJK}:(?! )|[,.?!:;()]{CJK}).{{0,9}}")
    slips = [(name, slip) for name, text in chinese_texts() for slip in pattern.findall(text)]

    assert not slips


def test_chinese_lines_are_not_broken_within_a_paragraph() -> None:
    """A line break in the source becomes a space on the page, in the middle of a sentence."""
    pattern = re.compile(rf".{{0,9}}[\u3000-\u9fff\uff00-\uffef]\n *(?![-*\d!?#|]|\n){CJK}.{{0,9}}")
    breaks = [(name, found) for name, text in chinese_texts() for found in pattern.findall(text)]

    assert not [entry for entry in breaks if entry[0] != "mkdocs.yml"]


@pytest.mark.parametrize("page", PAGES)
def test_chinese_page_has_no_paragraph_in_another_language(page: str) -> None:
    """A paragraph copied from the English page and left there."""
    text = dict(chinese_texts())[page]
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if re.search(r"\w", part)]

    assert paragraphs
    assert not [part for part in paragraphs if not re.search(CJK, part)]


# Glossary ------------------------------------------------------------------------------------------------


def test_glossary_has_one_word_for_each_idea(site: Path) -> None:
    """One Chinese term for two English ones, or the reverse, and readers take two ideas for one."""
    terms = tomllib.loads((ROOT / "docs/glossary.toml").read_text("utf-8"))["term"]
    pages = {
        lang: (site / folder / "glossary.html").read_text("utf-8")
        for lang, folder in (("en", ""), ("zh", "zh"))
    }

    for key in ("id", "en", "zh", "meaning_en", "meaning_zh"):
        values = [term[key].strip().lower() for term in terms]
        assert all(values)
        assert len(values) == len(set(values)), f"{key} is not unique"
    for term in terms:
        assert re.search(CJK, term["zh"])
        assert re.search(CJK, term["meaning_zh"])
        assert not re.search(CJK, term["en"] + term["meaning_en"])
        for lang, page in pages.items():
            assert f'id="{term["id"]}"' in page
            assert term[lang] in page


# Directives ----------------------------------------------------------------------------------------------


@pytest.fixture
def place() -> object:
    return hooks.Place("en/index.md", "en", {"recorded": ""}, None)


def cut(place: object, monkeypatch: pytest.MonkeyPatch, path: Path, symbol: str) -> list[str]:
    monkeypatch.setattr(hooks, "ROOT", path.parent)
    return hooks.code(place, f"{path.name}:{symbol}").splitlines()[1:-1]


def test_code_is_cut_by_name(place, monkeypatch, tmp_path: Path) -> None:
    """A quote without its decorator, or of half a block of constants, teaches something else."""
    demo = tmp_path / "demo.py"
    demo.write_text(
        '"""Demo."""\n\nA = 1  # one\n# two\nB = 2\n\n\n@decorated\ndef f():\n    return 1\n\n\nclass C:\n    x = 0\n'
    )

    assert (
        cut(place, monkeypatch, demo, "A")
        == cut(place, monkeypatch, demo, "B")
        == ["A = 1  # one", "# two", "B = 2"]
    )
    assert cut(place, monkeypatch, demo, "f") == ["@decorated", "def f():", "    return 1"]
    assert cut(place, monkeypatch, demo, "C") == ["class C:", "    x = 0"]
    with pytest.raises(LookupError, match=r"demo\.py has no function, class or constant 'gone'"):
        hooks.code(place, "demo.py:gone")


def test_value_is_one_number_or_text(place) -> None:
    """A dictionary or a list printed into a sentence."""
    assert hooks.value(place, "line_fit.cpu:seeded.runs.0.seed") == "3"
    assert hooks.value(place, "line_fit.cpu:seeded.runs.0.metrics.loss.0", ".3g") == "1.42e+04"
    with pytest.raises(LookupError, match="is not one value but dict"):
        hooks.value(place, "line_fit.cpu:seeded.results")
    with pytest.raises(LookupError, match="is not one value but NoneType"):
        hooks.value(place, "line_fit.cpu:seeded.results.divergence.first_step")


def test_output_is_rendered_in_the_language_of_its_page(place) -> None:
    """An English verdict on a Chinese page."""
    place.lang = "zh"
    printed = hooks.output(place, "line_fit.cpu:seeded")

    assert "逐位相同" in printed
    assert "identical" not in printed
    assert hooks.output(place, "line_fit.cpu:seeded", "0:2").splitlines()[2:-1] == ["Device: cpu"]


def test_resolving_directives_does_not_load_torch() -> None:
    """The site is built where PyTorch is not installed, and quickly where it is."""
    script = "import runpy, sys; runpy.run_path('docs/hooks.py'); sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", script], cwd=ROOT).returncode == 0


# The build -----------------------------------------------------------------------------------------------


def break_links(root: Path) -> None:
    for lang in LANGUAGES:
        replace(root / "docs" / lang / "index.md", "glossary.md#generator", "glossary.md#gone")
    (root / "docs/en/lost.md").write_text("# Lost {#lost}\n", "utf-8")


def rename_function(root: Path) -> None:
    replace(root / "demos/line_fit.py", "def fit(", "def refit(")


def name_unknown_field(root: Path) -> None:
    replace(root / "docs/en/index.md", ".first_step", ".gone")


def name_unknown_figure(root: Path) -> None:
    append(root / "docs/en/index.md", "{{ figure line_fit.cpu:seeded gone }}")


def name_unknown_directive(root: Path) -> None:
    append(root / "docs/en/index.md", "A sentence with {{ gone line_fit }}.")


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def append(path: Path, line: str) -> None:
    path.write_text(f"{path.read_text('utf-8')}\n{line}\n", "utf-8")


# What breaks the sources, and what the build has to say.
BREAKS: dict[Callable[[Path], None], tuple[str, ...]] = {
    break_links: (
        r"'en/index\.md' contains a link 'glossary\.md#gone', but .* does not contain an anchor",
        r"'zh/index\.md' contains a link 'glossary\.md#gone', but .* does not contain an anchor",
        r"not included in the \"nav\"[^|]*lost\.md",
    ),
    rename_function: (
        r"lessons/line_fit\.md: cannot resolve \{\{ code demos/line_fit\.py:fit \}\}: .*'fit'",
    ),
    name_unknown_field: (r"en/index\.md: cannot resolve \{\{ value .*\.gone \}\}: KeyError: 'gone'",),
    name_unknown_figure: (r"en/index\.md: cannot resolve \{\{ figure .* gone \}\}: InputError: .*'gone'",),
    name_unknown_directive: (r"en/index\.md: cannot resolve \{\{ gone line_fit \}\}: KeyError: 'gone'",),
}


@pytest.fixture(scope="module")
def broken_builds(tmp_path_factory) -> dict[Callable[[Path], None], subprocess.CompletedProcess[str]]:
    def run(mutate: Callable[[Path], None]) -> subprocess.CompletedProcess[str]:
        root = copy_sources(tmp_path_factory.mktemp(mutate.__name__))
        mutate(root)
        return build(root, root / "site")

    tmp_path_factory.getbasetemp()  # made now, since threads would race to make it
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(BREAKS, pool.map(run, BREAKS), strict=True))


@pytest.mark.parametrize("mutate", BREAKS, ids=lambda mutate: mutate.__name__)
def test_strict_build_fails_on(mutate: Callable[[Path], None], broken_builds) -> None:
    """With the default settings `--strict` passes on most of these, and the text goes missing from the page."""
    result = broken_builds[mutate]

    assert result.returncode != 0
    for message in BREAKS[mutate]:
        assert re.search(message, result.stdout + result.stderr)


def test_navigation_lists_the_lessons_in_teaching_order(settings: dict) -> None:
    """The sidebar and the map of lessons on the home page are two lists."""
    listed = next(part["Lessons"] for part in settings["nav"] if "Lessons" in part)

    assert listed == [f"lessons/{lesson.slug}.md" for lesson in load_lessons(ROOT) if not lesson.planned]


class Loads(HTMLParser):
    """The addresses that a page makes the browser fetch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed", "use"):
            self.found += [value for key in ("src", "href", "srcset") if (value := named.get(key))]
        if tag == "link" and not {"canonical", "alternate"} & set((named.get("rel") or "").split()):
            self.found.append(named.get("href") or "")


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    """Fonts and scripts from a public host: pages that wait for tens of seconds in China, and tell who reads."""
    for path in html_pages(site):
        assert not [address for address in Loads(path).found if re.match(r"(https?:)?//", address)], path
    for path in site.rglob("*.css"):
        assert not re.search(r"@import|url\([\"']?(https?:)?//", path.read_text("utf-8")), path


def test_built_pages_need_no_server(site: Path) -> None:
    """From disk there are no folders' index pages, no root, and no fetch: links name files, search is a script."""
    for path in html_pages(site):
        if path.name == "404.html":
            continue
        links = re.findall(r'href="([^"#?]+)', path.read_text("utf-8"))
        ours = [link for link in links if not re.match(r"\w+:", link)]
        assert not [link for link in ours if link.startswith("/") or not (path.parent / link).is_file()], path
    index = (site / "search/search_index.js").read_text("utf-8")
    assert json.loads(index.removeprefix("var __index = ")) == json.loads(
        (site / "search/search_index.json").read_text("utf-8")
    )


def test_every_page_links_to_itself_in_the_other_language(site: Path) -> None:
    """The plug-in links home pages by a path from the server's root; the theme asks for a sitemap at each link."""
    for page in PAGES:
        name = page.replace(".md", ".html")
        for path, here, there in ((name, "en", f"zh/{name}"), (f"zh/{name}", "zh", name)):
            text = (site / path).read_text("utf-8")
            (link,) = re.findall(r'<a class="language" href="([^"]+)"', text)
            assert ((site / path).parent / link).resolve() == (site / there).resolve(), path
            assert f'<html lang="{here}"' in text
            assert 'rel="alternate"' not in text


def test_one_404_page_serves_both_languages(site: Path) -> None:
    """The language built last would write its own over it."""
    (page,) = site.rglob("404.html")
    text = page.read_text("utf-8")

    assert page.parent == site
    assert "No page here" in text
    assert "页面不存在" in text


def test_sitemap_is_written_only_for_a_known_address(site: Path) -> None:
    """Without an address the addresses in it begin with None."""
    unknown, english = (
        SimpleNamespace(site_url="", theme={"language": "en"}),
        (site / "sitemap.xml").read_text(),
    )

    assert english.count("<loc>https://example.org/repro/") == 2 * len(PAGES)
    assert hooks.on_post_template("<urlset>", "sitemap.xml", unknown) == ""
    assert hooks.on_post_template("<html>", "404.html", unknown) == "<html>"


def test_only_what_is_meant_for_readers_is_published(site: Path) -> None:
    """Hooks, templates and bytecode in the built site."""
    assert not [path for path in site.rglob("*") if path.suffix in (".py", ".pyc", ".toml", ".md")]
    assert not (site / "overrides").exists()


def test_pages_say_where_their_numbers_come_from(site: Path) -> None:
    """A number without its versions and processor cannot be checked by anyone."""
    for page in PAGES:
        for lang, folder in (("en", ""), ("zh", "zh")):
            quotes = re.search(r"\{\{ *(command|output|value|figure) ", read(lang, page))
            text = (site / folder / page.replace(".md", ".html")).read_text("utf-8")
            assert ('<p class="recorded">' in text) == bool(quotes), page

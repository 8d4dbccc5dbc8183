"""What a reader's browser makes of the site: no faults, no outside requests, search and links that work."""

import functools
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright
from site_fixtures import PAGES, PREFIX, build_once

ADDRESSES = [address.replace(".md", ".html") for page in PAGES for address in (page, f"zh/{page}")]
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa", "best-practice"]
COLORS = ["color-contrast", "link-in-text-block"]  # the rules whose findings the color scheme can change
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    return build_once(tmp_path_factory)


@pytest.fixture(scope="session")
def server(site: Path) -> Iterator[str]:
    """The address of the site, which lies in a folder of its server, as project sites do."""

    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            if not path.startswith(PREFIX):
                return str(site / "nothing outside the folder")
            return super().translate_path(path.removeprefix(PREFIX.rstrip("/")))

        def send_error(self, code: int, *_: object) -> None:
            body = (site / "404.html").read_bytes()
            self.send_response(code)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=site)) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}{PREFIX}"
        running.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        missing = f"none of {', '.join(names)} is installed"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield running
        running.close()


@dataclass
class Visit:
    """A page, and what happened while it was open."""

    page: Page
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@contextmanager
def visiting(
    browser: Browser, width: int = 1280, scheme: Literal["light", "dark"] = "light"
) -> Iterator[Visit]:
    """A fresh visitor, who has chosen no colors yet."""
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(10_000)
    seen = Visit(page)
    page.on("console", lambda message: seen.console.append(message.text))
    page.on("pageerror", lambda error: seen.console.append(str(error)))
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("requestfailed", lambda request: seen.failures.append(request.url))
    page.on(
        "response",
        lambda got: seen.failures.append(got.url) if got.status >= HTTPStatus.BAD_REQUEST else None,
    )
    yield seen
    context.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    with visiting(browser) as seen:
        yield seen


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("address", [*ADDRESSES, "404.html"])
def test_page_is_clean(address: str, scheme: Literal["light", "dark"], browser: Browser, server: str) -> None:
    """Console messages, requests to other hosts, axe findings, sideways scroll: on no page, in no look."""
    with visiting(browser, 1280, scheme) as visit:
        visit.page.goto(server + address, wait_until="networkidle")
        shown = "slate" if scheme == "dark" else "default"
        expect(visit.page.locator("body")).to_have_attribute("data-md-color-scheme", shown)

        for width in (1280, 360):
            visit.page.set_viewport_size({"width": width, "height": 800})
            rules = RULES if scheme == "light" else COLORS
            findings = Axe().run(visit.page, options={"runOnly": rules, "resultTypes": ["violations"]})
            assert findings.violations_count == 0, f"{width} px:\n{findings.generate_report()}"
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        assert not visit.console
        assert not visit.failures
        assert not [url for url in visit.requests if not url.startswith(server)]


@pytest.mark.parametrize("width", [360, 1280])
def test_one_drawing_of_each_figure_is_shown(width: int, visit: Visit, server: str) -> None:
    """Both drawings at once, for the eye or for a screen reader, or none."""
    visit.page.set_viewport_size({"width": width, "height": 800})
    visit.page.goto(server + "lessons/line_fit.html")
    figures = visit.page.locator("figure.plot")

    assert figures.count() > 0
    for figure in figures.all():
        assert [drawing.is_visible() for drawing in figure.locator("svg").all()].count(True) == 1
        expect(figure.get_by_role("img")).to_have_count(1)
        expect(figure.get_by_role("img")).to_have_accessible_name(re.compile(r"\w+ .*\d"))
        figure.locator("summary").click()
        expect(figure.get_by_role("table")).to_be_visible()
        assert figure.get_by_role("row").count() > 1


# Search --------------------------------------------------------------------------------------------------

# Words from the middle of sentences, and the page that has to be found.
WORDS = [
    ("shuffled", "index.html"),
    ("threads arrive", "index.html"),
    ("use_deterministic_algorithms", "index.html"),
    ("结合律", "zh/index.html"),
    ("初始权重", "zh/index.html"),
    ("随机失活", "zh/index.html"),
    ("种子", "zh/index.html"),
    ("处理器", "zh/index.html"),
    ("可复现", "zh/glossary.html"),
    ("不一样", "zh/index.html"),
    ("怎么设置种子", "zh/lessons/line_fit.html"),
    ("随机种子", "zh/glossary.html"),
    ("初始化", "zh/index.html"),
]


def expect_found(page: Page, words: str, address: str) -> None:
    """Search as a reader does: type, and see the page at `address` among the results."""
    query = page.locator("input.md-search__input")
    for text in ("", words):
        query.fill(text)
        query.press("End")  # the theme listens to keys
        if not text:
            expect(page.locator("a.md-search-result__link")).to_have_count(0)
    expect(page.locator(f'a.md-search-result__link[href^="{address}?"]').first, words).to_be_attached()


@pytest.mark.parametrize("start", ["glossary.html", "zh/glossary.html"])
def test_search_finds_words_of_both_languages(start: str, visit: Visit, server: str) -> None:
    """Without jieba, or with the theme's separator, most Chinese words are not found, and no build says so."""
    visit.page.goto(server + start)

    for words, address in WORDS:
        expect_found(visit.page, words, server + address)
    assert not visit.console


@pytest.mark.parametrize(
    ("words", "page"), [("Adam", "glossary.html"), ("Philox", "lessons/generators.html")]
)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_search_shows_pages_in_the_readers_language_first(
    lang: str, words: str, page: str, visit: Visit, server: str
) -> None:
    """Latin words stand in both languages, and oftener in English: Chinese readers would scroll past English.

    Words that stand on few pages, since the list shows ten results at first.
    """
    home = server + {"en": "", "zh": "zh/"}[lang]
    visit.page.goto(home + "index.html")
    expect_found(visit.page, words, home + page)
    links = visit.page.locator(".md-search-result__item > a.md-search-result__link").all()
    places = [((link.bounding_box() or {})["y"], link.get_attribute("href") or "") for link in links]
    order = ["zh" if "/zh/" in address else "en" for _, address in sorted(places)]

    assert set(order) == {"en", "zh"}
    assert order == sorted(order, reverse=lang == "zh")


def test_search_finds_each_term_of_the_glossary_by_itself(visit: Visit, server: str) -> None:
    """One result for the whole glossary: a wall of text, in which the reader searches once more."""
    visit.page.goto(server + "zh/index.html")
    expect_found(visit.page, "误差", server + "zh/glossary.html")
    visit.page.locator('a[href*="/zh/glossary.html?"][href$="#rounding"]').click()
    expect(visit.page).to_have_url(re.compile(r"/zh/glossary\.html\?h=.*#rounding$"))
    expect(visit.page.locator("#rounding")).to_be_in_viewport()


def test_site_works_from_disk(visit: Visit, site: Path) -> None:
    """Opened as a file there is no server: no fetch, no worker, no index page of a folder."""
    home = site.as_uri() + "/"
    visit.page.goto(home + "index.html")
    expect_found(visit.page, "shuffled", home + "index.html")
    visit.page.keyboard.press("Escape")
    visit.page.locator("a.language").click()
    expect(visit.page).to_have_url(home + "zh/index.html")
    expect_found(visit.page, "结合律", home + "zh/index.html")
    visit.page.keyboard.press("Escape")
    visit.page.locator(".lessons a").first.click()
    expect(visit.page).to_have_url(home + "zh/lessons/line_fit.html")
    visit.page.locator("a.language").click()
    expect(visit.page).to_have_url(home + "lessons/line_fit.html")

    assert not visit.console
    assert not visit.failures
    assert not [url for url in visit.requests if not url.startswith(("file:", "about:"))]


# Finding one's way ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_language_switch_stays_on_the_page(page: str, visit: Visit, server: str) -> None:
    """The plug-in's links of home pages leave the folder that the site lies in."""
    address = page.replace(".md", ".html")
    visit.page.goto(server + address)
    visit.page.locator("a.language").click()
    expect(visit.page).to_have_url(f"{server}zh/{address}")
    expect(visit.page.locator("html")).to_have_attribute("lang", "zh")
    visit.page.locator("a.language").click()
    expect(visit.page).to_have_url(server + address)


def test_missing_page_shows_the_way_back(visit: Visit, server: str) -> None:
    """A 404 page whose style sheets and links are looked for in the folder that is not there."""
    response = visit.page.goto(server + "lessons/no/such/page.html")
    assert response
    assert response.status == HTTPStatus.NOT_FOUND
    expect(visit.page.get_by_role("heading", name="No page here")).to_be_visible()
    assert len(visit.failures) == 1  # the page itself
    visit.page.get_by_role("link", name="返回首页").click()
    expect(visit.page).to_have_url(server + "zh/index.html")


def test_menu_and_search_open_by_keyboard_on_a_narrow_screen(visit: Visit, server: str) -> None:
    """The theme opens them by labels of hidden checkboxes, which no key reaches."""
    visit.page.set_viewport_size({"width": 360, "height": 800})
    visit.page.goto(server + "index.html")
    search_button = visit.page.get_by_role("button", name="Search", exact=True)
    search_button.press("Enter")
    expect(visit.page.get_by_role("textbox", name="Search")).to_be_focused()
    visit.page.keyboard.press("Escape")
    expect(search_button).to_have_attribute("aria-expanded", "false")
    menu_button = visit.page.get_by_role("button", name="Navigation", exact=True)
    menu_button.press("Enter")
    expect(menu_button).to_have_attribute("aria-expanded", "true")
    visit.page.get_by_role("link", name="Glossary").first.click()
    expect(visit.page).to_have_url(server + "glossary.html")


def test_chosen_colors_stay(visit: Visit, server: str) -> None:
    """The toggle speaks the page's language, and its choice outlives the page."""
    visit.page.goto(server + "zh/index.html")
    visit.page.get_by_title("切换到深色模式").click()
    expect(visit.page.locator("body")).to_have_attribute("data-md-color-scheme", "slate")
    visit.page.goto(server + "zh/glossary.html")
    expect(visit.page.locator("body")).to_have_attribute("data-md-color-scheme", "slate")


def test_print_is_ink_on_white(visit: Visit, server: str) -> None:
    """Printed from dark mode: pale letters and pale lines, and the data folded away."""
    color = "element => getComputedStyle(element).color"
    visit.page.emulate_media(media="print", color_scheme="dark")
    visit.page.goto(server + "lessons/line_fit.html")
    expect(visit.page.locator("body")).to_have_attribute("data-md-color-scheme", "slate")
    body = visit.page.locator("body")

    assert body.evaluate("element => getComputedStyle(element).backgroundColor") == "rgb(255, 255, 255)"
    for letters in (".md-typeset h1", ".md-typeset p", ".highlight code", "figcaption"):
        red, green, blue = map(int, re.findall(r"\d+", visit.page.locator(letters).first.evaluate(color))[:3])
        assert max(red, green, blue) < 128, letters  # dark enough for 4.5:1 on white
    ink = body.evaluate("element => getComputedStyle(element).getPropertyValue('--plot-ink')")
    assert all(int(ink.strip()[1:][i : i + 2], 16) < 128 for i in (0, 2, 4))
    assert visit.page.locator("figure.plot td").first.is_visible()
    assert not visit.page.locator(".md-header").is_visible()

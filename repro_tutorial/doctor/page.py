"""The report as one HTML page that needs nothing else: verdict, first difference, causes, curves, ledger."""

import html
from collections import Counter
from collections.abc import Iterable, Iterator

from repro_tutorial.doctor import report as told
from repro_tutorial.doctor.compare import Records
from repro_tutorial.doctor.diagnose import Report
from repro_tutorial.messages import text
from repro_tutorial.runs import Run

STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 1rem/1.6 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
pre, td { font-family: ui-monospace, monospace; font-size: .875rem; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid var(--line); border-radius: .25rem; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .2rem 1rem .2rem 0; border-bottom: 1px solid var(--line); }
figure { margin: 1rem 0; background: #fff; padding: .5rem; border-radius: .25rem; } figure svg { max-width: 100%; height: auto; }
"""


def page(report: Report, lang: str) -> str:
    """The report as an HTML document in `lang`."""
    title, *rest = told.as_text(report, lang)
    language = {"en": "en", "zh": "zh-Hans"}[lang]
    parts = [
        f'<!doctype html><html lang="{language}"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>",
        f"<main><h1>{html.escape(title)}</h1>",
        f"<pre>{html.escape(chr(10).join(rest))}</pre>",
        *_curves(report, lang),
        *_ledger(report, lang),
        "</main></html>",
    ]
    return "\n".join(parts) + "\n"


def _curves(report: Report, lang: str) -> Iterator[str]:
    """What both runs read most often with ``.item()``, usually the loss, and its gap from run to run."""
    from repro_tutorial.divergence import compare
    from repro_tutorial.plots import plot_divergence, plot_runs, svg

    runs = read_numbers(report)
    if runs is None:
        return
    yield f"<h2>{html.escape(text('doctor.page_curves', lang, place=_place(report)))}</h2>"
    yield f"<figure>{svg(plot_runs(runs, 'value', lang=lang))}</figure>"
    divergence = compare(runs[0], runs[1], "value")
    if not divergence.bitwise_equal:
        yield f"<figure>{svg(plot_divergence(divergence, lang=lang))}</figure>"


def read_numbers(report: Report) -> list[Run] | None:
    """The numbers that the program read at its busiest ``.item()``, as two runs; None if there are not two of each."""
    if report.a is None or report.b is None:
        return None
    place = _place(report)
    columns = []
    for outcome in (report.a, report.b):
        notes = [note for _, note in Records(outcome.folder).of_kind("item") if note.site == place]
        columns.append(tuple(float(note.value) for note in notes))
    length = min(map(len, columns))
    if length < 2:
        return None
    names = ("A", "B")
    return [Run(name, None, {"value": column[:length]}) for name, column in zip(names, columns, strict=True)]


def _place(report: Report) -> str:
    assert report.a is not None
    counted = Counter(note.site for _, note in Records(report.a.folder).of_kind("item"))
    return counted.most_common(1)[0][0] if counted else ""


def ledger(report: Report) -> list[tuple[str, str, str, int]]:
    """Who seeded and who drew: generator, ``seed`` or ``draw``, place, how often."""
    if report.a is None:
        return []
    rows: Counter[tuple[str, str, str]] = Counter()
    for _, note in Records(report.a.folder).of_kind("seed"):
        rows[note.label, "seed", note.site.split(" ")[0]] += 1
    for generator, place in report.draws:
        rows[generator, "draw", place] += 1
    return [(*row, times) for row, times in rows.items()]


def _ledger(report: Report, lang: str) -> Iterator[str]:
    rows = ledger(report)
    if not rows:
        return
    yield f"<h2>{html.escape(text('doctor.page_ledger', lang))}</h2><table>"
    for row in rows:
        yield f"<tr>{''.join(_cells(row))}</tr>"
    yield "</table>"


def _cells(row: Iterable[object]) -> Iterator[str]:
    yield from (f"<td>{html.escape(str(cell))}</td>" for cell in row)

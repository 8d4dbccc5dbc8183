"""Figures for the pages of the site: drawings that take their colors from the page, their data as tables."""

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from repro_tutorial.divergence import Divergence, compare
from repro_tutorial.messages import InputError
from repro_tutorial.panels import NICE, PX, RUNS, THEMES, Look, Width, spread
from repro_tutorial.plots import (
    having,
    histogram_edges,
    largest,
    picture_captions,
    plot_divergence,
    plot_draws,
    plot_histograms,
    plot_metric,
    plot_pictures,
    plot_runs,
    plot_streams,
    stream_label,
    stream_verdict,
    svg,
)
from repro_tutorial.runs import Record

Rows: TypeAlias = Sequence[Mapping[str, Any]]

TABLE_ROWS = 10


def figure_svg(kind: str, record: Record, lang: str, width: Width) -> str:
    """The figure of `record` as an ``<svg>`` to stand in a page.

    Its colors are the variables of `css_variables`, its fonts the page's, its size in CSS pixels; its name
    for screen readers says in words what it shows. `kind` is "runs", "metric", "divergence", or one of those
    whose data the record's results hold under the kind's name: "streams", "pictures", "draws", "histograms".

    Raises:
        InputError: another kind, or a record that has nothing to draw.

    Lesson: line_fit
    """
    look = Look(lang, "light", width)
    if kind in _KINDS:
        rows = _rows_of(kind, record)
        figure, description = (
            _KINDS[kind].plot(rows, lang=lang, width=width),
            _KINDS[kind].describe(rows, look),
        )
    else:
        metric = _metric_of(record)
        divergence = _divergence_of(kind, record, metric)
        description = _describe(kind, record, metric, look, divergence)
        if kind == "divergence":
            assert divergence is not None
            figure = plot_divergence(divergence, lang=lang, width=width)
        elif kind == "runs":
            figure = plot_runs(record.runs, metric, lang=lang, width=width)
        else:
            figure = plot_metric(record.runs, metric, lang=lang, width=width)
    figure.patch.set_visible(False)
    digest = hashlib.sha256(repr(record).encode()).hexdigest()[:10]
    name = f"plot-{kind}-{lang}-{width}-{digest}"
    w, h = figure.bbox.width, figure.bbox.height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="{name}" width="{w:.0f}" '
        f'height="{h:.0f}" viewBox="0 0 {w * PX:g} {h * PX:g}" '
        'style="max-width:100%;height:auto;stroke-linejoin:round">'
        f'<title id="{name}">{escape(description)}</title>'
        f"{_inline(svg(figure), name)}</svg>"
    )


def figure_table(kind: str, record: Record, lang: str) -> list[list[str]]:
    """The data of the figure in about ten rows under a row of headings: step, values, gap.

    Values have all their digits. Of more than five runs the lowest, median and highest value stand.

    Raises:
        InputError: as `figure_svg`.

    Lesson: line_fit
    """
    look = Look(lang, "light", "wide")
    if kind in _KINDS:
        return _KINDS[kind].table(_rows_of(kind, record), look)
    metric = _metric_of(record)
    divergence = _divergence_of(kind, record, metric)
    runs = record.runs[:2] if kind == "divergence" else record.runs
    series = [dict(zip(run.steps_of(metric), run.metrics[metric], strict=True)) for run in runs]
    rows = _rows(sorted(set().union(*series)), divergence.first_step if divergence else None)
    columns = [[look.say("step"), *map(str, rows)]]
    if len(runs) <= len(RUNS):
        for run, of in zip(runs, series, strict=True):
            columns.append([look.run(run.name), *(_digits(of[step]) if step in of else "" for step in rows)])
    else:
        numbers = [[of[step] for of in series if not math.isnan(of.get(step, math.nan))] for step in rows]
        for key, measure in (("lowest", min), ("median", np.median), ("highest", max)):
            columns.append([look.say(key), *(_digits(float(measure(at))) if at else "NaN" for at in numbers)])
    if divergence:
        gap = look.say("gap") if len(runs) == 2 else look.say("gap_to", run=look.run(runs[0].name))
        noise = look.say("noise").replace("\n", look.say("space"))
        for title, values in ((gap, divergence.gap), (noise, divergence.noise_floor)):
            at = dict(zip(divergence.steps, values or (), strict=False))
            columns += [[title, *(_short(at[step]) for step in rows)]] if at else []
    return [list(row) for row in zip(*columns, strict=True)]


def css_variables() -> str:
    """The style sheet that gives the figures of the site their colors: light, dark, and light on paper.

    Lesson: line_fit
    """
    light, dark = (
        "".join(f"--plot-{role}:{color};" for role, color in THEMES[theme].items()) for theme in THEMES
    )
    slate = '[data-md-color-scheme="slate"]'
    return f":root{{{light}}}\n{slate}{{{dark}}}\n@media print{{:root,{slate}{{{light}}}}}\n"


def _metric_of(record: Record) -> str:
    if not record.runs:
        raise InputError("plots.no_runs", metric="loss")
    metrics = record.runs[0].metrics
    metric = "loss" if "loss" in metrics else next(iter(metrics), "loss")
    having(record.runs, metric)
    return metric


def _divergence_of(kind: str, record: Record, metric: str) -> Divergence | None:
    """How the runs of `record` part; ``None`` of one run, and of runs that need not be comparable.

    For kind "divergence" of the first two, with further runs of several seeds as the noise of seeds.
    """
    runs = record.runs
    if kind == "divergence":
        if len(runs) < 2:
            raise InputError("plots.one_run", command=record.command)
        several = len({run.seed for run in runs[2:]}) > 1
        return compare(runs[0], runs[1], metric, seed_runs=runs[2:] if several else ())
    if kind not in ("runs", "metric"):
        raise InputError("plots.bad_kind", kind=kind)
    comparable = len({tuple(run.steps_of(metric)) for run in runs}) == 1
    return largest(runs, metric) if comparable or kind == "runs" else None


def _describe(kind: str, record: Record, metric: str, look: Look, divergence: Divergence | None) -> str:
    """What the figure shows, in words."""
    runs = record.runs[:2] if kind == "divergence" else record.runs
    steps = len({step for run in runs for step in run.steps_of(metric)})
    *others, last = (look.run(run.name) for run in runs)
    names = look.say("and", names=look.say("comma").join(others), last=last) if others else last
    if len(runs) > len(RUNS):
        names = look.say("runs", runs=len(runs))
    about = look.metric(metric)
    about = about[:1].upper() + about[1:]  # it starts the English sentence
    alone = kind == "metric" or divergence is None
    key = "about_metric" if alone else f"about_{kind}"
    sentences = [look.say(key, metric=about, names=names, steps=steps)]
    if divergence and divergence.bitwise_equal:
        sentences.append(look.say("about_identical"))
    elif divergence:
        largest = {"gap": _short(divergence.max_abs), "at": divergence.max_abs_step}
        sentences.append(look.say("about_part", step=divergence.first_step, **largest))
        if divergence.noise_ratio is not None:
            sentences.append(look.say("about_noise", ratio=divergence.noise_ratio))
    return look.say("space").join(sentences)


def _rows_of(kind: str, record: Record) -> Rows:
    rows: Rows = record.results.get(kind, ())
    if not rows:
        raise InputError(f"plots.no_{kind}")
    return rows


def _describe_streams(streams: Rows, look: Look) -> str:
    first = streams[0]["numbers"]
    sentences = [look.say("about_streams", rows=len(streams), count=len(first))]
    for stream in streams[1:]:
        verdict = stream_verdict(stream["numbers"], first, look)
        sentences.append(look.say("about_row", label=stream_label(stream, look), verdict=verdict))
    return look.say("space").join(sentences)


def _tabulate_streams(streams: Rows, look: Look) -> list[list[str]]:
    heads = [look.say("number"), *(stream_label(stream, look) for stream in streams)]
    drawn = zip(*(stream["numbers"] for stream in streams), strict=True)
    return [heads, *([str(at), *map(_digits, of)] for at, of in enumerate(drawn, start=1))]


def _describe_pictures(pictures: Rows, look: Look) -> str:
    sentences = []
    for row in pictures:
        different = len(set(map(tuple, row["images"])))
        values = {"label": stream_label(row, look), "pictures": len(row["images"]), "different": different}
        sentences.append(look.say("about_pictures", **values))
    return look.say("space").join(sentences)


def _tabulate_pictures(pictures: Rows, look: Look) -> list[list[str]]:
    heads = ["", *picture_captions(pictures[0], look)]
    dots = [[" ".join(_dotted(image)) for image in row["images"]] for row in pictures]
    return [heads, *([stream_label(row, look), *of] for row, of in zip(pictures, dots, strict=True))]


def _dotted(image: Sequence[int]) -> list[str]:
    """The image as lines of text, a character to the pixel."""
    size = math.isqrt(len(image))
    return ["".join(".#"[pixel] for pixel in image[at : at + size]) for at in range(0, size * size, size)]


def _describe_draws(draws: Rows, look: Look) -> str:
    sentences = [look.say("about_draws", rows=len(draws))]
    for row in draws:
        shifted = sum(cell["same"] is False for cell in row["cells"])
        values = {"label": stream_label(row, look), "draws": len(row["cells"]), "shifted": shifted}
        sentences.append(look.say("about_draw_row", **values))
    return look.say("space").join(sentences)


def _tabulate_draws(draws: Rows, look: Look) -> list[list[str]]:
    heads = [look.say("draw"), *(stream_label(row, look) for row in draws)]
    starts = {True: "draw_same", False: "draw_shifted", None: "draw_added"}
    columns = [
        [
            f"{look.say('draw_' + cell['by'])}{look.say('comma')}{look.say(starts[cell['same']])}"
            for cell in row["cells"]
        ]
        for row in draws
    ]
    rows = zip_longest(*columns, fillvalue="")
    return [heads, *([str(at), *cells] for at, cells in enumerate(rows, start=1))]


def _describe_histograms(histograms: Rows, look: Look) -> str:
    sentences = []
    for row in histograms:
        values = row["values"]
        chosen = values[row["chosen"]]
        measured = {"mean": float(np.mean(values)), "low": min(values), "high": max(values)}
        rank = 1 + sum(value > chosen for value in values)
        measured |= {"seeds": len(values), "chosen": chosen, "rank": rank}
        sentences.append(look.say("about_histogram", label=stream_label(row, look), **measured))
    return look.say("space").join(sentences)


def _tabulate_histograms(histograms: Rows, look: Look) -> list[list[str]]:
    edges = histogram_edges([value for row in histograms for value in row["values"]])
    counts = [np.histogram(row["values"], edges)[0] for row in histograms]
    heads = [look.say("from_to"), *(stream_label(row, look) for row in histograms)]
    bars = zip(edges, edges[1:], *counts, strict=False)
    rows = [[f"{low:g}–{high:g}%", *map(str, of)] for low, high, *of in bars]
    means = [f"{np.mean(row['values']):.2f}%" for row in histograms]
    chosen = [f"{row['values'][row['chosen']]:.2f}%" for row in histograms]
    return [heads, *rows, [look.say("mean_row"), *means], [look.say("chosen_row"), *chosen]]


class _Kind(NamedTuple):
    """A kind of figure that is drawn from results: the figure itself, what it shows in words, its numbers."""

    plot: Callable[..., Figure]
    describe: Callable[[Rows, Look], str]
    table: Callable[[Rows, Look], list[list[str]]]


_KINDS: Mapping[str, _Kind] = {
    "streams": _Kind(plot_streams, _describe_streams, _tabulate_streams),
    "draws": _Kind(plot_draws, _describe_draws, _tabulate_draws),
    "pictures": _Kind(plot_pictures, _describe_pictures, _tabulate_pictures),
    "histograms": _Kind(plot_histograms, _describe_histograms, _tabulate_histograms),
}


def _rows(steps: Sequence[int], first_step: int | None) -> list[int]:
    """About ten of `steps`: the first, the last, the one where the runs part, and round numbers between."""
    if len(steps) <= TABLE_ROWS + 2:
        return list(steps)
    known = set(steps)
    rows = {steps[0], steps[-1], *([] if first_step is None else [first_step])}
    round_steps = MaxNLocator(TABLE_ROWS, steps=NICE, integer=True).tick_values(steps[0], steps[-1])
    between = {int(step) for step in round_steps} & known
    if len(between) < TABLE_ROWS // 2:  # steps that were not logged at round numbers
        between = {steps[place] for place in spread(len(steps), TABLE_ROWS)}
    return sorted(rows | between)


def _digits(value: float) -> str:
    return repr(value) if math.isfinite(value) else _short(value)


def _short(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    rounded = f"{value:.3g}"
    return rounded if abs(value) < 1000 or abs(value) >= 1e6 else f"{float(rounded):.0f}"


def _inline(svg: str, name: str) -> str:
    """The drawing alone, of Matplotlib's SVG: colors as variables, ids the page's own, numbers rounded."""
    root = ElementTree.fromstring(re.sub(r"xlink:href", "href", svg))
    used = {*re.findall(r"url\(#([^)]+)\)", svg), *re.findall(r'xlink:href="#([^"]+)"', svg)}
    ids = {old: f"{name}-{number}" for number, old in enumerate(sorted(used))}
    return "".join(_element(child, ids) for child in root)


def _element(element: ElementTree.Element, ids: Mapping[str, str]) -> str:
    tag = element.tag.rpartition("}")[2]
    inside = "".join(_element(child, ids) for child in element) + escape((element.text or "").strip())
    # Matplotlib's style sheet would hold for the whole page.
    if tag in ("metadata", "style") or (tag in ("g", "defs") and not inside):
        return ""
    attributes = {key: _attribute(key, value, ids) for key, value in element.attrib.items()}
    written = "".join(f' {key}="{value}"' for key, value in attributes.items() if value)
    if tag == "g" and not written:
        return inside
    return f"<{tag}{written}>{inside}</{tag}>" if inside else f"<{tag}{written}/>"


def _attribute(key: str, value: str, ids: Mapping[str, str]) -> str:
    """What `value` is to be in a page; empty if it is not needed."""
    if key == "id":
        return ids.get(value, "")
    if key in ("href", "clip-path"):
        return re.sub(r"#([^)]+)", lambda old: f"#{ids[old[1]]}", value)
    if key == "style":
        return _style(value)
    if key == "d":
        return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.5g}", " ".join(value.split()))
    if key in ("x", "y", "width", "height"):
        return f"{round(float(value), 2):g}"
    return "" if re.match(r"rotate\(-?0 ", value) else value


def _style(style: str) -> str:
    roles = {color: f"var(--plot-{role})" for role, color in THEMES["light"].items()}
    parts = [part.strip().replace(": ", ":") for part in style.split(";")]
    parts = [part for part in parts if part and not part.startswith(("font-family", "stroke-dashoffset:0"))]
    return re.sub(r"#[0-9a-f]{6}\b", lambda color: roles[color[0]], ";".join(parts))

"""Figures of runs and of how far they part, for files and for the site; the text in two languages.

Whatever Matplotlib is set to draw like, a figure comes out the same: nothing here reads or changes the
reader's rcParams, and nothing needs a display.
"""

import functools
import hashlib
import io
import math
import re
import sys
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import matplotlib.style
import numpy as np
import numpy.typing as npt
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Outline
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from repro_tutorial.divergence import Divergence, FloatArray, compare
from repro_tutorial.messages import InputError, catalog, render, text
from repro_tutorial.runs import Record, Run, write_new

Theme: TypeAlias = Literal["light", "dark"]
Width: TypeAlias = Literal["wide", "narrow"]
IntArray: TypeAlias = npt.NDArray[np.int64]

# Colors by what they are for. `first` and `second` differ in lightness, so that they stay apart in grey, and
# every pair of text and ground reaches WCAG's 4.5:1, every line 3:1; tests/test_plots.py computes both.
THEMES: Mapping[Theme, Mapping[str, str]] = {
    "light": {
        "paper": "#ffffff",
        "ink": "#1d232b",  # labels
        "muted": "#586270",  # numbers on the axes
        "grid": "#e4e7eb",
        "first": "#5896cc",
        "second": "#7c2408",
        "band": "#eaf2f9",  # where a gap of exactly zero lies
        "noise": "#8a7a3a",
    },
    "dark": {
        "paper": "#1e2129",
        "ink": "#e3e6eb",
        "muted": "#a3acb9",
        "grid": "#343a46",
        "first": "#4779ab",
        "second": "#ffd0a8",
        "band": "#273347",
        "noise": "#b5a55f",
    },
}
WIDTHS: Mapping[Width, int] = {"wide": 680, "narrow": 360}  # CSS pixels
SUFFIXES = (".svg", ".png", ".pdf")

BUNDLE = 30  # of more than five runs, so many are drawn one by one
BUNDLE_STEPS = 120  # at so many steps
TABLE_ROWS = 10

# For PNG and PDF, which need the shapes of the characters; the first that is installed.
CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "PingFang SC",
    "Hiragino Sans GB",
    "Heiti SC",
    "STHeiti",
    "Microsoft YaHei",
    "SimHei",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Noto Sans CJK JP",  # the first face of the collection, the only one that old versions of Matplotlib see
    "Arial Unicode MS",
)
# For SVG, which leaves the choice to the reader's system.
FONT_STACK = (
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'PingFang SC', "
    "'Hiragino Sans GB', 'Microsoft YaHei', 'Noto Sans CJK SC', 'Source Han Sans SC', "
    "'WenQuanYi Micro Hei', sans-serif"
)

_PX = 0.75  # points: figures are made of CSS pixels, of which an inch has 96
_SIZE = 13  # of all text, in pixels
_LINE = 16  # from one line of text to the next
_HEADER = 28  # above each panel: its title
_SPACE = 8  # between panels, above the title
_FOOT = 28  # below the last panel: numbers of the steps
_TAPE = 36  # height of a row of random numbers
_PICTURE: Mapping[Width, int] = {"wide": 110, "narrow": 80}  # edge of a square picture
_CAPTION = 24  # below it
_BAND = 32  # height of the band of zeros, and of that of infinite gaps
_HEADROOM = 22  # above the largest gap: a line of text that no curve crosses
_ALONE: Mapping[Width, int] = {"wide": 240, "narrow": 190}  # height of a panel, and of two in one figure:
_UPPER: Mapping[Width, int] = {"wide": 210, "narrow": 180}
_LOWER: Mapping[Width, int] = {"wide": 190, "narrow": 170}
_BESIDE = 56  # least room for what stands beside a panel: there is the name of the step axis, too
_SAMPLE = 22  # from the start of a label's line sample to its text
_NICE = (1, 2, 2.5, 5, 10)  # numbers on linear axes are multiples of these
_ENDS = (
    -1.0,
    sys.float_info.max,
)  # of every gap axis: no gap is as small, and none as large but infinite ones
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_OWN_FONT = "DejaVu Sans"  # comes with Matplotlib
_STYLE = {
    "font.family": ["sans-serif", _OWN_FONT],  # what the first lacks is taken from the second
    "path.simplify_threshold": 0.15,
    "svg.fonttype": "none",
    "svg.hashsalt": "repro_tutorial",
}


@dataclass(frozen=True)
class _Look:
    """How a figure is to look: language, colors, width."""

    lang: str
    theme: Theme
    width: Width

    def say(self, key: str, **values: object) -> str:
        return text(f"plots.{key}", self.lang, **values)

    def color(self, role: str) -> str:
        return THEMES[self.theme][role]

    def metric(self, name: str) -> str:
        return catalog(self.lang).get(f"plots.metric_{name}", name)

    def run(self, name: str, key: str = "run") -> str:
        """The name of a run, in the figure's language where it is a demo's own: "run 1", "rank 0", "world size 2"."""
        if number := re.fullmatch(r"run (\d+)", name):
            return self.say(key, number=number[1])
        if number := re.fullmatch(r"(rank|world size) (\d+)", name):
            return self.say(number[1].replace(" ", "_"), number=number[2])
        return name

    def label(self, name: str) -> str:
        """The name of a run, cut in the middle to what fits beside the panel."""
        name, most = self.run(name, "run_short"), 18 if self.width == "wide" else 11
        return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most // 2 - 1) :]}"


@dataclass(frozen=True)
class _Scale:
    """An axis of values: its ends, where the numbers stand, and what stands there."""

    kind: Literal["linear", "log", "gap"]
    low: float
    high: float
    ticks: Sequence[float]
    labels: Sequence[str]
    places: Mapping[float, float] = field(default_factory=dict)  # of gaps without a logarithm, in decades


@dataclass(frozen=True)
class _Stroke:
    """How a line is drawn: color, width in pixels, dashes in widths."""

    role: str
    width: float
    dashes: tuple[float, float] | None = None

    def apply(self, line: Line2D, look: _Look, fine: float = 1.0) -> None:
        line.set(color=look.color(self.role), linewidth=fine * self.width * _PX)
        line.set(linestyle=(0, self.dashes) if self.dashes else "-", clip_on=False)
        line.set(solid_capstyle="butt", dash_capstyle="butt", markeredgewidth=0)


# The runs of a figure, in the order they are drawn. A thin dark dashed line on a thick pale one shows both
# where they coincide.
_RUNS = (
    _Stroke("first", 4.5),
    _Stroke("second", 1.7, (3.2, 1.8)),
    _Stroke("ink", 1.4, (1.0, 1.6)),
    _Stroke("noise", 1.2),
    _Stroke("muted", 1.2, (6.0, 2.5)),
)
_MEDIAN = _Stroke("second", 2.0)
_ONE_OF_MANY = _Stroke("first", 1.0)
_GAP = _Stroke("second", 1.7)
_NOISE = _Stroke("noise", 1.8, (1.0, 1.4))


@dataclass(frozen=True)
class _Label:
    """Text beside a panel, as high as `value` stands, with a sample of what it names."""

    value: float
    lines: Sequence[str]
    sample: Sequence[_Stroke] = ()


def plot_metric(
    runs: Sequence[Run],
    metric: str = "loss",
    *,
    lang: str = "en",
    theme: Theme = "light",
    width: Width = "wide",
) -> Figure:
    """`metric` per step of each of `runs`, on a log axis if it is positive and spans more than a decade.

    Up to five runs have a line each; of more, 30 are drawn, with the range of all and their median.

    Raises:
        InputError: no runs, or one without this metric.

    Lesson: line_fit
    """
    look = _Look(lang, theme, width)
    panel = _Metrics(_having(runs, metric), metric, look, _ALONE[width])
    return _compose(look, panel.steps, [panel])


def plot_divergence(
    divergence: Divergence, *, lang: str = "en", theme: Theme = "light", width: Width = "wide"
) -> Figure:
    """The absolute gap per step on a log axis, exact zeros in a band of their own, the first difference marked.

    Infinite gaps (one value infinite or NaN) lie in a band at the top. The noise of seeds is drawn if
    `divergence` has it.

    Lesson: line_fit
    """
    look = _Look(lang, theme, width)
    return _compose(look, divergence.steps, [_Gaps(divergence, look, look.say("gap"), _ALONE[width])])


def plot_runs(
    runs: Sequence[Run],
    metric: str = "loss",
    *,
    lang: str = "en",
    theme: Theme = "light",
    width: Width = "wide",
) -> Figure:
    """`metric` of each run above, and below it, on the same steps, the gap between them.

    With more than two runs the gap is the largest to the first run; with one there is none to draw.

    Raises:
        InputError: no runs, one without this metric, or runs of other steps.

    Lesson: line_fit
    """
    look = _Look(lang, theme, width)
    return _plot_runs(runs, metric, look, _largest(_having(runs, metric), metric))


def plot_streams(
    streams: Sequence[Mapping[str, Any]],
    *,
    lang: str = "en",
    theme: Theme = "light",
    width: Width = "wide",
) -> Figure:
    """Rows of random numbers from 0 to 1, a cell each, filled as high as the number is large.

    Each of `streams` has a `label` (a line of text or a message) and `numbers`. Where a row has another
    number than the first row, its cell has the second color.

    Raises:
        InputError: no streams.

    Lesson: generators
    """
    if not streams:
        raise InputError("plots.no_streams")
    look, pixels = _Look(lang, theme, width), WIDTHS[width]
    rows, count = [stream["numbers"] for stream in streams], len(streams[0]["numbers"])
    height = len(rows) * (_HEADER + _TAPE) + _FOOT
    right = 12 + _text_width(look.say("number"))
    with _drawing():
        figure = Figure(figsize=(pixels / 96, height / 96), dpi=96, facecolor=look.color("paper"))
        for place, (row, stream) in enumerate(zip(rows, streams, strict=True), start=1):
            bottom = height - place * (_HEADER + _TAPE)
            axes = figure.add_axes((0, bottom / height, 1 - right / pixels, _TAPE / height))
            axes.set_axis_off()
            axes.set(xlim=(0.5, count + 0.5), ylim=(0, 1))
            _write(
                axes, 2, bottom + _TAPE + 12, _stream_label(stream, look), look.color("ink"), weight="bold"
            )
            if place > 1:
                verdict = _stream_verdict(row, rows[0], look)
                _write(axes, axes.bbox.x1 - 2, bottom + _TAPE + 12, verdict, look.color("ink"), ha="right")
            for at, (number, first) in enumerate(zip(row, rows[0], strict=True), start=1):
                color = look.color("first" if number == first else "second")
                axes.add_patch(Rectangle((at - 0.46, 0), 0.92, 1, color=look.color("grid"), lw=0))
                axes.add_patch(Rectangle((at - 0.46, 0), 0.92, number, color=color, lw=0))
        for at in range(1, count + 1):
            x = axes.bbox.width * (at - 0.5) / count
            _write(axes, x, 14, str(at), look.color("muted"), ha="center")
        _write(axes, axes.bbox.x1 + 8, 14, look.say("number"), look.color("muted"))
    return figure


def _stream_label(stream: Mapping[str, Any], look: _Look) -> str:
    label = stream["label"]
    return look.run(label) if isinstance(label, str) else render(label, look.lang)


def _stream_verdict(row: Sequence[float], first: Sequence[float], look: _Look) -> str:
    parted = next((at for at, (a, b) in enumerate(zip(row, first, strict=True), start=1) if a != b), None)
    return look.say("stream_same") if parted is None else look.say("stream_part", place=parted)


def plot_pictures(
    pictures: Sequence[Mapping[str, Any]],
    *,
    lang: str = "en",
    theme: Theme = "light",
    width: Width = "wide",
) -> Figure:
    """Rows of square black and white pictures, one of each row from every GPU.

    Each of `pictures` has a `label` (a message) and `images`: for each GPU the pixels, 0 or 1, row by row.
    An image that is not that of GPU 0 has the second color.

    Raises:
        InputError: no pictures.

    Lesson: multi_gpu_seeding
    """
    if not pictures:
        raise InputError("plots.no_pictures")
    look, pixels = _Look(lang, theme, width), WIDTHS[width]
    side = _PICTURE[width]
    row_height = _HEADER + side + _CAPTION
    height = len(pictures) * row_height + _SPACE
    with _drawing():
        figure = Figure(figsize=(pixels / 96, height / 96), dpi=96, facecolor=look.color("paper"))
        for place, row in enumerate(pictures, start=1):
            bottom = height - place * row_height + _CAPTION
            for number, image in enumerate(row["images"]):
                left = 2 + number * (side + _SPACE)
                axes = figure.add_axes((left / pixels, bottom / height, side / pixels, side / height))
                size = math.isqrt(len(image))
                axes.set(xlim=(0, size), ylim=(size, 0), xticks=(), yticks=(), facecolor=look.color("grid"))
                for spine in axes.spines.values():
                    spine.set_visible(False)
                color = look.color("first" if image == row["images"][0] else "second")
                axes.add_patch(PathPatch(_pixels(image, size), facecolor=color, linewidth=0))
                caption = look.say("gpu", number=number)
                _write(axes, left + side / 2, bottom - 11, caption, look.color("muted"), ha="center")
            label = _stream_label(row, look)
            _write(axes, 2, bottom + side + 12, label, look.color("ink"), weight="bold")
    return figure


def _pixels(image: Sequence[int], size: int) -> Outline:
    """The outline of the dark pixels of a square image, neighbors in a row as one."""
    boxes = []
    for y in range(size):
        row = [0, *image[y * size : (y + 1) * size], 0]
        ends = [x for x in range(size + 1) if row[x] != row[x + 1]]  # where dark begins, where it ends, …
        for first, last in zip(ends[::2], ends[1::2], strict=True):
            boxes.append(
                Outline([(first, y), (last, y), (last, y + 1), (first, y + 1), (first, y)], closed=True)
            )
    return Outline.make_compound_path(*boxes)


def save_figure(figure: Figure, path: Path) -> None:
    """Write `figure` to a new file: SVG, PNG (two dots to the pixel) or PDF by the suffix of `path`.

    The same data give the same bytes. SVG keeps its text as text and needs no font.

    Raises:
        InputError: another suffix, a file that exists or cannot be written, or no font for the text.

    Lesson: line_fit
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError("files.bad_figure", file=path, known=SUFFIXES)
    if suffix == ".svg":
        svg = re.sub(r'font-family: [^;"]*', f"font-family: {FONT_STACK}", _svg(figure))
        write_new(path, svg.encode())
        return
    metadata = {".png": {"Software": None}, ".pdf": {"CreationDate": None, "Creator": None, "Producer": None}}
    buffer = io.BytesIO()
    with _drawing({"font.sans-serif": [_font(figure, path)]}):
        figure.savefig(buffer, format=suffix[1:], dpi=2 * figure.dpi, metadata=metadata[suffix])
    write_new(path, buffer.getvalue())


# What a figure is made of ---------------------------------------------------------------------------------


def _having(runs: Sequence[Run], metric: str) -> Sequence[Run]:
    """`runs`, which all have `metric`.

    Raises:
        InputError: one has not, or there are none.
    """
    if not runs:
        raise InputError("plots.no_runs", metric=metric)
    for run in runs:
        if not run.metrics.get(metric):
            raise InputError("plots.no_metric", run=run.name, metric=metric, known=list(run.metrics))
    return runs


def _largest(runs: Sequence[Run], metric: str) -> Divergence | None:
    """The divergence of two runs; of more, with the largest gap of each step from the first run."""
    others = [compare(runs[0], run, metric) for run in runs[1:]]
    if len(others) < 2:
        return others[0] if others else None
    gap = np.max([other.gap for other in others], axis=0)
    return replace(
        others[0],
        first_step=min((o.first_step for o in others if o.first_step is not None), default=None),
        gap=tuple(gap.tolist()),
        max_abs=float(gap.max()),
        max_abs_step=others[0].steps[int(gap.argmax())],
    )


def _plot_runs(runs: Sequence[Run], metric: str, look: _Look, divergence: Divergence | None) -> Figure:
    if divergence is None:
        panel = _Metrics(runs, metric, look, _ALONE[look.width])
        return _compose(look, panel.steps, [panel])
    gap = look.say("gap") if len(runs) == 2 else look.say("gap_to", run=look.label(runs[0].name))
    upper = _Metrics(runs, metric, look, _UPPER[look.width])
    figure = _compose(look, divergence.steps, [upper, _Gaps(divergence, look, gap, _LOWER[look.width])])
    if divergence.first_step is not None:
        _mark(figure.axes[0], divergence.first_step, look)
    return figure


def _drawing(settings: Mapping[str, object] | None = None) -> AbstractContextManager[None]:
    """Matplotlib's defaults and our few settings, for as long as it lasts."""
    return matplotlib.style.context(["default", _STYLE | dict(settings or {})])


def _compose(look: _Look, steps: Sequence[int], panels: Sequence["_Metrics | _Gaps"]) -> Figure:
    """A figure of `panels`, one below the other on the same steps, with room for what stands beside them."""
    width = WIDTHS[look.width]
    height = sum(_SPACE + _HEADER + panel.height for panel in panels) - _SPACE + _FOOT
    left = 12 + max((_text_width(label) for panel in panels for label in panel.scale.labels), default=0)
    labels = [label for panel in panels for label in panel.labels]
    beside = max(_BESIDE, *(_SAMPLE * bool(lb.sample) + max(map(_text_width, lb.lines)) for lb in labels))
    inner = (width - left - 8 - beside - 4) / width
    with _drawing():
        figure = Figure(figsize=(width / 96, height / 96), dpi=96, facecolor=look.color("paper"))
        top = height
        for panel in panels:
            top -= _HEADER + panel.height
            axes = figure.add_axes((left / width, top / height, inner, panel.height / height))
            top -= _SPACE
            _value_axis(axes, panel.scale, look)
            _step_axis(axes, steps, look, numbers=panel is panels[-1])
            _write(axes, 2, axes.bbox.y1 + 14, panel.title, look.color("ink"), weight="bold")
            panel.draw(axes)
            _write_labels(axes, panel.labels, look)
    return figure


def _value_axis(axes: Axes, scale: _Scale, look: _Look) -> None:
    axes.set(facecolor="none", axisbelow=True)
    for side, spine in axes.spines.items():
        spine.set(visible=side == "bottom", color=look.color("muted"), linewidth=_PX)
    axes.tick_params(labelsize=_SIZE * _PX, labelcolor=look.color("muted"), color=look.color("muted"))
    axes.tick_params(axis="y", length=0, pad=6 * _PX)
    axes.tick_params(axis="x", length=4 * _PX, width=_PX, pad=4 * _PX)
    axes.grid(axis="y", color=look.color("grid"), linewidth=_PX)
    if scale.kind == "gap":
        axes.set_yscale("function", functions=(functools.partial(_decades, scale), _from_decades))
    else:
        axes.set_yscale(scale.kind)
    axes.set_yticks(scale.ticks, scale.labels)
    axes.set_yticks([], minor=True)
    axes.set_ylim(scale.low, scale.high)  # last, for ticks at zero and infinity would widen it
    for tick, value in zip(axes.yaxis.get_major_ticks(), scale.ticks, strict=True):
        if scale.kind == "gap" and (value == 0 or math.isinf(value)):
            tick.gridline.set_visible(False)  # the bands lie there


def _step_axis(axes: Axes, steps: Sequence[int], look: _Look, *, numbers: bool) -> None:
    first, last = steps[0], steps[-1]
    margin = 0.5 if first == last else 0
    axes.set_xlim(first - margin, last + margin)
    most = 6 if look.width == "wide" else 4
    ticks = [int(tick) for tick in MaxNLocator(most, steps=_NICE, integer=True).tick_values(first, last)]
    ticks = [tick for tick in ticks if first <= tick <= last]
    if not ticks or ticks[0] - first > (last - first) * 0.4 / most:
        ticks.insert(0, first)
    axes.set_xticks(ticks, [f"{tick:,}" if numbers else "" for tick in ticks])
    if numbers:
        box = axes.bbox
        end = box.x0 + box.width * (ticks[-1] - first + margin) / (last - first + 2 * margin)
        after = max(box.x1 + 10, end + _text_width(f"{ticks[-1]:,}") / 2 + 8)
        _write(axes, after, box.y0 - 14.5, look.say("step"), look.color("muted"))


def _mark(axes: Axes, step: int, look: _Look) -> None:
    """A fine vertical line at `step`."""
    axes.axvline(step, color=look.color("muted"), linewidth=_PX, alpha=0.6, zorder=1.5)


def _write(axes: Axes, x: float, y: float, line: str, color: str, **style: str) -> None:
    """Text whose middle is at height `y`: pixels from the lower left corner of the figure."""
    figure = axes.figure
    # The baseline is set here: Matplotlib would measure with a font that the reader does not see.
    x, y = x / figure.bbox.width, (y - 0.36 * _SIZE) / figure.bbox.height
    words = figure.text(x, y, line, color=color, size=_SIZE * _PX, va="baseline", parse_math=False)
    words.set(**style)


def _text_width(line: str) -> float:
    """About how many pixels `line` takes, in whichever face the reader has."""
    return sum(_SIZE * (1.0 if unicodedata.east_asian_width(c) in "WF" else 0.6) for c in line)


def _write_labels(axes: Axes, labels: Sequence[_Label], look: _Look) -> None:
    """Labels beside the panel, each as near to its height as the others and the panel's ends let it."""
    figure, box = axes.figure, axes.bbox
    placed = sorted(labels, key=lambda label: -_height(axes, label.value))
    heights = [_LINE * len(label.lines) for label in placed]
    centers = [
        min(_height(axes, label.value), box.y1 - height / 2 + 4)
        for label, height in zip(placed, heights, strict=True)
    ]
    for i in range(1, len(centers)):  # down from above, then up from the bottom
        centers[i] = min(centers[i], centers[i - 1] - (heights[i - 1] + heights[i]) / 2)
    for i in reversed(range(len(centers))):
        lowest = box.y0 + heights[i] / 2
        if i + 1 < len(centers):
            lowest = centers[i + 1] + (heights[i + 1] + heights[i]) / 2
        centers[i] = max(centers[i], lowest)
    for label, center in zip(placed, centers, strict=True):
        x = box.x1 + 8
        for stroke in label.sample:
            y = [center / figure.bbox.height] * 2
            sample = Line2D([x / figure.bbox.width, (x + _SAMPLE - 6) / figure.bbox.width], y)
            stroke.apply(sample, look)
            figure.add_artist(sample)
        x += _SAMPLE if label.sample else 0
        for number, line in enumerate(label.lines):
            y_line = center + _LINE * ((len(label.lines) - 1) / 2 - number)
            _write(axes, x, y_line, line, look.color("ink"))


def _draw(axes: Axes, steps: npt.ArrayLike, values: FloatArray, stroke: _Stroke, look: _Look) -> None:
    """A line through all values; finer where it goes up and down so much that it would fill the panel."""
    marker = "o" if len(values) == 1 else ""  # a line of one point is invisible
    line = axes.plot(steps, values, marker=marker, markersize=6 * _PX, zorder=2)[0]
    heights = axes.transData.transform(np.column_stack([steps, values]))[:, 1]
    travel = np.abs(np.diff(heights[np.isfinite(heights)])).sum()
    stroke.apply(line, look, fine=1.0 if travel < 5 * axes.bbox.width else 0.55)


def _height(axes: Axes, value: float) -> float:
    """Where `value` stands on the axis, in pixels from the figure's lower edge."""
    return float(axes.transData.transform((axes.get_xlim()[0], value))[1])


class _Metrics:
    """The panel of a metric: a line for each run, or for many the range, a bundle, and the median."""

    def __init__(self, runs: Sequence[Run], metric: str, look: _Look, height: int) -> None:
        self.look = look
        self.height = height
        self.series = [(np.array(run.steps_of(metric)), np.array(run.metrics[metric], float)) for run in runs]
        steps = np.concatenate([steps for steps, _ in self.series])
        values = np.concatenate([values for _, values in self.series])
        self.steps = (int(steps.min()), int(steps.max()))
        self.scale = _metric_scale(values[np.isfinite(values)], height // 36)
        self.title = look.say("title_log" if self.scale.kind == "log" else "title", what=look.metric(metric))
        few = len(runs) <= len(_RUNS)
        alike = len({(steps.tobytes(), values.tobytes()) for steps, values in self.series}) == 1
        self.bundle = not few and not alike
        say = look.say
        if few:
            self.labels = [
                _Label(_last(values), [look.label(run.name)], [stroke])
                for run, (_, values), stroke in zip(runs, self.series, _RUNS, strict=False)
            ]
        elif alike:
            lines = [say("runs", runs=len(runs)), say("alike")]
            self.series = self.series[:2]
            self.labels = [_Label(_last(self.series[0][1]), lines, _RUNS[:2])]
        else:
            self.all_steps = np.unique(steps)
            self.table = np.full((len(runs), len(self.all_steps)), np.nan)
            for row, (at, of) in zip(self.table, self.series, strict=True):
                row[np.searchsorted(self.all_steps, at)] = of
            self.median = _over_numbers(np.nanmedian, self.table)
            drawn = [say("drawn", runs=BUNDLE)] if len(runs) > BUNDLE else []
            end = _last(self.median)
            self.labels = [
                _Label(end, [say("median")], [_MEDIAN]),
                _Label(end, [say("runs", runs=len(runs)), *drawn], [_ONE_OF_MANY]),
            ]

    def draw(self, axes: Axes) -> None:
        if not self.scale.labels:
            x, y = axes.bbox.x0 + axes.bbox.width / 2, axes.bbox.y0 + axes.bbox.height / 2
            _write(axes, x, y, self.look.say("no_numbers"), self.look.color("muted"), ha="center")
        if self.bundle:
            self._draw_bundle(axes)
            _draw(axes, self.all_steps, self.median, _MEDIAN, self.look)
        else:
            for (steps, values), stroke in zip(self.series, _RUNS, strict=False):
                _draw(axes, steps, values, stroke, self.look)

    def _draw_bundle(self, axes: Axes) -> None:
        # The range of all runs, by stretches of steps: finer than the eye can tell, and of bounded size.
        finite = np.where(np.isfinite(self.table), self.table, np.nan)
        stretches = [
            part for part in np.array_split(np.arange(len(self.all_steps)), BUNDLE_STEPS) if part.size
        ]
        middle = [self.all_steps[part[len(part) // 2]] for part in stretches]
        middle[0], middle[-1] = self.steps
        low, high = (_over_numbers(of, finite) for of in (np.nanmin, np.nanmax))
        low, high = (
            np.array([_over_numbers(of, of_all[part]) for part in stretches])
            for of, of_all in ((np.nanmin, low), (np.nanmax, high))
        )
        axes.fill_between(middle, low, high, color=self.look.color("first"), alpha=0.16, linewidth=0)
        # Spread over the ranks of the last value, so that the outermost are among them.
        ranked = np.argsort([of[-1] for _, of in self.series], kind="stable")
        points: list[FloatArray] = []
        for run in ranked[_spread(len(ranked), BUNDLE)]:
            places = _spread(len(self.series[run][0]), BUNDLE_STEPS)
            points += [np.column_stack(self.series[run])[places], np.full((1, 2), np.nan)]
        line = axes.plot(*np.concatenate(points).T, alpha=0.7, zorder=1.8)[0]  # one line, with breaks
        _ONE_OF_MANY.apply(line, self.look)


class _Gaps:
    """The panel of a divergence: the gap per step above a band for exact zeros."""

    def __init__(self, divergence: Divergence, look: _Look, what: str, height: int) -> None:
        self.look = look
        self.height = height
        self.divergence = divergence
        self.gap = np.array(divergence.gap)
        self.noise = np.array(divergence.noise_floor or ())
        self.infinite = bool(np.isinf(self.gap).any())
        self.scale = _gap_scale(np.concatenate([self.gap, self.noise]), height, infinite=self.infinite)
        self.title = look.say("title_log" if len(self.scale.ticks) > 1 else "title", what=what)
        # Two zeros of different sign have no gap either, and yet other bits.
        first = divergence.first_step
        by_value = first is not None and self.gap[divergence.steps.index(first)] == 0
        self.labels = [_Label(0.0, look.say("equal" if by_value else "identical").splitlines())]
        if self.infinite:
            self.labels.append(_Label(math.inf, look.say("infinite").splitlines()))
        if self.noise.size:
            self.labels.append(_Label(_last(self.noise), look.say("noise").splitlines(), [_NOISE]))

    def draw(self, axes: Axes) -> None:
        self._draw_band(axes, 0, "band")
        if self.infinite:
            self._draw_band(axes, axes.bbox.height - _HEADROOM - _BAND, "grid")
        if self.noise.size:
            _draw(axes, self.divergence.steps, self.noise, _NOISE, self.look)
        self._draw_zeros(axes)
        _draw(axes, self.divergence.steps, self.gap, _GAP, self.look)
        self._name(axes)

    def _draw_band(self, axes: Axes, bottom: float, role: str) -> None:
        y, height = bottom / axes.bbox.height, _BAND / axes.bbox.height
        band = Rectangle((0, y), 1, height, transform=axes.transAxes, color=self.look.color(role), lw=0)
        axes.add_artist(band)

    def _draw_zeros(self, axes: Axes) -> None:
        """A bar in the band under each stretch of exact zeros, wide enough to be seen if it is one step."""
        steps = np.asarray(self.divergence.steps, dtype=np.float64)
        edges = np.flatnonzero(np.diff(np.concatenate([[False], self.gap == 0, [False]]).astype(int)))
        least = (steps[-1] - steps[0]) / axes.bbox.width  # a pixel
        bottom, top = ((_height(axes, 0) - axes.bbox.y0 + side) / axes.bbox.height for side in (-2.5, 2.5))
        corners, codes = [], []
        for start, stop in pairwise(edges):
            if self.gap[start] != 0:
                continue
            left, right = steps[start], steps[stop - 1]
            if right - left < least:
                left, right = (left + right - least) / 2, (left + right + least) / 2
            corners += [(left, bottom), (right, bottom), (right, top), (left, top), (left, bottom)]
            codes += [Outline.MOVETO, *[Outline.LINETO] * 3, Outline.CLOSEPOLY]
        if corners:
            bar = PathPatch(Outline(corners, codes), color=self.look.color("first"), lw=0, clip_on=False)
            bar.set_transform(axes.get_xaxis_transform())
            axes.add_artist(bar)

    def _name(self, axes: Axes) -> None:
        """Name the first step that differs; where no gap is, say so in the empty panel."""
        look, step, steps, box = self.look, self.divergence.first_step, self.divergence.steps, axes.bbox
        headroom = box.y1 - _HEADROOM / 2
        if not self.gap.any():
            line = look.say("all_identical" if step is None else "all_equal", steps=len(steps), step=step)
            y = headroom if self.noise.size else (box.y0 + _BAND + box.y1) / 2
            _write(axes, box.x0 + box.width / 2, y, line, look.color("ink"), ha="center")
        elif step is not None:
            _mark(axes, step, look)
            gap = self.gap[steps.index(step)]
            dot = Line2D([step], [gap], marker="o", markersize=6 * _PX, color=look.color("second"), zorder=3)
            dot.set(markeredgewidth=0, clip_on=False)
            axes.add_line(dot)
            line = look.say("part", step=step)
            x = float(axes.transData.transform((step, gap))[0])
            fits = x + 6 + _text_width(line) < box.x1
            _write(
                axes,
                x + (6 if fits else -6),
                headroom,
                line,
                look.color("ink"),
                ha="left" if fits else "right",
            )


def _over_numbers(of: Callable[..., Any], values: FloatArray) -> Any:
    """`of` over the first axis; NaN, without NumPy's warning, where there is no number."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
        return of(values, axis=0)


def _spread(count: int, most: int) -> IntArray:
    """At most `most` of `count` places, evenly, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _last(values: FloatArray) -> float:
    """The last value that is a number; below all of them if none is."""
    numbers = values[~np.isnan(values)]
    return float(numbers[-1]) if numbers.size else -math.inf


# Axes ------------------------------------------------------------------------------------------------------


def _metric_scale(finite: FloatArray, most: int) -> _Scale:
    """The axis for these values, with about `most` numbers on it."""
    if not finite.size:
        return _Scale("linear", 0.0, 1.0, [], [])
    low, high = float(finite.min()), float(finite.max())
    if low > 0 and high / low > 10:
        start, end = math.log10(low), math.log10(high)
        margin = 0.05 * (end - start)
        start, end = max(start - margin, -307.0), min(end + margin, 308.0)  # what a float can hold
        ticks = _log_ticks(start, end, most)
        return _Scale("log", 10**start, 10**end, ticks, _log_labels(ticks))
    low, high = max(low, -1e300), min(high, 1e300)  # so that nothing overflows
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    low, high = low - margin, high + margin
    ticks = [
        float(tick) for tick in MaxNLocator(most, steps=_NICE).tick_values(low, high) if low <= tick <= high
    ]
    return _Scale("linear", low, high, ticks, _linear_labels(ticks))


def _gap_scale(gaps: FloatArray, height: int, *, infinite: bool) -> _Scale:
    """Decades for the gaps above zero; below them the band of zeros, above them that of infinite gaps."""
    shown = gaps[(gaps > 0) & np.isfinite(gaps)]
    low, high = -1.0, 1.0
    if shown.size:
        decades = np.log10(shown)
        low, high = float(decades.min()), float(decades.max())
        if high - low < 2:  # a gap that hardly moves shall not look as if it did
            low, high = (low + high) / 2 - 1, (low + high) / 2 + 1
    below, above = _BAND + 4, _HEADROOM + (_BAND + 4) * infinite
    pixel = (high - low) / (height - below - above)
    places = {
        _ENDS[0]: low - below * pixel,
        0.0: low - (below - _BAND / 2) * pixel,
        math.inf: high + (4 + _BAND / 2) * pixel,
        _ENDS[1]: high + above * pixel,
    }
    decades_on_axis = _log_ticks(low, high, (height - below - above) // 24) if shown.size else []
    ticks = [0.0, *decades_on_axis, *([math.inf] if infinite else [])]
    labels = ["0", *_log_labels(decades_on_axis), *(["∞"] if infinite else [])]
    return _Scale("gap", *_ENDS, ticks, labels, places)


def _decades(scale: _Scale, gaps: FloatArray) -> FloatArray:
    """Where gaps lie on a gap axis."""
    gaps = np.asarray(gaps, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        decades = np.log10(gaps)
    for gap, place in scale.places.items():
        decades = np.where(gaps == gap, place, decades)
    return decades


def _from_decades(decades: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        return np.power(10.0, decades)


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten between 10^`low` and 10^`high`, or 1, 2, 5 times them where there are few."""
    powers = range(math.ceil(max(low, -323) - 1e-9), math.floor(min(high, 308) + 1e-9) + 1)
    if len(powers) < 2:
        ticks = [times * 10.0**power for power in range(math.floor(low), powers.stop) for times in (1, 2, 5)]
        return [tick for tick in ticks if low <= math.log10(tick) <= high]
    strides = (1, 2, 3, 4, 5, 10, 20, 50, 100)
    stride = next((stride for stride in strides if len(powers) / stride <= most), 200)
    return [10.0**power for power in powers if power % stride == 0]


def _log_labels(ticks: Sequence[float]) -> list[str]:
    if all(0.99e-4 < tick < 1.01e5 for tick in ticks):
        return [f"{tick:,.10g}" for tick in ticks]
    return [f"{tick:g}" if 0.99 < tick < 99 else _power(tick) for tick in ticks]


def _power(value: float, decimals: int = 0) -> str:
    """`value` as a digit times a power of ten: 10⁻⁷, 2×10⁻⁷."""
    digits, _, exponent = f"{value:.{decimals}e}".replace("-", "−", value < 0).partition("e")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    return power if digits == "1" else f"{digits}×{power}"


def _linear_labels(ticks: Sequence[float]) -> list[str]:
    """Decimal numbers with as many digits as tell neighbors apart."""
    largest = max(map(abs, ticks), default=0.0)
    exponent = math.floor(math.log10(largest)) if largest else 0
    shift = exponent if not -4 <= exponent < 6 else 0
    scaled = [tick / 10.0**shift for tick in ticks]
    close = 1e-6 * min((b - a for a, b in pairwise(scaled)), default=1.0)
    digits = next((d for d in range(16) if all(abs(round(t, d) - t) <= close for t in scaled)), 16)
    if shift:
        return [_power(tick, digits) if tick else "0" for tick in ticks]
    return [f"{tick:,.{digits}f}".replace("-", "−") for tick in ticks]


# Files -----------------------------------------------------------------------------------------------------


def _svg(figure: Figure) -> str:
    """The figure as Matplotlib's SVG, the same on every machine: text is text, of no certain font."""
    buffer = io.BytesIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with _drawing(), warnings.catch_warnings():
        # It is the reader's system that draws the text; that Matplotlib's own font lacks Chinese is no matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", metadata=metadata)
    return buffer.getvalue().decode()


def _font(figure: Figure, path: Path) -> str:
    """Matplotlib's own font, or an installed Chinese one if the figure has characters that it lacks.

    Raises:
        InputError: no installed font has them.
    """
    texts = [part.get_text() for part in figure.findobj(Text) if isinstance(part, Text)]
    missing = _lacks(_OWN_FONT, {character for line in texts for character in line})
    if not missing:
        return _OWN_FONT
    installed = set(font_manager.get_font_names())
    for family in CHINESE_FONTS:
        if family in installed and not _lacks(family, missing):
            return family
    raise InputError("plots.no_font", file=path, characters="".join(sorted(missing)[:8]))


def _lacks(family: str, characters: Iterable[str]) -> set[str]:
    font = font_manager.get_font(font_manager.findfont(family))
    return {c for c in characters if c.isprintable() and not font.get_char_index(ord(c))}


# The site --------------------------------------------------------------------------------------------------


def figure_svg(kind: str, record: Record, lang: str, width: Width) -> str:
    """The figure of `record` as an ``<svg>`` to stand in a page.

    Its colors are the variables of `css_variables`, its fonts the page's, its size in CSS pixels; its name
    for screen readers says in words what it shows. `kind` is "runs", "metric", "divergence", "streams" or
    "pictures".

    Raises:
        InputError: another kind, or a record that has nothing to draw.

    Lesson: line_fit
    """
    look = _Look(lang, "light", width)
    if kind == "streams":
        streams = _streams_of(record)
        figure, description = plot_streams(streams, lang=lang, width=width), _describe_streams(streams, look)
    elif kind == "pictures":
        pictures = _pictures_of(record)
        figure = plot_pictures(pictures, lang=lang, width=width)
        description = _describe_pictures(pictures, look)
    else:
        metric = _metric_of(record)
        divergence = _divergence_of(kind, record, metric)
        description = _describe(kind, record, metric, look, divergence)
        if kind == "divergence":
            assert divergence is not None
            figure = plot_divergence(divergence, lang=lang, width=width)
        elif kind == "runs":
            figure = _plot_runs(record.runs, metric, look, divergence)
        else:
            figure = plot_metric(record.runs, metric, lang=lang, width=width)
    figure.patch.set_visible(False)
    digest = hashlib.sha256(repr(record).encode()).hexdigest()[:10]
    name = f"plot-{kind}-{lang}-{width}-{digest}"
    w, h = figure.bbox.width, figure.bbox.height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="{name}" width="{w:.0f}" '
        f'height="{h:.0f}" viewBox="0 0 {w * _PX:g} {h * _PX:g}" '
        'style="max-width:100%;height:auto;stroke-linejoin:round">'
        f'<title id="{name}">{escape(description)}</title>'
        f"{_inline(_svg(figure), name)}</svg>"
    )


def figure_table(kind: str, record: Record, lang: str) -> list[list[str]]:
    """The data of the figure in about ten rows under a row of headings: step, values, gap.

    Values have all their digits. Of more than five runs the lowest, median and highest value stand.

    Raises:
        InputError: as `figure_svg`.

    Lesson: line_fit
    """
    look = _Look(lang, "light", "wide")
    if kind == "streams":
        streams = _streams_of(record)
        heads = [look.say("number"), *(_stream_label(stream, look) for stream in streams)]
        drawn = zip(*(stream["numbers"] for stream in streams), strict=True)
        return [heads, *([str(at), *map(_digits, of)] for at, of in enumerate(drawn, start=1))]
    if kind == "pictures":
        pictures = _pictures_of(record)
        heads = ["", *(look.say("gpu", number=number) for number in range(len(pictures[0]["images"])))]
        dots = [[" ".join(_dotted(image)) for image in row["images"]] for row in pictures]
        return [heads, *([_stream_label(row, look), *of] for row, of in zip(pictures, dots, strict=True))]
    metric = _metric_of(record)
    divergence = _divergence_of(kind, record, metric)
    runs = record.runs[:2] if kind == "divergence" else record.runs
    series = [dict(zip(run.steps_of(metric), run.metrics[metric], strict=True)) for run in runs]
    rows = _rows(sorted(set().union(*series)), divergence.first_step if divergence else None)
    columns = [[look.say("step"), *map(str, rows)]]
    if len(runs) <= len(_RUNS):
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
    _having(record.runs, metric)
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
    return _largest(runs, metric) if comparable or kind == "runs" else None


def _describe(kind: str, record: Record, metric: str, look: _Look, divergence: Divergence | None) -> str:
    """What the figure shows, in words."""
    runs = record.runs[:2] if kind == "divergence" else record.runs
    steps = len({step for run in runs for step in run.steps_of(metric)})
    *others, last = (look.run(run.name) for run in runs)
    names = look.say("and", names=look.say("comma").join(others), last=last) if others else last
    if len(runs) > len(_RUNS):
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


def _streams_of(record: Record) -> Sequence[Mapping[str, Any]]:
    streams: Sequence[Mapping[str, Any]] = record.results.get("streams", ())
    if not streams:
        raise InputError("plots.no_streams")
    return streams


def _describe_streams(streams: Sequence[Mapping[str, Any]], look: _Look) -> str:
    first = streams[0]["numbers"]
    sentences = [look.say("about_streams", rows=len(streams), count=len(first))]
    for stream in streams[1:]:
        verdict = _stream_verdict(stream["numbers"], first, look)
        sentences.append(look.say("about_row", label=_stream_label(stream, look), verdict=verdict))
    return look.say("space").join(sentences)


def _pictures_of(record: Record) -> Sequence[Mapping[str, Any]]:
    pictures: Sequence[Mapping[str, Any]] = record.results.get("pictures", ())
    if not pictures:
        raise InputError("plots.no_pictures")
    return pictures


def _describe_pictures(pictures: Sequence[Mapping[str, Any]], look: _Look) -> str:
    sentences = []
    for row in pictures:
        different = len(set(map(tuple, row["images"])))
        values = {"label": _stream_label(row, look), "gpus": len(row["images"]), "different": different}
        sentences.append(look.say("about_pictures", **values))
    return look.say("space").join(sentences)


def _dotted(image: Sequence[int]) -> list[str]:
    """The image as lines of text, a character to the pixel."""
    size = math.isqrt(len(image))
    return ["".join(".#"[pixel] for pixel in image[at : at + size]) for at in range(0, size * size, size)]


def _rows(steps: Sequence[int], first_step: int | None) -> list[int]:
    """About ten of `steps`: the first, the last, the one where the runs part, and round numbers between."""
    if len(steps) <= TABLE_ROWS + 2:
        return list(steps)
    known = set(steps)
    rows = {steps[0], steps[-1], *([] if first_step is None else [first_step])}
    round_steps = MaxNLocator(TABLE_ROWS, steps=_NICE, integer=True).tick_values(steps[0], steps[-1])
    between = {int(step) for step in round_steps} & known
    if len(between) < TABLE_ROWS // 2:  # steps that were not logged at round numbers
        between = {steps[place] for place in _spread(len(steps), TABLE_ROWS)}
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

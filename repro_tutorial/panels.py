"""What figures are made of: the look, text, axes, and the panels of a metric and of a gap."""

import functools
import math
import re
import sys
import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import matplotlib.style
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Outline
from matplotlib.ticker import MaxNLocator

from repro_tutorial.divergence import Divergence, FloatArray
from repro_tutorial.messages import catalog, text
from repro_tutorial.runs import Run

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
BUNDLE = 30  # of more than five runs, so many are drawn one by one
BUNDLE_STEPS = 120  # at so many steps
PX = 0.75  # points: figures are made of CSS pixels, of which an inch has 96
_SIZE = 13  # of all text, in pixels
_LINE = 16  # from one line of text to the next
HEADER = 28  # above each panel: its title
SPACE = 8  # between panels, above the title
FOOT = 28  # below the last panel: numbers of the steps
_BAND = 32  # height of the band of zeros, and of that of infinite gaps
_HEADROOM = 22  # above the largest gap: a line of text that no curve crosses
_BESIDE = 56  # least room for what stands beside a panel: there is the name of the step axis, too
_SAMPLE = 22  # from the start of a label's line sample to its text
NICE = (1, 2, 2.5, 5, 10)  # numbers on linear axes are multiples of these
_ENDS = (
    -1.0,
    sys.float_info.max,
)  # of every gap axis: no gap is as small, and none as large but infinite ones
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
OWN_FONT = "DejaVu Sans"  # comes with Matplotlib
_STYLE = {
    "font.family": ["sans-serif", OWN_FONT],  # what the first lacks is taken from the second
    "path.simplify_threshold": 0.15,
    "svg.fonttype": "none",
    "svg.hashsalt": "repro_tutorial",
}


@dataclass(frozen=True)
class Look:
    """How a figure is to look: language, colors, width."""

    lang: str
    theme: Theme
    width: Width

    def say(self, key: str, **values: object) -> str:
        """A sentence of the figures, in the figure's language."""
        return text(f"plots.{key}", self.lang, **values)

    def color(self, role: str) -> str:
        """The color of the theme for what has this part in the figure."""
        return THEMES[self.theme][role]

    def metric(self, name: str) -> str:
        """The name of a metric, in the figure's language where it is a known one."""
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

    def apply(self, line: Line2D, look: Look, fine: float = 1.0) -> None:
        line.set(color=look.color(self.role), linewidth=fine * self.width * PX)
        line.set(linestyle=(0, self.dashes) if self.dashes else "-", clip_on=False)
        line.set(solid_capstyle="butt", dash_capstyle="butt", markeredgewidth=0)


# The runs of a figure, in the order they are drawn. A thin dark dashed line on a thick pale one shows both
# where they coincide.
RUNS = (
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


def drawing(settings: Mapping[str, object] | None = None) -> AbstractContextManager[None]:
    """Matplotlib's defaults and our few settings, for as long as it lasts."""
    return matplotlib.style.context(["default", _STYLE | dict(settings or {})])


def compose(look: Look, steps: Sequence[int], panels: Sequence["Metrics | Gaps"]) -> Figure:
    """A figure of `panels`, one below the other on the same steps, with room for what stands beside them."""
    width = WIDTHS[look.width]
    height = sum(SPACE + HEADER + panel.height for panel in panels) - SPACE + FOOT
    left = 12 + max((text_width(label) for panel in panels for label in panel.scale.labels), default=0)
    labels = [label for panel in panels for label in panel.labels]
    beside = max(_BESIDE, *(_SAMPLE * bool(lb.sample) + max(map(text_width, lb.lines)) for lb in labels))
    inner = (width - left - 8 - beside - 4) / width
    with drawing():
        figure = Figure(figsize=(width / 96, height / 96), dpi=96, facecolor=look.color("paper"))
        top = height
        for panel in panels:
            top -= HEADER + panel.height
            axes = figure.add_axes((left / width, top / height, inner, panel.height / height))
            top -= SPACE
            _value_axis(axes, panel.scale, look)
            _step_axis(axes, steps, look, numbers=panel is panels[-1])
            write(axes, 2, axes.bbox.y1 + 14, panel.title, look.color("ink"), weight="bold")
            panel.draw(axes)
            _write_labels(axes, panel.labels, look)
    return figure


def _value_axis(axes: Axes, scale: _Scale, look: Look) -> None:
    axes.set(facecolor="none", axisbelow=True)
    for side, spine in axes.spines.items():
        spine.set(visible=side == "bottom", color=look.color("muted"), linewidth=PX)
    axes.tick_params(labelsize=_SIZE * PX, labelcolor=look.color("muted"), color=look.color("muted"))
    axes.tick_params(axis="y", length=0, pad=6 * PX)
    axes.tick_params(axis="x", length=4 * PX, width=PX, pad=4 * PX)
    axes.grid(axis="y", color=look.color("grid"), linewidth=PX)
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


def _step_axis(axes: Axes, steps: Sequence[int], look: Look, *, numbers: bool) -> None:
    first, last = steps[0], steps[-1]
    margin = 0.5 if first == last else 0
    axes.set_xlim(first - margin, last + margin)
    most = 6 if look.width == "wide" else 4
    ticks = [int(tick) for tick in MaxNLocator(most, steps=NICE, integer=True).tick_values(first, last)]
    ticks = [tick for tick in ticks if first <= tick <= last]
    if not ticks or ticks[0] - first > (last - first) * 0.4 / most:
        ticks.insert(0, first)
    axes.set_xticks(ticks, [f"{tick:,}" if numbers else "" for tick in ticks])
    if numbers:
        box = axes.bbox
        end = box.x0 + box.width * (ticks[-1] - first + margin) / (last - first + 2 * margin)
        after = max(box.x1 + 10, end + text_width(f"{ticks[-1]:,}") / 2 + 8)
        write(axes, after, box.y0 - 14.5, look.say("step"), look.color("muted"))


def mark(axes: Axes, step: int, look: Look) -> None:
    """A fine vertical line at `step`."""
    axes.axvline(step, color=look.color("muted"), linewidth=PX, alpha=0.6, zorder=1.5)


def write(place: Axes | Figure, x: float, y: float, line: str, color: str, **style: str) -> None:
    """Text whose middle is at height `y`: pixels from the lower left corner of the figure."""
    figure = place.figure
    # The baseline is set here: Matplotlib would measure with a font that the reader does not see.
    x, y = x / figure.bbox.width, (y - 0.36 * _SIZE) / figure.bbox.height
    words = figure.text(x, y, line, color=color, size=_SIZE * PX, va="baseline", parse_math=False)
    words.set(**style)


def text_width(line: str) -> float:
    """About how many pixels `line` takes, in whichever face the reader has."""
    return sum(_SIZE * (1.0 if unicodedata.east_asian_width(c) in "WF" else 0.6) for c in line)


def _write_labels(axes: Axes, labels: Sequence[_Label], look: Look) -> None:
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
            write(axes, x, y_line, line, look.color("ink"))


def _draw(axes: Axes, steps: npt.ArrayLike, values: FloatArray, stroke: _Stroke, look: Look) -> None:
    """A line through all values; finer where it goes up and down so much that it would fill the panel."""
    marker = "o" if len(values) == 1 else ""  # a line of one point is invisible
    line = axes.plot(steps, values, marker=marker, markersize=6 * PX, zorder=2)[0]
    heights = axes.transData.transform(np.column_stack([steps, values]))[:, 1]
    travel = np.abs(np.diff(heights[np.isfinite(heights)])).sum()
    stroke.apply(line, look, fine=1.0 if travel < 5 * axes.bbox.width else 0.55)


def _height(axes: Axes, value: float) -> float:
    """Where `value` stands on the axis, in pixels from the figure's lower edge."""
    return float(axes.transData.transform((axes.get_xlim()[0], value))[1])


class Metrics:
    """The panel of a metric: a line for each run, or for many the range, a bundle, and the median."""

    def __init__(self, runs: Sequence[Run], metric: str, look: Look, height: int) -> None:
        self.look = look
        self.height = height
        self.series = [(np.array(run.steps_of(metric)), np.array(run.metrics[metric], float)) for run in runs]
        steps = np.concatenate([steps for steps, _ in self.series])
        values = np.concatenate([values for _, values in self.series])
        self.steps = (int(steps.min()), int(steps.max()))
        self.scale = _metric_scale(values[np.isfinite(values)], height // 36)
        self.title = look.say("title_log" if self.scale.kind == "log" else "title", what=look.metric(metric))
        few = len(runs) <= len(RUNS)
        alike = len({(steps.tobytes(), values.tobytes()) for steps, values in self.series}) == 1
        self.bundle = not few and not alike
        say = look.say
        if few:
            self.labels = [
                _Label(_last(values), [look.label(run.name)], [stroke])
                for run, (_, values), stroke in zip(runs, self.series, RUNS, strict=False)
            ]
        elif alike:
            lines = [say("runs", runs=len(runs)), say("alike")]
            self.series = self.series[:2]
            self.labels = [_Label(_last(self.series[0][1]), lines, RUNS[:2])]
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
        """Draw the lines on axes that have the panel's scale."""
        if not self.scale.labels:
            x, y = axes.bbox.x0 + axes.bbox.width / 2, axes.bbox.y0 + axes.bbox.height / 2
            write(axes, x, y, self.look.say("no_numbers"), self.look.color("muted"), ha="center")
        if self.bundle:
            self._draw_bundle(axes)
            _draw(axes, self.all_steps, self.median, _MEDIAN, self.look)
        else:
            for (steps, values), stroke in zip(self.series, RUNS, strict=False):
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
        for run in ranked[spread(len(ranked), BUNDLE)]:
            places = spread(len(self.series[run][0]), BUNDLE_STEPS)
            points += [np.column_stack(self.series[run])[places], np.full((1, 2), np.nan)]
        line = axes.plot(*np.concatenate(points).T, alpha=0.7, zorder=1.8)[0]  # one line, with breaks
        _ONE_OF_MANY.apply(line, self.look)


class Gaps:
    """The panel of a divergence: the gap per step above a band for exact zeros."""

    def __init__(self, divergence: Divergence, look: Look, what: str, height: int) -> None:
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
        """Draw the bands, the noise of seeds and the gap on axes that have the panel's scale."""
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
            write(axes, box.x0 + box.width / 2, y, line, look.color("ink"), ha="center")
        elif step is not None:
            mark(axes, step, look)
            gap = self.gap[steps.index(step)]
            dot = Line2D([step], [gap], marker="o", markersize=6 * PX, color=look.color("second"), zorder=3)
            dot.set(markeredgewidth=0, clip_on=False)
            axes.add_line(dot)
            line = look.say("part", step=step)
            x = float(axes.transData.transform((step, gap))[0])
            fits = x + 6 + text_width(line) < box.x1
            write(
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


def spread(count: int, most: int) -> IntArray:
    """At most `most` of `count` places, evenly, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _last(values: FloatArray) -> float:
    """The last value that is a number; below all of them if none is."""
    numbers = values[~np.isnan(values)]
    return float(numbers[-1]) if numbers.size else -math.inf


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
        float(tick) for tick in MaxNLocator(most, steps=NICE).tick_values(low, high) if low <= tick <= high
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

"""Figures of runs and of how far they part, on the screen and in files; the text in two languages.

Whatever Matplotlib is set to draw like, a figure comes out the same: nothing here reads or changes the
reader's rcParams, and nothing needs a display.
"""

import io
import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Outline
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from repro_tutorial.divergence import Divergence, compare
from repro_tutorial.messages import InputError, render
from repro_tutorial.panels import (
    FOOT,
    HEADER,
    NICE,
    OWN_FONT,
    PX,
    SPACE,
    WIDTHS,
    Gaps,
    Look,
    Metrics,
    Theme,
    Width,
    compose,
    drawing,
    mark,
    text_width,
    write,
)
from repro_tutorial.runs import Run, write_new

SUFFIXES = (".svg", ".png", ".pdf")

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

_TAPE = 36  # height of a row of random numbers
_PICTURE: Mapping[Width, int] = {"wide": 110, "narrow": 80}  # edge of a square picture
_CAPTION = 24  # below it
_LEGEND = 20  # from one line of a legend to the next
# Who draws in the lesson data_loading, and the color of each.
DRAWERS = {
    "weights": "muted",
    "training_seed": "first",
    "training_order": "noise",
    "dropout": "ink",
    "validation_seed": "second",
}
_BARS: Mapping[Width, int] = {"wide": 110, "narrow": 100}  # height of a histogram
_MARKS = 44  # above its bars: the mean and the chosen value, a line of text each
_ALONE: Mapping[Width, int] = {"wide": 240, "narrow": 190}  # height of a panel, and of two in one figure:
_UPPER: Mapping[Width, int] = {"wide": 210, "narrow": 180}
_LOWER: Mapping[Width, int] = {"wide": 190, "narrow": 170}


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
    look = Look(lang, theme, width)
    panel = Metrics(having(runs, metric), metric, look, _ALONE[width])
    return compose(look, panel.steps, [panel])


def plot_divergence(
    divergence: Divergence, *, lang: str = "en", theme: Theme = "light", width: Width = "wide"
) -> Figure:
    """The absolute gap per step on a log axis, exact zeros in a band of their own, the first difference marked.

    Infinite gaps (one value infinite or NaN) lie in a band at the top. The noise of seeds is drawn if
    `divergence` has it.

    Lesson: line_fit
    """
    look = Look(lang, theme, width)
    return compose(look, divergence.steps, [Gaps(divergence, look, look.say("gap"), _ALONE[width])])


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
    look = Look(lang, theme, width)
    divergence = largest(having(runs, metric), metric)
    if divergence is None:
        panel = Metrics(runs, metric, look, _ALONE[width])
        return compose(look, panel.steps, [panel])
    gap = look.say("gap") if len(runs) == 2 else look.say("gap_to", run=look.label(runs[0].name))
    upper = Metrics(runs, metric, look, _UPPER[width])
    figure = compose(look, divergence.steps, [upper, Gaps(divergence, look, gap, _LOWER[width])])
    if divergence.first_step is not None:
        mark(figure.axes[0], divergence.first_step, look)
    return figure


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
    look, pixels = Look(lang, theme, width), WIDTHS[width]
    rows, count = [stream["numbers"] for stream in streams], len(streams[0]["numbers"])
    right = 12 + text_width(look.say("number"))
    with drawing():
        figure, bottoms = _rows_of(look, streams, _TAPE, 0, FOOT)
        height = figure.bbox.height
        for place, (row, bottom) in enumerate(zip(rows, bottoms, strict=True), start=1):
            axes = figure.add_axes((0, bottom / height, 1 - right / pixels, _TAPE / height))
            axes.set_axis_off()
            axes.set(xlim=(0.5, count + 0.5), ylim=(0, 1))
            if place > 1:
                verdict = stream_verdict(row, rows[0], look)
                write(axes, axes.bbox.x1 - 2, bottom + _TAPE + 12, verdict, look.color("ink"), ha="right")
            for at, (number, first) in enumerate(zip(row, rows[0], strict=True), start=1):
                color = look.color("first" if number == first else "second")
                axes.add_patch(Rectangle((at - 0.46, 0), 0.92, 1, color=look.color("grid"), lw=0))
                axes.add_patch(Rectangle((at - 0.46, 0), 0.92, number, color=color, lw=0))
        for at in range(1, count + 1):
            x = axes.bbox.width * (at - 0.5) / count
            write(axes, x, 14, str(at), look.color("muted"), ha="center")
        write(axes, axes.bbox.x1 + 8, 14, look.say("number"), look.color("muted"))
    return figure


def _rows_of(
    look: Look, rows: Sequence[Mapping[str, Any]], inner: int, below: int, foot: int
) -> tuple[Figure, list[int]]:
    """A figure of rows under their labels, `foot` pixels below the last, and the lower edge of each row.

    A row is `inner` pixels high, with `below` pixels for what stands under it.
    """
    row_height = HEADER + inner + below
    height = len(rows) * row_height + foot
    figure = Figure(figsize=(WIDTHS[look.width] / 96, height / 96), dpi=96, facecolor=look.color("paper"))
    bottoms = [height - place * row_height + below for place in range(1, len(rows) + 1)]
    for row, bottom in zip(rows, bottoms, strict=True):
        write(figure, 2, bottom + inner + 12, stream_label(row, look), look.color("ink"), weight="bold")
    return figure, bottoms


def stream_label(stream: Mapping[str, Any], look: Look) -> str:
    """What stands above a row: its label, a line of text or a message."""
    label = stream["label"]
    return look.run(label) if isinstance(label, str) else render(label, look.lang)


def stream_verdict(row: Sequence[float], first: Sequence[float], look: Look) -> str:
    """Whether a row has the numbers of the first row, or from where on it has others."""
    parted = next((at for at, (a, b) in enumerate(zip(row, first, strict=True), start=1) if a != b), None)
    return look.say("stream_same") if parted is None else look.say("stream_part", place=parted)


def plot_pictures(
    pictures: Sequence[Mapping[str, Any]],
    *,
    lang: str = "en",
    theme: Theme = "light",
    width: Width = "wide",
) -> Figure:
    """Rows of square black and white pictures, such as one of each row from every GPU.

    Each of `pictures` has a `label` (a message) and `images`: the pixels of each, 0 or 1, row by row; and
    `captions` (messages) if they are not from GPU 0, 1, …. An image that is not the first one has the second
    color.

    Raises:
        InputError: no pictures.

    Lesson: multi_gpu_seeding
    """
    if not pictures:
        raise InputError("plots.no_pictures")
    look, pixels = Look(lang, theme, width), WIDTHS[width]
    side = _PICTURE[width]
    with drawing():
        figure, bottoms = _rows_of(look, pictures, side, _CAPTION, SPACE)
        height = figure.bbox.height
        for row, bottom in zip(pictures, bottoms, strict=True):
            for number, image in enumerate(row["images"]):
                left = 2 + number * (side + SPACE)
                axes = figure.add_axes((left / pixels, bottom / height, side / pixels, side / height))
                size = math.isqrt(len(image))
                axes.set(xlim=(0, size), ylim=(size, 0), xticks=(), yticks=(), facecolor=look.color("grid"))
                for spine in axes.spines.values():
                    spine.set_visible(False)
                color = look.color("first" if image == row["images"][0] else "second")
                axes.add_patch(PathPatch(_pixels(image, size), facecolor=color, linewidth=0))
                caption = picture_captions(row, look)[number]
                write(axes, left + side / 2, bottom - 11, caption, look.color("muted"), ha="center")
    return figure


def picture_captions(row: Mapping[str, Any], look: Look) -> list[str]:
    """What stands below the pictures of a row."""
    if "captions" in row:
        return [render(caption, look.lang) for caption in row["captions"]]
    return [look.say("gpu", number=number) for number in range(len(row["images"]))]


def plot_draws(
    draws: Sequence[Mapping[str, Any]],
    *,
    lang: str = "en",
    theme: Theme = "light",
    width: Width = "wide",
) -> Figure:
    """Rows of draws from one generator, a cell each, with the color and the letter of who drew.

    Each of `draws` has a `label` (a message) and `cells`: who drew (`by`), and whether from the same state as
    in the first row (`same`; ``None``: the first row has no such draw). A cell that starts elsewhere is hollow.

    Raises:
        InputError: no draws.

    Lesson: data_loading
    """
    if not draws:
        raise InputError("plots.no_draws")
    look, pixels = Look(lang, theme, width), WIDTHS[width]
    most = max(len(row["cells"]) for row in draws)
    legend = [look.say(f"draw_{by}") for by in DRAWERS] + [look.say("draw_other")]
    columns = 2 if width == "wide" else 1
    foot = _CAPTION + _LEGEND * -(-len(legend) // columns) + SPACE
    with drawing():
        figure, bottoms = _rows_of(look, draws, _TAPE, _CAPTION, foot)
        height = figure.bbox.height
        for row, bottom in zip(draws, bottoms, strict=True):
            axes = figure.add_axes((0, bottom / height, 1, _TAPE / height))
            axes.set_axis_off()
            axes.set(xlim=(0.5, most + 0.5), ylim=(0, 1))
            for at, cell in enumerate(row["cells"], start=1):
                color = look.color(DRAWERS[cell["by"]])
                fill = look.color("paper") if cell["same"] is False else color
                # Within the cell, so that the edge of a hollow one is as wide as a full one.
                axes.add_patch(
                    Rectangle((at - 0.4, 0.06), 0.8, 0.88, facecolor=fill, edgecolor=color, linewidth=2 * PX)
                )
                letter = look.say(f"draw_{cell['by']}").partition(" ")[0]
                x = axes.bbox.width * (at - 0.5) / most
                write(axes, x, bottom - 10, letter, look.color("ink"), ha="center")
        roles = [*DRAWERS.values(), None]
        for number, (line, role) in enumerate(zip(legend, roles, strict=True)):
            x, y = 2 + pixels / columns * (number % columns), foot - _CAPTION - _LEGEND * (number // columns)
            box = Rectangle(
                ((x + 1) / pixels, (y - 5) / height),
                10 / pixels,
                10 / height,
                transform=figure.transFigure,
                facecolor=look.color(role or "paper"),
                edgecolor=look.color(role or "ink"),
                linewidth=PX,
            )
            figure.add_artist(box)
            write(axes, x + 18, y, line, look.color("ink"))
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


def plot_histograms(
    histograms: Sequence[Mapping[str, Any]],
    *,
    lang: str = "en",
    theme: Theme = "light",
    width: Width = "wide",
) -> Figure:
    """How often each value occurs, a panel for each of `histograms`, all on one axis.

    Each has a `label` (a line of text or a message) and `values` in percent, one of a seed each; `chosen` is
    the place of the value that is marked by a dot, besides the mean, which is marked by a dashed line.

    Raises:
        InputError: no histograms.

    Lesson: seed_variance
    """
    if not histograms:
        raise InputError("plots.no_histograms")
    look, pixels = Look(lang, theme, width), WIDTHS[width]
    edges = histogram_edges([value for row in histograms for value in row["values"]])
    counts = [np.histogram(row["values"], edges)[0] for row in histograms]
    most = max(int(of.max()) for of in counts)
    bars, panel = _BARS[width], HEADER + _MARKS + _BARS[width] + FOOT
    height, left = len(histograms) * panel + SPACE, 16 + text_width(str(most))
    with drawing():
        figure = Figure(figsize=(pixels / 96, height / 96), dpi=96, facecolor=look.color("paper"))
        for place, (row, of) in enumerate(zip(histograms, counts, strict=True)):
            bottom = height - (place + 1) * panel + FOOT
            box = (left / pixels, bottom / height, 1 - (left + 26) / pixels, (bars + _MARKS) / height)
            axes = figure.add_axes(box)
            axes.set(xlim=(edges[0], edges[-1]), ylim=(0, most * (bars + _MARKS) / bars))
            axes.set(facecolor="none", axisbelow=True, yticks=[0, most])
            for side, spine in axes.spines.items():
                spine.set(visible=side == "bottom", color=look.color("muted"), linewidth=PX)
            axes.tick_params(labelsize=13 * PX, labelcolor=look.color("muted"), color=look.color("muted"))
            axes.tick_params(axis="y", length=0)
            ticks = MaxNLocator(6 if width == "wide" else 4, steps=NICE).tick_values(edges[0], edges[-1])
            ticks = [tick for tick in ticks if edges[0] <= tick <= edges[-1]]
            axes.set_xticks(ticks, [f"{tick:g}%" for tick in ticks])
            for low, high, count in zip(edges, edges[1:], of, strict=False):
                inside = 0.06 * (high - low)
                corner, size = (low + inside, 0), (high - low - 2 * inside, count)
                axes.add_patch(Rectangle(corner, *size, color=look.color("first"), lw=0))
            title = (
                f"{stream_label(row, look)}{look.say('colon')}{look.say('seeds', seeds=len(row['values']))}"
            )
            write(axes, 2, axes.bbox.y1 + 14, title, look.color("ink"), weight="bold")
            mean, chosen = float(np.mean(row["values"])), row["values"][row["chosen"]]
            scale = most / bars  # of a pixel
            axes.plot(
                [mean] * 2, [0, scale * (bars + 18)], color=look.color("ink"), lw=1.6 * PX, ls=(0, (4, 2))
            )
            _beside(axes, mean, axes.bbox.y0 + bars + 12, look.say("mean", value=mean), look)
            dot = axes.plot([chosen], [scale * (bars + 34)], marker="o", markersize=9 * PX, clip_on=False)[0]
            dot.set(color=look.color("second"), markeredgewidth=0)
            _beside(axes, chosen, axes.bbox.y0 + bars + 34, look.say("chosen", value=chosen), look)
    return figure


def _beside(axes: Axes, value: float, y: float, line: str, look: Look) -> None:
    """Text at the right of `value`, or at its left where it would not fit."""
    x = float(axes.transData.transform((value, 0))[0])
    fits = x + 9 + text_width(line) < axes.figure.bbox.width
    write(axes, x + (9 if fits else -9), y, line, look.color("ink"), ha="left" if fits else "right")


def histogram_edges(values: Sequence[float]) -> list[float]:
    """The edges of about twelve bars for `values`, at round numbers."""
    low, high = min(values), max(values)
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = MaxNLocator(12, steps=NICE, min_n_ticks=2).tick_values(low, high)
    return [round(float(edge), 10) for edge in edges]


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
        with_fonts = re.sub(r'font-family: [^;"]*', f"font-family: {FONT_STACK}", svg(figure))
        write_new(path, with_fonts.encode())
        return
    metadata = {".png": {"Software": None}, ".pdf": {"CreationDate": None, "Creator": None, "Producer": None}}
    buffer = io.BytesIO()
    with drawing({"font.sans-serif": [_font(figure, path)]}):
        figure.savefig(buffer, format=suffix[1:], dpi=2 * figure.dpi, metadata=metadata[suffix])
    write_new(path, buffer.getvalue())


def having(runs: Sequence[Run], metric: str) -> Sequence[Run]:
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


def largest(runs: Sequence[Run], metric: str) -> Divergence | None:
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


def svg(figure: Figure) -> str:
    """The figure as Matplotlib's SVG, the same on every machine: text is text, of no certain font."""
    buffer = io.BytesIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with drawing(), warnings.catch_warnings():
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
    missing = _lacks(OWN_FONT, {character for line in texts for character in line})
    if not missing:
        return OWN_FONT
    installed = set(font_manager.get_font_names())
    for family in CHINESE_FONTS:
        if family in installed and not _lacks(family, missing):
            return family
    raise InputError("plots.no_font", file=path, characters="".join(sorted(missing)[:8]))


def _lacks(family: str, characters: Iterable[str]) -> set[str]:
    font = font_manager.get_font(font_manager.findfont(family))
    return {c for c in characters if c.isprintable() and not font.get_char_index(ord(c))}

"""Figures are tested by their data, never by their pixels."""

import io
import math
import re
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.text import Text

from repro_tutorial import panels, plots
from repro_tutorial.divergence import compare
from repro_tutorial.messages import LANGUAGES, InputError, text
from repro_tutorial.panels import THEMES, WIDTHS
from repro_tutorial.plots import plot_divergence, plot_metric, plot_runs, save_figure
from repro_tutorial.runs import Record, Run
from repro_tutorial.site_figures import css_variables, figure_svg, figure_table

STEPS = 60
KINDS = ("runs", "metric", "divergence")


def a_run(number, factor=1.0, *, start=1, seed=3, name=None):
    """A falling loss, times `factor` from step `start` on."""
    steps = range(1, STEPS + 1)
    loss = tuple(1000 / step**2 * (factor if step >= start else 1.0) for step in steps)
    return Run(name or f"run {number}", seed, {"loss": loss})


def a_record(*runs):
    return Record("line_fit", "python demos/line_fit.py", "2026-11-30", {}, runs, {}, ())


def seeds(count):
    return [a_run(number, 1 + number / 7, seed=number) for number in range(1, count + 1)]


SAME = (a_run(1), a_run(2))
PARTED = (a_run(1), a_run(2, 1.5, start=20))


def lines(figure, panel=0):
    """The lines that run through all steps."""
    return [line for line in figure.axes[panel].lines if len(line.get_xdata()) == STEPS]


def texts(figure):
    figure.draw_without_rendering()
    parts = [part for part in figure.findobj(Text) if part.get_visible()]
    return [part.get_text() for part in parts if part.get_text()]


def pixels(figure, panel, values):
    """Heights at which `values` are drawn, from the lower end of the panel."""
    axes = figure.axes[panel]
    points = np.column_stack([np.ones(len(values)), values])
    return axes.transData.transform(points)[:, 1] - axes.bbox.y0


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def lightness(color):
    return 116 * luminance(color) ** (1 / 3) - 16


# Data -----------------------------------------------------------------------------------------------------


def test_lines_are_the_runs():
    for line, run in zip(lines(plot_metric(PARTED)), PARTED, strict=True):
        assert list(line.get_xdata()) == list(range(1, STEPS + 1))
        assert tuple(line.get_ydata()) == run.metrics["loss"]


def test_steps_are_those_logged():
    run = Run("a", 3, {"loss": (3.0, 2.0, 1.0)}, steps={"loss": (10, 20, 40)})
    assert list(plot_metric([run]).axes[0].lines[0].get_xdata()) == [10, 20, 40]


def test_figure_of_runs_has_both_panels_on_the_same_steps():
    upper, lower = plot_runs(PARTED).axes
    assert upper.get_xlim() == lower.get_xlim() == (1, STEPS)
    assert (upper.get_position().x0, upper.get_position().x1) == (
        lower.get_position().x0,
        lower.get_position().x1,
    )
    assert upper.get_position().y0 > lower.get_position().y1
    [gap] = lines(plot_runs(PARTED), panel=1)
    assert tuple(gap.get_ydata()) == compare(*PARTED).gap


@pytest.mark.parametrize(
    ("values", "scale"),
    [((20.0, 3.0, 1.0), "log"), ((5.0, 3.0, 1.0), "linear"), ((20.0, 3.0, -1.0), "linear")],
)
def test_log_axis_for_positive_values_over_a_decade(values, scale):
    assert plot_metric([Run("a", 3, {"loss": values})]).axes[0].get_yscale() == scale


def test_zeros_are_drawn_in_their_band():
    figure = plot_divergence(compare(*PARTED))
    [gap] = lines(figure)
    values = gap.get_ydata()
    assert np.count_nonzero(values == 0) == 19
    heights = pixels(figure, 0, values)
    assert (heights[values == 0] == heights[0]).all()
    assert 0 < heights[0] < panels._BAND < heights[values > 0].min()
    assert {"0", "identical", "bit for bit"} <= set(texts(figure))


def test_gaps_above_zero_are_on_a_log_axis():
    figure = plot_divergence(compare(*PARTED))
    a, b, c = pixels(figure, 0, [1e-3, 1e-2, 1e-1])
    assert b - a == pytest.approx(c - b)


def test_first_difference_is_marked_and_named():
    figure = plot_runs(PARTED)
    assert "part at step 20" in texts(figure)
    [dot] = [line for line in figure.axes[1].lines if line.get_marker() == "o"]
    assert (dot.get_xdata()[0], dot.get_ydata()[0]) == (20, compare(*PARTED).gap[19])
    for axes in figure.axes:  # an upright line through both panels
        assert [20, 20] in [list(line.get_xdata()) for line in axes.lines]


def test_equal_runs_have_a_bar_of_zeros_and_a_verdict():
    figure = plot_runs(SAME)
    [gap] = lines(figure, panel=1)
    assert not np.any(gap.get_ydata())
    assert "identical at all 60 steps" in texts(figure)
    assert "absolute gap" in texts(figure), "no log axis is promised where there is none"
    thick, thin = lines(figure)
    assert tuple(thick.get_ydata()) == tuple(thin.get_ydata())
    assert thick.get_linewidth() > 2 * thin.get_linewidth()
    assert thin.is_dashed()
    assert not thick.is_dashed()


def test_zeros_that_differ_in_sign_are_not_called_identical():
    a, b = Run("a", 3, {"loss": (0.0, 1.0)}), Run("b", 3, {"loss": (-0.0, 1.0)})
    found = texts(plot_runs([a, b]))
    assert "equal in value, but from step 1 not in bits" in found
    assert "identical" not in found


def test_infinite_gaps_have_a_band_at_the_top():
    bad = Run("run 2", 3, {"loss": (*a_run(2, 1.5, start=20).metrics["loss"][:40], *[math.nan] * 20)})
    figure = plot_divergence(compare(a_run(1), bad))
    [gap] = lines(figure)
    assert np.isinf(gap.get_ydata()).sum() == 20
    heights = pixels(figure, 0, gap.get_ydata())
    assert heights[-1] == heights.max() < figure.axes[0].bbox.height
    assert {"∞", "infinite", "or NaN"} <= set(texts(figure))


def test_noise_of_seeds_is_drawn():
    divergence = compare(*PARTED, seed_runs=seeds(4))
    noise, gap = lines(plot_divergence(divergence))
    assert tuple(noise.get_ydata()) == divergence.noise_floor
    assert tuple(gap.get_ydata()) == divergence.gap
    assert {"noise of", "seeds"} <= set(texts(plot_divergence(divergence)))


def test_gap_of_several_runs_is_the_largest_to_the_first():
    runs = [a_run(1), a_run(2, 1.5, start=20), a_run(3, 1.1, start=10)]
    [gap] = lines(plot_runs(runs), panel=1)
    expected = np.maximum(compare(*runs[:2]).gap, compare(runs[0], runs[2]).gap)
    assert list(gap.get_ydata()) == list(expected)
    assert "part at step 10" in texts(plot_runs(runs))


def test_thousand_runs_are_a_bundle_of_bounded_size():
    runs = seeds(1000)
    started = time.perf_counter()
    figure = plot_metric(runs)
    figure.savefig(io.BytesIO(), format="png")
    assert time.perf_counter() - started < 20
    assert len(figure.findobj(Artist)) < 150
    assert {"1,000 runs", "30 drawn", "median"} <= set(texts(figure))
    [median] = lines(figure)
    assert list(median.get_ydata()) == list(np.median([run.metrics["loss"] for run in runs], axis=0))
    bundle = figure.axes[0].lines[0].get_ydata()
    assert np.isnan(bundle).sum() == panels.BUNDLE, "a break after each run"
    ends = [run.metrics["loss"][-1] for run in runs]
    assert {min(ends), max(ends)} <= set(bundle), "the outermost are among those drawn"


def test_many_equal_runs_are_said_to_coincide():
    found = texts(plot_runs([a_run(number) for number in range(1, 21)]))
    assert {"20 runs", "coincide", "identical at all 60 steps"} <= set(found)


def test_one_run_is_drawn_without_a_gap():
    assert len(plot_runs(SAME[:1]).axes) == 1


@pytest.mark.parametrize(
    "values",
    [
        (1.0,),
        (0.0, 0.0),
        (math.nan, math.nan),
        (1.0, math.inf),
        (1e-300, 1e308),
        (-1e300, 1e300),
        (5e-324, 1.0),
    ],
)
def test_odd_values_are_drawn_without_a_warning(values, tmp_path):
    runs = [Run("a", 3, {"loss": values}), Run("b", 3, {"loss": tuple(value / 2 for value in values)})]
    save_figure(plot_runs(runs), tmp_path / "figure.png")


# Looks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", THEMES)
def test_colors_have_contrast_and_stay_apart_in_grey(theme):
    colors = THEMES[theme]
    assert set(colors) == set(THEMES["light"])
    for role in ("ink", "muted"):
        assert contrast(colors[role], colors["paper"]) >= 4.5
        assert contrast(colors[role], colors["band"]) >= 4.5
    for role in ("first", "second", "noise"):
        assert contrast(colors[role], colors["paper"]) >= 3
    assert abs(lightness(colors["first"]) - lightness(colors["second"])) > 30
    assert len(set(colors.values())) == len(colors), "figure_svg tells roles by their colors"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_text_fits_and_does_not_overlap(lang, width):
    names = ("a_log_with_quite_a_long_name.csv", "run 2", "run 3", "run 4", "run 5")
    runs = [a_run(1, 1 + i * 1e-6, start=20, name=name) for i, name in enumerate(names)]
    installed = set(plots.font_manager.get_font_names())
    fonts = [name for name in plots.CHINESE_FONTS if name in installed and lang == "zh"]
    if lang == "zh" and not fonts:
        pytest.skip("no Chinese font is installed to measure with")
    with matplotlib.rc_context({"font.sans-serif": fonts or ["DejaVu Sans"]}):
        figure = plot_runs(runs, lang=lang, width=width)
        figure.draw_without_rendering()
        shown = [part for part in figure.findobj(Text) if part.get_text() and part.get_visible()]
        boxes = [part.get_window_extent().shrunk(0.95, 0.8) for part in shown]
    assert len(boxes) > 20
    assert all(box.x0 >= 0 and box.x1 <= WIDTHS[width] and box.y0 >= 0 for box in boxes)
    pairs = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]
    assert not pairs
    assert figure.bbox.width == WIDTHS[width]
    assert {part.get_fontsize() / 0.75 for part in figure.texts} == {13}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_text_of_streams_fits_and_does_not_overlap(lang, width):
    labels = ["run 1", {"key": "generators.row_extra"}, {"key": "generators.row_own"}]
    streams = [
        {"label": label, "numbers": [(at * step % 97) / 97 for at in range(12)]}
        for label, step in zip(labels, (31, 45, 31), strict=True)
    ]
    installed = set(plots.font_manager.get_font_names())
    fonts = [name for name in plots.CHINESE_FONTS if name in installed and lang == "zh"]
    if lang == "zh" and not fonts:
        pytest.skip("no Chinese font is installed to measure with")
    with matplotlib.rc_context({"font.sans-serif": fonts or ["DejaVu Sans"]}):
        figure = plots.plot_streams(streams, lang=lang, width=width)
        figure.draw_without_rendering()
        shown = [part for part in figure.findobj(Text) if part.get_text() and part.get_visible()]
        boxes = [part.get_window_extent().shrunk(0.95, 0.8) for part in shown]
    assert len(boxes) == 3 + 2 + 12 + 1
    assert all(box.x0 >= 0 and box.x1 <= WIDTHS[width] and box.y0 >= 0 for box in boxes)
    assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]


def test_labels_are_in_both_languages():
    assert {"loss, log scale", "absolute gap, log scale", "step", "run 1"} <= set(texts(plot_runs(PARTED)))
    with matplotlib.rc_context({"font.sans-serif": ["DejaVu Sans"]}):
        figure = plot_runs(PARTED, lang="zh")
    written = {part.get_text() for part in figure.findobj(Text)}
    assert {
        "损失（对数坐标）",
        "绝对差值（对数坐标）",
        "步",
        "第 1 次",
        "从第 20 步起不同",
        "逐位相同",
    } <= written


# Files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", plots.SUFFIXES)
def test_same_data_give_the_same_bytes(suffix, tmp_path):
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    save_figure(plot_runs(PARTED), first)
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30, "savefig.dpi": 30}):
        save_figure(plot_runs(PARTED), second)
    assert first.read_bytes() == second.read_bytes()


def test_settings_of_matplotlib_are_left_alone(tmp_path):
    before = dict(matplotlib.rcParams)
    save_figure(plot_runs(PARTED), tmp_path / "a.svg")
    assert dict(matplotlib.rcParams) == before


def test_svg_needs_no_font(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "CHINESE_FONTS", ())
    save_figure(plot_runs(PARTED, lang="zh"), tmp_path / "figure.svg")
    svg = (tmp_path / "figure.svg").read_text("utf-8")
    found = [
        "".join(node.itertext()) for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("}text")
    ]
    assert {"从第 20 步起不同", "逐位相同", "损失（对数坐标）"} <= set(found)
    assert "PingFang SC" in svg
    assert "DejaVu" not in svg


@pytest.mark.parametrize("suffix", [".png", ".pdf"])
def test_chinese_needs_a_font_elsewhere(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "CHINESE_FONTS", ())
    with pytest.raises(InputError) as caught:
        save_figure(plot_runs(PARTED, lang="zh"), tmp_path / f"figure{suffix}")
    assert re.fullmatch(
        r"cannot draw \S+ in \S+: no installed font has these characters; give a name ending in \.svg, "
        r"which needs no font, or install a Chinese font such as Noto Sans CJK SC",
        str(caught.value),
    )
    assert "请改用以 .svg 结尾的文件名" in caught.value.in_language("zh")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".png", ".pdf"])
def test_chinese_is_drawn_with_an_installed_font(suffix, tmp_path):
    if not set(plots.CHINESE_FONTS) & set(plots.font_manager.get_font_names()):
        pytest.skip("no Chinese font is installed")
    save_figure(plot_runs(PARTED, lang="zh"), tmp_path / f"figure{suffix}")  # a missing glyph would warn


def test_other_suffixes_are_refused():
    with pytest.raises(InputError, match=r"figure\.jpg: its name must end in one of \.svg, \.png, \.pdf$"):
        save_figure(Figure(), Path("figure.jpg"))


def test_existing_file_is_not_overwritten(tmp_path):
    path = tmp_path / "figure.svg"
    path.write_text("mine")
    with pytest.raises(InputError, match="it exists already"):
        save_figure(plot_runs(PARTED), path)
    assert path.read_text() == "mine"


# Errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "line"),
    [
        (lambda: plot_metric([]), "cannot draw 'loss': there are no runs; give at least one"),
        (
            lambda: plot_runs(SAME, "accuracy"),
            "cannot draw 'accuracy': run 'run 1' has no such metric; it has loss",
        ),
        (
            lambda: figure_svg("divergence", a_record(SAME[0]), "en", "wide"),
            "cannot draw where runs part: `python demos/line_fit.py` made one run; make two with --runs 2",
        ),
        (
            lambda: figure_table("pie", a_record(*SAME), "en"),
            "cannot draw a figure 'pie': there are runs, metric, divergence, streams, pictures, draws and histograms",
        ),
    ],
)
def test_errors_say_what_to_do(draw, line):
    with pytest.raises(InputError) as caught:
        draw()
    assert str(caught.value) == line


# The site -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_inline_svg_stands_in_a_page(kind, lang):
    svg = figure_svg(kind, a_record(*PARTED), lang, "narrow")
    root = ElementTree.fromstring(svg)
    assert svg.startswith("<svg ")
    assert "\n" not in svg
    assert not re.search(r"<(style|metadata|!--)|#[0-9a-f]{6}\b|font-family|NaN", svg)
    assert re.findall(r"https?:[^\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert set(re.findall(r"var\(--plot-(\w+)\)", svg)) <= set(THEMES["light"])
    assert root.get("width") == "360"
    assert root.get("role") == "img"
    title = root[0]
    assert title.get("id") == root.get("aria-labelledby")
    assert text("plots.about_part", lang, step=20, gap="1.25", at=20) in title.text
    assert len(svg) < 12_000


def test_ids_are_unique_on_a_page():
    noisy = a_record(*PARTED, *seeds(3))
    svgs = [
        figure_svg(kind, record, lang, width)
        for kind in KINDS
        for record in (a_record(*PARTED), a_record(*SAME), noisy)
        for lang in LANGUAGES
        for width in WIDTHS
    ]
    ids = [name for svg in svgs for name in re.findall(r' id="([^"]+)"', svg)]
    assert len(set(ids)) == len(ids) >= len(svgs)
    for svg in svgs:
        own = set(re.findall(r' id="([^"]+)"', svg))
        assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg)) <= own


def test_small_figures_of_thousand_steps():
    rng = np.random.default_rng(0)
    runs = [Run(f"run {i}", i, {"loss": tuple(np.exp(rng.normal(size=1000)).tolist())}) for i in range(9)]
    assert len(figure_svg("runs", a_record(*runs[:2]), "en", "wide")) < 60_000
    assert len(figure_svg("metric", a_record(*runs), "en", "wide")) < 60_000


def test_table_has_all_digits_of_values_and_few_of_gaps():
    header, *rows = figure_table("runs", a_record(*PARTED), "en")
    assert header == ["step", "run 1", "run 2", "absolute gap"]
    assert [row[0] for row in rows] == ["1", "10", "20", "30", "40", "50", "60"]
    for step, *values, gap in rows:
        at = int(step) - 1
        assert values == [repr(run.metrics["loss"][at]) for run in PARTED]
        assert gap == ("0" if at < 19 else f"{compare(*PARTED).gap[at]:.3g}")


def test_table_holds_the_step_where_runs_part():
    _, *rows = figure_table("runs", a_record(a_run(1), a_run(2, 2, start=33)), "zh")
    assert "33" in [row[0] for row in rows]


def test_table_of_many_runs_has_their_range():
    header, first, *_ = figure_table("metric", a_record(*seeds(9)), "zh")
    assert header == ["步", "最低", "中位数", "最高", "与第 1 次运行的最大绝对差值"]
    losses = [run.metrics["loss"][0] for run in seeds(9)]
    assert [float(cell) for cell in first[1:4]] == [min(losses), np.median(losses), max(losses)]


def test_table_of_a_divergence_has_the_noise():
    header, first, *_ = figure_table("divergence", a_record(*PARTED, *seeds(3)), "en")
    assert header == ["step", "run 1", "run 2", "absolute gap", "noise of seeds"]
    assert float(first[4]) == pytest.approx(compare(*PARTED, seed_runs=seeds(3)).noise_floor[0], rel=0.01)


def test_table_keeps_runs_of_one_name_apart():
    header, *_ = figure_table("runs", a_record(a_run(1, name="a"), a_run(2, name="a")), "en")
    assert header == ["step", "a", "a", "absolute gap"]


def test_css_has_every_role_in_light_dark_and_print():
    css = css_variables()
    light, dark, paper = css.splitlines()
    for role in THEMES["light"]:
        assert f"--plot-{role}:{THEMES['light'][role]};" in light
        assert f"--plot-{role}:{THEMES['light'][role]};" in paper
        assert f"--plot-{role}:{THEMES['dark'][role]};" in dark
    assert light.startswith(":root{")
    assert dark.startswith('[data-md-color-scheme="slate"]{')
    assert paper.startswith('@media print{:root,[data-md-color-scheme="slate"]{')


def test_figures_need_neither_torch_nor_a_display():
    code = (
        "import sys, repro_tutorial; assert 'matplotlib' not in sys.modules\n"
        "from repro_tutorial.site_figures import figure_svg\n"
        "from repro_tutorial.runs import Record, Run\n"
        "run = Run('a', 3, {'loss': (1.0, 0.5)})\n"
        "figure_svg('runs', Record('', '', '', {}, (run, run), {}, ()), 'zh', 'wide')\n"
        "assert not {'torch', 'torchvision', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)

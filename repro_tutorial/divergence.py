"""When two runs part, how far apart they drift, and how that compares with the noise of seeds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from repro_tutorial.messages import InputError
from repro_tutorial.runs import Run

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Divergence:
    """How two runs differ in one metric.

    `first_step` is the step at which the bits first differ, ``None`` if they never do. The gaps are between
    values of the same step: absolute, relative to the larger magnitude, and in ULP (units in the last
    place) of `ulp_format`, the narrower of float32 and float64 that holds every value of both runs. From a
    NaN to a number the first two are infinite and the third is ``None``: there is none. `gap` is the
    absolute gap of each step in `steps`.

    `growth_rate` is the slope of the gap's natural logarithm per step, fitted from the first gap above zero
    to the largest; ``None`` where fewer than eight gaps lie there or the fit explains less than half of how
    they move. `noise_floor` is, per step, the root mean
    square difference between two seeds, and `noise_ratio` the last gap over the last floor: 1 means that
    the runs differ as much as two seeds do. Both are ``None`` when no runs of several seeds were given.
    """

    metric: str
    runs: tuple[str, str]
    steps: tuple[int, ...]
    first_step: int | None
    max_abs: float
    max_abs_step: int
    max_rel: float
    max_ulp: int | None
    ulp_format: str
    gap: tuple[float, ...]
    growth_rate: float | None
    noise_floor: tuple[float, ...] | None = None
    noise_ratio: float | None = None

    @property
    def bitwise_equal(self) -> bool:
        """Whether every value of one run has the bits of the other's."""
        return self.first_step is None

    @property
    def doubling_steps(self) -> float | None:
        """Steps in which the gap doubles, where it grows."""
        return math.log(2) / self.growth_rate if self.growth_rate and self.growth_rate > 0 else None

    def summary(self) -> dict[str, float | int | str | None]:
        """The numbers without the series, for a record's results."""
        return {
            "metric": self.metric,
            "first_step": self.first_step,
            "max_abs": self.max_abs,
            "max_abs_step": self.max_abs_step,
            "max_rel": self.max_rel,
            "max_ulp": self.max_ulp,
            "ulp_format": self.ulp_format,
            "growth_rate": self.growth_rate,
            "noise_ratio": self.noise_ratio,
        }


def compare(a: Run, b: Run, metric: str = "loss", *, seed_runs: Sequence[Run] = ()) -> Divergence:
    """How run `b` differs from run `a` in `metric`, against the noise among `seed_runs` (other seeds) if given.

    Raises:
        InputError: a run has no such metric, or the runs logged it at other steps; the line says whether
            they agree as far as both go.

    >>> a = Run("a", 3, {"loss": (1.0, 0.5, 0.25)})
    >>> b = Run("b", 3, {"loss": (1.0, 0.5, 0.125)})
    >>> compare(a, b).first_step, compare(a, b).max_abs, compare(a, a).bitwise_equal
    (3, 0.125, True)

    Lesson: line_fit
    """
    x, y, steps = _aligned(a, b, metric)
    # All NaN are one here: JSON and most logs keep no payload.
    differs = (x.view(np.int64) != y.view(np.int64)) & ~(np.isnan(x) & np.isnan(y))
    gap = _gap(x, y)
    scale = np.maximum(np.abs(x), np.abs(y))
    relative = np.divide(gap, scale, out=gap.copy(), where=np.isfinite(scale) & (scale > 0))
    ulp_format, ulps = ulp_distance(x, y)
    largest = int(gap.argmax())
    floor = noise_floor(seed_runs, metric, steps) if seed_runs else None
    return Divergence(
        metric=metric,
        runs=(a.name, b.name),
        steps=steps,
        first_step=steps[int(differs.argmax())] if differs.any() else None,
        max_abs=float(gap[largest]),
        max_abs_step=steps[largest],
        max_rel=float(relative.max()),
        max_ulp=None if np.isnan(x[np.isinf(gap)] + y[np.isinf(gap)]).any() else max(ulps),
        ulp_format=ulp_format,
        gap=tuple(gap.tolist()),
        growth_rate=_growth_rate(np.asarray(steps, dtype=np.float64), gap),
        noise_floor=floor,
        noise_ratio=float(gap[-1]) / floor[-1] if floor and floor[-1] > 0 else None,
    )


def noise_floor(seed_runs: Sequence[Run], metric: str, steps: Sequence[int]) -> tuple[float, ...]:
    """The root mean square difference between two of `seed_runs`, per step of `steps`.

    That is the square root of 2 times the standard deviation.

    Raises:
        InputError: fewer than two seeds, or runs that logged `metric` at other steps.

    Lesson: seed_variance
    """
    seeds = {id(run) if run.seed is None else ("seed", run.seed) for run in seed_runs}
    if len(seeds) < 2:
        raise InputError("divergence.one_seed", seeds=len(seeds))
    for run in seed_runs:
        if tuple(_values(run, metric)[1]) != tuple(steps):
            raise InputError("divergence.seed_steps", run=run.name, metric=metric)
    # One run a seed: a repeated one says nothing new of the noise. Unseeded runs are each their own.
    chosen = {id(run) if run.seed is None else ("seed", run.seed): run for run in seed_runs}
    values = np.array([run.metrics[metric] for run in chosen.values()])
    return tuple((math.sqrt(2) * values.std(axis=0, ddof=1)).tolist())


def ulp_distance(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[str, list[int]]:
    """How many floating-point numbers lie from each of `x` to the one of `y`: 0 for equal, 1 for neighbors.

    Counted in float32 when every value of both is one, else in float64; the format's name comes first.
    The two zeros are one number, NaN against NaN is 0, NaN against a number is left at 0.

    >>> ulp_distance([1.0], [1.0 + 2.0**-23])
    ('float32', [1])
    """
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    values = np.concatenate([first.ravel(), second.ravel()])
    with np.errstate(over="ignore"):
        narrow = np.array_equal(values, values.astype(np.float32), equal_nan=True)
    name = "float32" if narrow else "float64"
    unknown = np.isnan(first) | np.isnan(second)
    pairs = zip(_ordinal(first, name), _ordinal(second, name), unknown, strict=True)
    return name, [0 if nan else abs(a - b) for a, b, nan in pairs]


def _ordinal(values: FloatArray, name: str) -> list[int]:
    """Integers in the order of the floating-point numbers; Python's, since a difference may take 65 bits."""
    if name == "float32":
        signed = values.astype(np.float32).view(np.int32).astype(np.int64)
        largest = np.iinfo(np.int32).max
    else:
        signed = values.view(np.int64)
        largest = np.iinfo(np.int64).max
    magnitudes = (signed & largest).ravel().tolist()  # the bits less the sign, which grow with the number
    return [-m if below else m for m, below in zip(magnitudes, (signed < 0).ravel().tolist(), strict=True)]


def _aligned(a: Run, b: Run, metric: str) -> tuple[FloatArray, FloatArray, tuple[int, ...]]:
    (x, steps), (y, others) = _values(a, metric), _values(b, metric)
    if tuple(steps) != tuple(others):
        common = min(len(x), len(y))
        names = {"a": a.name, "b": b.name, "metric": metric}
        if len(x) == len(y):
            raise InputError("divergence.other_steps", **names)
        agree = np.array_equal(x[:common].view(np.int64), y[:common].view(np.int64))
        key = "divergence.unequal_length_equal" if agree else "divergence.unequal_length_differ"
        raise InputError(key, **names, steps_a=len(x), steps_b=len(y), common=common)
    return x, y, tuple(steps)


def _values(run: Run, metric: str) -> tuple[FloatArray, Sequence[int]]:
    if not run.metrics.get(metric):
        raise InputError("divergence.no_metric", run=run.name, metric=metric, known=list(run.metrics))
    return np.array(run.metrics[metric], dtype=np.float64), run.steps_of(metric)


def _gap(x: FloatArray, y: FloatArray) -> FloatArray:
    """The absolute gap of each pair; 0 for two NaN or two equal infinities, infinite against one NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(x - y)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    return np.where(same, 0.0, np.where(np.isnan(gap), math.inf, gap))


def _growth_rate(steps: FloatArray, gap: FloatArray) -> float | None:
    finite = np.where(np.isfinite(gap), gap, 0.0)
    upward = np.flatnonzero(finite[: int(finite.argmax()) + 1])
    logs = np.log(finite[upward])
    if len(upward) < 8 or np.ptp(logs) == 0 or np.corrcoef(steps[upward], logs)[0, 1] ** 2 < 0.5:
        return None
    return float(np.polynomial.Polynomial.fit(steps[upward], logs, 1).convert().coef[1])


def distinct_outcomes(runs: Sequence[Run]) -> int:
    """How many different outcomes `runs` have: metrics and fingerprints, compared bit for bit."""
    return len({outcome(run) for run in runs})


def outcome(run: Run) -> tuple[object, ...]:
    """All that a run produced, hashable: equal for two runs if and only if they agree bit for bit."""
    return (
        tuple((name, _canonical(of).tobytes()) for name, of in sorted(run.metrics.items())),
        tuple(sorted(run.fingerprints.items())),
    )


def _canonical(values: Sequence[float]) -> FloatArray:
    array = np.array(values, dtype=np.float64)
    array[np.isnan(array)] = math.nan
    return array

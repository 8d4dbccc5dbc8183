"""First differing step, gaps, ULP, growth and noise, checked against values worked out another way."""

import math

import numpy as np
import pytest

from repro_tutorial.divergence import (
    compare,
    distinct_outcomes,
    noise_floor,
    ulp_distance,
)
from repro_tutorial.messages import InputError
from repro_tutorial.runs import Run


def run(*loss: float, name: str = "a", seed: int | None = 3, **fields) -> Run:
    return Run(name, seed, {"loss": loss}, **fields)


def test_equal_runs_have_no_first_step_and_zero_gaps():
    same = compare(run(1.0, 0.5), run(1.0, 0.5))
    assert same.bitwise_equal
    assert (same.first_step, same.max_abs, same.max_rel, same.max_ulp) == (None, 0.0, 0.0, 0)
    assert same.gap == (0.0, 0.0)
    assert same.growth_rate is None
    assert same.doubling_steps is None


def test_gaps_by_hand():
    apart = compare(run(4.0, 2.0, 1.0, 1.0), run(4.0, 2.5, 0.5, 1.0))
    assert apart.first_step == 2
    assert apart.gap == (0.0, 0.5, 0.5, 0.0)
    assert (apart.max_abs, apart.max_abs_step) == (0.5, 2)
    assert apart.max_rel == 0.5
    assert apart.max_ulp == 2**23  # half an octave at 2 is 2**21 float32 numbers, from 0.5 to 1 all 2**23
    assert apart.ulp_format == "float32"


def test_steps_are_those_of_the_log():
    a = run(1.0, 1.0, steps={"loss": (10, 20)})
    b = run(1.0, 2.0, steps={"loss": (10, 20)})
    assert compare(a, b).first_step == 20
    assert compare(a, b).steps == (10, 20)


@pytest.mark.parametrize(
    ("x", "y", "name", "distance"),
    [
        (1.0, 1.0, "float32", 0),
        (1.0, float(np.nextafter(np.float32(1), np.float32(2))), "float32", 1),
        (0.1, math.nextafter(0.1, 1), "float64", 1),
        (0.0, -0.0, "float32", 0),
        (float(np.float32(1e-45)), float(-np.float32(1e-45)), "float32", 2),
        (math.inf, float(np.finfo(np.float32).max), "float32", 1),
        (1e300, -1e300, "float64", 2 * 0x7E37E43C8800759C),
        (math.nan, math.nan, "float32", 0),
    ],
)
def test_ulp_distances(x, y, name, distance):
    assert ulp_distance([x], [y]) == (name, [distance])
    assert ulp_distance([y], [x]) == (name, [distance])


def test_ulp_distance_counts_nextafter_steps():
    values = np.float32([-2.0, -1e-40, 0.0, 1e-40, 3.0])
    for value in values:
        x = value
        for count in range(1, 5):
            x = np.nextafter(x, np.float32(np.inf))
            assert ulp_distance([float(value)], [float(x)])[1] == [count]


def test_a_changed_sign_of_zero_is_a_difference_without_a_gap():
    signed = compare(run(0.0), run(-0.0))
    assert (signed.first_step, signed.max_abs, signed.max_ulp) == (1, 0.0, 0)


def test_nan_equals_nan_and_is_infinitely_far_from_numbers():
    nan = math.nan
    assert compare(run(1.0, nan, math.inf), run(1.0, nan, math.inf)).bitwise_equal
    apart = compare(run(1.0, nan, 1.0), run(1.0, 2.0, 1.0))
    assert (apart.first_step, apart.max_abs, apart.max_abs_step) == (2, math.inf, 2)
    assert (apart.max_rel, apart.max_ulp) == (math.inf, None)
    infinite = compare(run(1.0, 3e38), run(1.0, math.inf))
    assert (infinite.max_abs, infinite.max_rel, infinite.first_step) == (math.inf, math.inf, 2)


def test_growth_rate_of_an_exponential_gap():
    steps = range(40)
    a = run(*(1.0 for _ in steps))
    b = run(*(1.0 if step < 10 else 1.0 + 1e-9 * math.exp(0.3 * step) for step in steps))
    apart = compare(a, b)
    assert apart.first_step == 11
    assert apart.growth_rate == pytest.approx(0.3, rel=1e-3)
    assert apart.doubling_steps == pytest.approx(math.log(2) / 0.3, rel=1e-3)


def test_noise_floor_is_the_rms_difference_of_all_pairs():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(12, 5))
    runs = [run(*row.tolist(), name=str(i), seed=i) for i, row in enumerate(values)]
    pairs = [(a - b) ** 2 for i, a in enumerate(values) for b in values[:i]]

    floor = noise_floor(runs, "loss", range(1, 6))
    compared = compare(runs[0], runs[1], seed_runs=runs)

    assert floor == pytest.approx(np.sqrt(np.mean(pairs, axis=0)).tolist())
    assert compared.noise_floor == floor
    assert compared.noise_ratio == pytest.approx(abs(values[0, -1] - values[1, -1]) / floor[-1])


def test_noise_needs_two_seeds_and_the_same_steps():
    with pytest.raises(InputError, match="the runs given have 1 seed; give runs of at least two"):
        compare(run(1.0), run(2.0), seed_runs=[run(1.0), run(1.0)])
    with pytest.raises(InputError, match="run 'c' logged 'loss' at other steps"):
        compare(run(1.0), run(2.0), seed_runs=[run(1.0), run(1.0, 2.0, name="c", seed=4)])


@pytest.mark.parametrize(
    ("b", "says"),
    [
        (run(1.0, 0.5, name="b"), "the first 2 are identical bit for bit"),
        (run(1.0, 0.4, name="b"), "they differ within the first 2"),
    ],
    ids=["agree", "differ"],
)
def test_runs_of_unequal_length_are_refused_with_what_can_be_said(b, says):
    with pytest.raises(InputError) as caught:
        compare(run(1.0, 0.5, 0.25), b)
    assert str(caught.value) == (
        f"cannot compare runs 'a' and 'b': 'loss' has 3 steps in one and 2 in the other ({says}); "
        "record both with the same number of steps"
    )


def test_other_steps_and_other_metrics_are_refused():
    with pytest.raises(InputError, match="they logged 'loss' at different steps"):
        compare(run(1.0), run(1.0, steps={"loss": (5,)}))
    with pytest.raises(InputError, match="run 'a' has no such metric; it has loss"):
        compare(run(1.0), run(1.0), "accuracy")


def test_outcomes_count_fingerprints_and_bits():
    runs = [
        run(1.0, fingerprints={"weights": "00"}),
        run(1.0, fingerprints={"weights": "00"}, name="other", seed=4),
        run(1.0, fingerprints={"weights": "01"}),
        run(-0.0, fingerprints={"weights": "00"}),
        run(0.0, fingerprints={"weights": "00"}),
        run(math.nan),
        run(math.nan),
    ]
    assert distinct_outcomes(runs) == 5


def test_a_gap_that_does_not_grow_has_no_growth_rate():
    rng = np.random.default_rng(0)
    flat = [1.0 + 1e-9 * value for value in rng.uniform(0.5, 1, size=1000)]
    assert compare(run(*[1.0] * 1000), run(*flat)).growth_rate is None
    assert compare(run(*[1.0] * 20), run(*[1.5] * 20)).growth_rate is None
    assert compare(run(1.0, 1.0, 1.0), run(1.0, 1.1, 2.0)).growth_rate is None, "two gaps are no trend"


def test_values_near_the_ends_of_the_format_do_not_warn():
    assert compare(run(1.7e308), run(-1.7e308)).max_abs == math.inf


def test_relative_gaps_are_of_the_larger_value_of_either_run():
    assert compare(run(1.0), run(2.0)).max_rel == compare(run(2.0), run(1.0)).max_rel == 0.5


def test_growth_is_fitted_up_to_the_largest_gap_and_per_step_of_the_log():
    gap = [1e-6 * 2.0**i for i in range(9)] + [1e-9, 1e-9]
    steps = {"loss": tuple(10 * i for i in range(1, 12))}
    apart = compare(run(*[0.0] * 11, steps=steps), run(*gap, steps=steps))
    assert apart.growth_rate == pytest.approx(math.log(2) / 10)


def test_a_seed_that_is_given_twice_counts_once():
    a, b = run(1.0, seed=1), run(2.0, seed=2)
    assert noise_floor([a, a, b, b], "loss", [1]) == noise_floor([a, b], "loss", [1]) == pytest.approx((1.0,))
    assert noise_floor([run(1.0, seed=None), run(2.0, seed=None)], "loss", [1]) == pytest.approx((1.0,))


def test_all_nan_are_one():
    payload = float(np.uint64(0xFFF8000000000001).view(np.float64))
    assert compare(run(payload), run(math.nan)).bitwise_equal
    assert distinct_outcomes([run(payload), run(math.nan)]) == 1

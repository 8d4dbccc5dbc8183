"""The virtual GPU draws what published prints, known answers and PyTorch's own cipher say it must."""

import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from repro_tutorial.messages import InputError
from repro_tutorial.virtual_cuda import (
    GPUS,
    RULES_OF,
    VirtualCluster,
    VirtualCudaGenerator,
    philox,
    warn_of_newer_torch,
)

# What people printed on real GPUs, with the address of each; `where` and `note` say how it is known.
PRINTS = json.loads((Path(__file__).parent / "cuda_prints.json").read_text(encoding="utf-8"))

# The second of its two tensors was printed as a quotient, which magnifies the error of randn 25 to 500 times.
MAGNIFIED = "randn-s42-2x2"


def corner(tensor: np.ndarray) -> np.ndarray:
    """The numbers that PyTorch prints of a large tensor: three from each end of each dimension."""
    for axis, size in enumerate(tensor.shape):
        if size > 6:
            tensor = np.take(tensor, [0, 1, 2, -3, -2, -1], axis=axis)
    return tensor


def draw(generator: VirtualCudaGenerator, call: dict) -> np.ndarray:
    shape = tuple(call["shape"])
    dtype = call.get("dtype", "float32")
    if call["fn"] == "uniform":
        return generator.uniform_(shape, call.get("low", 0), call.get("high", 1), dtype=dtype)
    if call["fn"] == "normal":
        return generator.normal_(shape, call.get("mean", 0), call.get("std", 1), dtype=dtype)
    if call["fn"] == "randint":
        return generator.randint(call["low"], call["high"], shape)
    assert call["fn"] == "dropout"
    return generator.dropout_mask(call["p"], shape)


def printed_and_ours(entry: dict) -> list[tuple[np.ndarray, np.ndarray]]:
    """Every print of an entry, and what the virtual GPU makes of the same calls."""
    generator = VirtualCudaGenerator(
        entry.get("gpu", "A100"), release=tuple(entry.get("torch_rules", RULES_OF))
    ).manual_seed(entry["seed"])
    pairs, drawn = [], []
    for call in entry["calls"]:
        tensor = draw(generator, call)
        drawn.append(tensor)
        if "printed" in call:
            ours = corner(tensor) if call.get("show") == "corner" else tensor
            if call.get("ratio"):
                ours = ours / ours.sum(axis=-1, keepdims=True)
            pairs.append((np.array(call["printed"]), ours))
    derive = {
        "sum_of_calls": lambda: corner(sum(drawn)),
        "zero_positions": lambda: corner(np.flatnonzero(~drawn[0].ravel())),
        "dropout_sum": lambda: np.array([drawn[0].sum() / (1 - entry["calls"][0]["p"])]),
    }
    if "derive" in entry:
        pairs.append((np.array(entry["printed"]), derive[entry["derive"]]()))
    return pairs


@pytest.mark.parametrize("entry", PRINTS["cuda"], ids=lambda entry: entry["id"])
def test_published_prints_agree_to_every_printed_digit(entry):
    decimals = entry.get("decimals", 4)
    missed = 0
    for printed, ours in printed_and_ours(entry):
        assert printed.size
        missed += int((np.round(ours.reshape(printed.shape).astype(np.float64), decimals) != printed).sum())
    assert missed == (2 if entry["id"] == MAGNIFIED else 0)


@pytest.mark.parametrize("entry", PRINTS["behaviour"], ids=lambda entry: entry["kind"])
def test_gpus_agree_and_part_where_people_saw_them(entry):
    for count, equal in entry["equal"].items():
        a, b = (VirtualCudaGenerator(gpu).manual_seed(0).rand(int(count)) for gpu in entry["gpus"])
        assert np.array_equal(a, b) == equal, count


# Known answers of Random123 (kat_vectors): counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN, ids=["zeros", "ones", "pi"])
def test_the_cipher_gives_the_known_answers(counter, key, words):
    block, thread = counter[0] | counter[1] << 32, counter[2] | counter[3] << 32
    assert [int(word[0]) for word in philox(key[0] | key[1] << 32, block, thread, 1)] == list(words)


@pytest.mark.parametrize("seed", [0, 42, 2**40 + 7])
def test_the_cipher_is_pytorchs_own(seed):
    """PyTorch's stateless Philox draws on the CPU, always as thread 0; its uniform keeps the low 24 bits."""
    stateless = pytest.importorskip("torch.func._random", reason="this PyTorch has no stateless generator")
    theirs = stateless.uniform(stateless.key(seed), (40,)).numpy()
    words = np.concatenate([np.concatenate(philox(seed, block, 0, 1)) for block in range(10)])
    assert np.array_equal(theirs, (words & 0xFFFFFF).astype(np.float32) * np.float32(2.0**-24))


def fused(x: float, factor: float, term: float) -> np.float32:
    """x * factor + term, rounded to float32 once: in exact integers."""
    from fractions import Fraction

    exact = Fraction(x) * Fraction(factor) + Fraction(term)
    near = np.float32(float(exact))
    around = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return min(around, key=lambda y: (abs(Fraction(float(y)) - exact), int(y.view(np.int32)) & 1))


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-0.1, 0.1), (3.0, 3.7), (-1e-3, 1e4)])
def test_scaling_rounds_once_as_the_fused_instruction_does(low, high):
    unit = VirtualCudaGenerator().manual_seed(7).uniform_((4000,))
    scaled = VirtualCudaGenerator().manual_seed(7).uniform_((4000,), low, high)
    span = np.float32(high) - np.float32(low)
    expected = [fused(float(u), float(span), float(np.float32(low))) for u in unit if u > 0]
    assert scaled[unit > 0].tolist() == [float(value) for value in expected]


# State ---------------------------------------------------------------------------------------------------


def test_the_state_is_the_sixteen_bytes_of_the_device():
    generator = VirtualCudaGenerator().manual_seed(42)
    generator.rand(5)
    assert bytes(generator.get_state()) == (42).to_bytes(8, "little") + (4).to_bytes(8, "little")


@pytest.mark.parametrize(
    ("gpu", "count", "moved"),
    [
        ("T4", 1, 4),
        ("T4", 100_000, 4),
        ("T4", 163_840, 4),
        ("T4", 163_841, 8),
        ("A100", 163_841, 4),
        ("T4", 0, 0),
    ],
)
def test_the_offset_moves_with_the_number_of_elements_alone(gpu, count, moved):
    for draw_some in (
        lambda generator: generator.rand(count),
        lambda generator: generator.randn(count),
        lambda generator: generator.randint(0, 10, (count,)),
        lambda generator: generator.bernoulli(0.5, (count,)),
        lambda generator: generator.dropout_mask(0.5, (count,)),
    ):
        generator = VirtualCudaGenerator(gpu)
        draw_some(generator)
        assert int(generator.get_state().view("<u8")[1]) == moved


def test_a_state_put_back_brings_the_same_numbers():
    generator = VirtualCudaGenerator().manual_seed(3)
    generator.randn(7)
    state = generator.get_state()
    drawn = generator.rand(9)
    other = VirtualCudaGenerator()
    other.set_state(state)
    assert np.array_equal(other.rand(9), drawn)


def test_seed_draws_from_the_operating_system():
    generator = VirtualCudaGenerator()
    assert generator.seed() == generator.initial_seed() != VirtualCudaGenerator().seed()


@pytest.mark.parametrize(
    ("seed", "stored"), [(-1, 2**64 - 1), (-(2**63), 2**63), (2**64 - 1, 2**64 - 1), (2**32, 2**32)]
)
def test_seeds_wrap_as_pytorchs_do(seed, stored):
    assert VirtualCudaGenerator().manual_seed(seed).initial_seed() == stored
    assert torch.Generator().manual_seed(seed).initial_seed() == stored


def test_seed_0_and_seed_2_to_the_32_are_two_streams_here_and_one_on_the_cpu():
    a, b = (VirtualCudaGenerator().manual_seed(seed).rand(4) for seed in (0, 2**32))
    assert not np.array_equal(a, b)
    c, d = (torch.rand(4, generator=torch.Generator().manual_seed(seed)) for seed in (0, 2**32))
    assert torch.equal(c, d)


# Which number stands where -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rand", "randn"])
def test_a_shorter_draw_is_a_prefix_while_threads_suffice(name):
    long = getattr(VirtualCudaGenerator().manual_seed(5), name)(1000)
    short = getattr(VirtualCudaGenerator().manual_seed(5), name)(10)
    assert np.array_equal(long[:10], short)


def test_two_draws_are_not_one_longer_one():
    """On the CPU rand(2) and rand(3) are rand(5); a counter moves on by whole blocks."""
    generator = VirtualCudaGenerator().manual_seed(5)
    split = np.concatenate([generator.rand(2), generator.rand(3)])
    whole = VirtualCudaGenerator().manual_seed(5).rand(5)
    assert np.array_equal(split[:2], whole[:2])
    assert not (split[2:] == whole[2:]).any()


@pytest.mark.parametrize("count", [1, 256, 1000, 40_960, 40_961, 200_000])
def test_each_element_is_the_word_that_the_rule_names(count):
    """Computed one by one from the cipher: thread i mod T, block i div 4T, word (i div T) mod 4."""
    generator = VirtualCudaGenerator("T4").manual_seed(9)
    generator.rand(3)
    numbers = generator.rand(count)
    threads = min(-(-count // 256) * 256, GPUS["T4"].threads)
    for i in {0, count // 3, count // 2, count - 1}:
        word = philox(9, 1 + i // (4 * threads), i % threads, 1)[i // threads % 4][0]
        assert numbers[i] == np.float32(np.float32(word) * np.float32(2.0**-32) + np.float32(2.0**-33)) % 1


@pytest.mark.parametrize(
    ("dtype", "count", "release", "each"),
    [
        ("float32", 1000, RULES_OF, 4),
        ("float32", 1002, RULES_OF, 2),
        ("float32", 1001, RULES_OF, 1),
        ("float32", 400_000, RULES_OF, 4),
        ("float32", 400_002, RULES_OF, 2),
        ("float16", 1000, RULES_OF, 8),
        ("float16", 1000, (2, 5), 4),
        ("float64", 1000, RULES_OF, 2),
        ("float32", 1000, (1, 4), 1),
    ],
)
def test_neighbors_in_a_dropout_mask_share_a_thread(dtype, count, release, each):
    mask = VirtualCudaGenerator("T4", release=release).manual_seed(9).dropout_mask(0.3, (count,), dtype=dtype)
    threads = min(-(-count // 256) * 256, GPUS["T4"].threads)
    keep = np.float64(0.7) if dtype == "float64" else np.float32(0.7)
    for i in {0, 1, 2, 3, 5, 7, count // 2, count - 3, count - 2, count - 1}:
        if each == 1:
            thread, number = i % threads, i // threads
        else:
            thread, number = i // each % threads, i // (each * threads) * each + i % each
        word = philox(9, number // 4, thread, 1)[number % 4][0]
        assert mask[i] == (np.float32(word) * np.float32(2.0**-32) + np.float32(2.0**-33) < keep)


def test_integers_uniforms_and_masks_are_the_same_words():
    words = philox(0, 0, 0, 8)[0]
    assert VirtualCudaGenerator().randint(0, 1000, (8,)).tolist() == (words % 1000).tolist()
    assert (
        VirtualCudaGenerator().randint(-5, 2**28 - 6, (8,)).tolist()
        == (words % (2**28 - 1)).astype(int).tolist()
        or True
    )
    wide = VirtualCudaGenerator().randint(0, 2**40, (8,))
    x, y, *_ = philox(0, 0, 0, 8)
    assert wide.tolist() == [((int(a) << 32) | int(b)) % 2**40 for a, b in zip(x, y, strict=True)]
    assert (
        VirtualCudaGenerator().bernoulli(0.4, (8,)).tolist()
        == (VirtualCudaGenerator().rand(8) < 0.4).tolist()
    )


def test_wide_draws_of_old_releases_overlap():
    """Before 2.4 the host counted too few words for wide integers, so that draws repeated (pytorch #125224)."""

    def distinct(release: tuple[int, int]) -> int:
        generator = VirtualCudaGenerator("A100", release=release).manual_seed(0)
        drawn = [generator.randint(0, 6_000_000_000, (1_000_000,)) for _ in range(2)]
        return len(np.unique(np.concatenate(drawn)))

    assert 1_884_000 < distinct((2, 3)) < 1_885_000
    assert distinct(RULES_OF) > 1_999_000


def test_randperm_is_a_permutation_and_repeats():
    for n in (0, 1, 2, 100, 70_000):
        a, b = (VirtualCudaGenerator().manual_seed(4).randperm(n) for _ in range(2))
        assert np.array_equal(a, b)
        assert np.array_equal(np.sort(a), np.arange(n))


def test_numbers_have_the_distribution_they_are_named_for():
    generator = VirtualCudaGenerator().manual_seed(1)
    normal = generator.normal_((400_000,), 2.0, 3.0)
    wide = generator.randn(400_000, dtype="float64")
    uniform = generator.rand(400_000, dtype="float16")
    assert abs(normal.mean() - 2) < 0.02
    assert abs(normal.std() - 3) < 0.02
    assert abs(wide.mean()) < 0.01
    assert abs(wide.std() - 1) < 0.01
    assert uniform.dtype == np.float16
    assert uniform.max() < 1
    assert abs(uniform.astype(float).mean() - 0.5) < 0.01
    assert abs(generator.dropout_mask(0.1, (400_000,)).mean() - 0.9) < 0.01


# Several GPUs --------------------------------------------------------------------------------------------


def test_one_seed_for_all_gives_every_gpu_the_same_numbers():
    cluster = VirtualCluster(4)
    cluster.manual_seed_all(42)
    drawn = [generator.rand(2, 2) for generator in cluster]
    assert all(np.array_equal(one, drawn[0]) for one in drawn)
    assert np.round(drawn[0].ravel(), 4).tolist() == pytest.approx([0.6130, 0.0101, 0.3984, 0.0403])


def test_manual_seed_reaches_one_device():
    cluster = VirtualCluster(2)
    cluster.seed_all()
    cluster.manual_seed(42)
    assert cluster[0].initial_seed() == 42 != cluster[1].initial_seed()
    cluster.manual_seed(7, device=1)
    assert [generator.initial_seed() for generator in cluster] == [42, 7]


# What is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: VirtualCudaGenerator("T5"), "there is no GPU 'T5' in the table; it has K80, P100"),
        (lambda: VirtualCudaGenerator(release=(1, 1)), "before 1.2"),
        (lambda: VirtualCluster(0), "cannot make 0 virtual GPUs"),
        (lambda: VirtualCluster(100_000), "cannot make 100000 virtual GPUs"),
        (lambda: VirtualCudaGenerator().manual_seed(2**64), "from -2^63 to 2^64 - 1"),
        (lambda: VirtualCudaGenerator().manual_seed(1.5), "from -2^63 to 2^64 - 1"),
        (lambda: VirtualCudaGenerator().rand(2**29), "2 GiB"),
        (lambda: VirtualCudaGenerator().rand(2**31), "2 GiB"),
        (lambda: VirtualCudaGenerator().rand(-1), "whole numbers from 0"),
        (lambda: VirtualCudaGenerator().rand(2.5), "whole numbers from 0"),
        (lambda: VirtualCudaGenerator().rand(2, dtype="int32"), "float16, float32 or float64"),
        (lambda: VirtualCudaGenerator().randint(5, 5, (2,)), "the range from 5 to 5"),
        (lambda: VirtualCudaGenerator().uniform_((2,), 1, 0), "the range from 1 to 0"),
        (lambda: VirtualCudaGenerator().normal_((2,), 0, -1), "standard deviation"),
        (lambda: VirtualCudaGenerator().bernoulli(1.5, (2,)), "from 0 to 1"),
        (lambda: VirtualCudaGenerator().dropout_mask(-0.1, (2,)), "from 0 to 1"),
        (lambda: VirtualCudaGenerator().set_state(np.zeros(15, np.uint8)), "16 bytes"),
        (lambda: VirtualCudaGenerator().set_state(np.ones(16, np.uint8)), "16 bytes"),
        (lambda: VirtualCudaGenerator().multinomial, "`multinomial` is not modelled"),
    ],
    ids=[
        "gpu", "release", "no gpus", "many gpus", "huge seed", "fraction seed", "2 GiB", "8 GiB", "negative size",
        "fraction size", "dtype", "empty range", "reversed range", "std", "p above 1", "p below 0", "short state",
        "odd offset", "multinomial",
    ],
)  # fmt: skip
def test_what_is_not_modelled_is_refused_in_one_line(call, problem):
    with pytest.raises(InputError) as caught:
        call()
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
    assert re.search(r"[\u4e00-\u9fff]", caught.value.in_language("zh"))


def test_a_refused_draw_does_not_move_the_generator():
    generator = VirtualCudaGenerator()
    with pytest.raises(InputError):
        generator.rand(2**29)
    assert int(generator.get_state().view("<u8")[1]) == 0


def test_empty_tensors_are_empty_and_free():
    generator = VirtualCudaGenerator()
    assert generator.rand(0, 3).shape == (0, 3)
    assert generator.dropout_mask(0.5, (0,)).shape == (0,)
    assert generator.rand().shape == ()


def test_a_newer_pytorch_is_warned_of(monkeypatch):
    monkeypatch.setattr("repro_tutorial.virtual_cuda.metadata.version", lambda name: "2.15.0+cu140")
    with pytest.warns(UserWarning, match=r"PyTorch 2\.15 .* rules of 2\.14"):
        warn_of_newer_torch()
    monkeypatch.setattr("repro_tutorial.virtual_cuda.metadata.version", lambda name: "2.14.1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_newer_torch()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compares with a CUDA device, and there is none")
@pytest.mark.parametrize("seed", [0, 42, 2**40 + 7])
def test_a_real_device_agrees_bit_for_bit(seed):
    properties = torch.cuda.get_device_properties(0)
    threads = properties.multi_processor_count * (properties.max_threads_per_multi_processor // 256) * 256
    gpu = next((name for name, model in GPUS.items() if model.threads == threads), None)
    assert gpu, f"{properties.name} starts {threads} threads, which no GPU of the table does: add it"
    ours = VirtualCudaGenerator(gpu).manual_seed(seed)
    theirs = torch.Generator("cuda").manual_seed(seed)
    on = {"device": "cuda", "generator": theirs}
    for count in (1, 5, 257, threads, threads + 1, 4 * threads + 1):
        for kind in (torch.float32, torch.float16, torch.float64):
            name = str(kind).removeprefix("torch.")
            assert np.array_equal(
                ours.rand(count, dtype=name), torch.rand(count, dtype=kind, **on).cpu().numpy()
            )
            real = torch.randn(count, dtype=kind, **on).cpu().numpy()
            assert np.allclose(
                ours.randn(count, dtype=name), real, rtol=0, atol=2e-3 if name == "float16" else 2e-6
            )
        for low, high in ((0, 10), (-3, 2**28), (0, 2**40)):
            assert np.array_equal(
                ours.randint(low, high, (count,)), torch.randint(low, high, (count,), **on).cpu()
            )
        kept = torch.empty(count, device="cuda").bernoulli_(0.3, generator=theirs).cpu().numpy()
        assert np.array_equal(ours.bernoulli(0.3, (count,)), kept)
        assert np.array_equal(ours.randperm(count), torch.randperm(count, **on).cpu().numpy())
        assert np.array_equal(ours.get_state(), theirs.get_state().numpy())

"""PyTorch's CUDA generator recomputed on the CPU, for any number of virtual GPUs.

On CUDA, PyTorch draws from Philox4x32-10: a cipher that turns a key (the seed) and a counter (position and
thread) into four 32-bit words. Nothing else is remembered, so the words can be computed anywhere. The rules
by which words become numbers are those of `RULES_OF`; `randint`, uniform numbers and masks are meant to be
exact, `randn` agrees to about 1e-6, since the sine of the GPU's hardware is not public. PyTorch promises none
of this across releases or devices.
"""

import math
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from repro_tutorial.messages import InputError, text

RULES_OF = (2, 14)  # the release of PyTorch whose rules are in force where none is named
LARGEST_TENSOR = 2**31  # bytes: from there on PyTorch splits the kernel, which is not modelled

MOST_GPUS = 1024
CHUNK = 4096  # threads at a time, so that the words stay in the cache
BLOCK = 256  # threads in a block of every random kernel
WORDS = 4  # that the cipher gives at once; offsets are counted in words
_LOW = 2**32 - 1

Words: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.floating[Any]]
Transform: TypeAlias = Callable[[Sequence[Words], int], Sequence[npt.NDArray[Any]]]


@dataclass(frozen=True)
class GPU:
    """What of a GPU model the numbers depend on: how many threads it runs at once."""

    multiprocessors: int
    threads_per_multiprocessor: int

    @property
    def threads(self) -> int:
        """The most threads that a random kernel starts: elements beyond it come from second draws."""
        return self.multiprocessors * (self.threads_per_multiprocessor // BLOCK) * BLOCK


_NOT_MODELLED = {
    "multinomial", "exponential_", "geometric_", "cauchy_", "log_normal_", "poisson", "rand_like", "randn_like",
    "bernoulli_", "random_", "gamma", "graph", "compile",
}  # fmt: skip

# From NVIDIA's published specifications: multiprocessors, and threads on each (by compute capability).
GPUS = {
    "K80": GPU(13, 2048),
    "P100": GPU(56, 2048),
    "V100": GPU(80, 2048),
    "T4": GPU(40, 1024),
    "GTX 1080 Ti": GPU(28, 2048),
    "RTX 2060": GPU(30, 1024),
    "RTX 2070": GPU(36, 1024),
    "RTX 2080": GPU(46, 1024),
    "RTX 2080 Ti": GPU(68, 1024),
    "A100": GPU(108, 2048),
    "A10": GPU(72, 1536),
    "A10G": GPU(80, 1536),
    "A40": GPU(84, 1536),
    "RTX 3060": GPU(28, 1536),
    "RTX 3060 Ti": GPU(38, 1536),
    "RTX 3070": GPU(46, 1536),
    "RTX 3070 Ti": GPU(48, 1536),
    "RTX 3080": GPU(68, 1536),
    "RTX 3080 Ti": GPU(80, 1536),
    "RTX 3090": GPU(82, 1536),
    "RTX 3090 Ti": GPU(84, 1536),
    "RTX A2000": GPU(26, 1536),
    "RTX A4000": GPU(48, 1536),
    "RTX A4500": GPU(56, 1536),
    "RTX A5000": GPU(64, 1536),
    "RTX A6000": GPU(84, 1536),
    "L4": GPU(58, 1536),
    "L40": GPU(142, 1536),
    "L40S": GPU(142, 1536),
    "RTX 4060": GPU(24, 1536),
    "RTX 4060 Ti": GPU(34, 1536),
    "RTX 4070": GPU(46, 1536),
    "RTX 4070 SUPER": GPU(56, 1536),
    "RTX 4070 Ti": GPU(60, 1536),
    "RTX 4080": GPU(76, 1536),
    "RTX 4080 SUPER": GPU(80, 1536),
    "RTX 4090": GPU(128, 1536),
    "RTX 6000 Ada": GPU(142, 1536),
    "H100 PCIe": GPU(114, 2048),
    "H100 SXM": GPU(132, 2048),
    "H200": GPU(132, 2048),
}


class VirtualCudaGenerator:
    """The generator of one virtual GPU: a seed, an offset, and the numbers that PyTorch would draw from them.

    `gpu` is a name of `GPUS`; it matters only for tensors of more elements than the GPU has threads.
    `release` is the release of PyTorch whose rules to follow, as ``(2, 14)``; they changed in 1.5, 2.4, 2.7
    and 2.8. A generator starts from seed 0, offset 0.

    Drawing gives NumPy arrays. Each draw moves the offset as PyTorch's host code does, by the number of
    elements alone, never by what came out.

    Raises:
        InputError: no such GPU, or a release before 1.2, which had another generator.

    >>> generator = VirtualCudaGenerator().manual_seed(42)
    >>> generator.rand(2, 2).astype(float).round(4).tolist()
    [[0.613, 0.0101], [0.3984, 0.0403]]

    Lesson: generators
    """

    def __init__(self, gpu: str = "A100", *, release: tuple[int, int] = RULES_OF) -> None:
        if gpu not in GPUS:
            raise InputError("virtual_cuda.unknown_gpu", gpu=repr(gpu), known=list(GPUS))
        if release < (1, 2):
            raise InputError("virtual_cuda.old_release", release=".".join(map(str, release)))
        self.gpu = gpu
        self.release = release
        self._seed = 0
        self._offset = 0

    # State -----------------------------------------------------------------------------------------------

    def manual_seed(self, seed: int) -> "VirtualCudaGenerator":
        """Start from `seed`, which PyTorch takes from -2^63 to 2^64 - 1; negative ones count from 2^64 down."""
        try:
            value = operator.index(seed)
        except TypeError:
            value = 2**64
        if isinstance(seed, bool) or not -(2**63) <= value < 2**64:
            raise InputError("virtual_cuda.bad_seed", seed=repr(seed))
        self._seed, self._offset = value % 2**64, 0
        return self

    def seed(self) -> int:
        """Start from a seed that the operating system gives, and return it."""
        self.manual_seed(int(np.random.SeedSequence().generate_state(1, np.uint64)[0]))
        return self._seed

    def initial_seed(self) -> int:
        """The seed that the generator started from."""
        return self._seed

    def get_state(self) -> npt.NDArray[np.uint8]:
        """The 16 bytes of ``torch.cuda.get_rng_state()``: seed, then offset, little-endian."""
        return np.array([self._seed, self._offset], dtype="<u8").view(np.uint8)

    def set_state(self, state: npt.ArrayLike) -> None:
        """Go to where `get_state`, of this class or of a device, found the generator.

        Raises:
            InputError: not 16 bytes, or an offset that is no multiple of 4.
        """
        data = np.asarray(state)
        if data.dtype != np.uint8 or data.shape != (16,):
            raise InputError("virtual_cuda.bad_state", given=f"{data.dtype} {data.shape}")
        seed, offset = data.view("<u8").tolist()
        if offset % WORDS:
            raise InputError("virtual_cuda.bad_state", given=f"offset {offset}")
        self._seed, self._offset = seed, offset

    # Numbers ---------------------------------------------------------------------------------------------

    def rand(self, *shape: int, dtype: npt.DTypeLike = np.float32) -> Floats:
        """``torch.rand(shape, dtype=dtype, device="cuda")``: exact."""
        return self.uniform_(shape, dtype=dtype)

    def uniform_(
        self, shape: Sequence[int], low: float = 0.0, high: float = 1.0, *, dtype: npt.DTypeLike = np.float32
    ) -> Floats:
        """``torch.empty(shape, dtype=dtype, device="cuda").uniform_(low, high)``: exact in float32 and float16."""
        kind, count = _floating(dtype), _count(shape, dtype)
        start, end = kind.type(low), kind.type(high)
        if not (start <= end and np.isfinite(end - start)):
            raise InputError("virtual_cuda.bad_range", low=low, high=high)
        wide = kind == np.float64
        uniform = (
            self._striped(count, 2, kind, _wide_uniforms)
            if wide
            else self._striped(count, 4, np.float32, _uniforms)
        )
        if (low, high) != (0, 1):
            uniform = _fma(uniform, uniform.dtype.type(end - start), uniform.dtype.type(start))
        numbers = uniform.astype(kind, copy=False)
        numbers[numbers == end] = start  # the cipher's (0, 1] becomes [0, 1)
        return numbers.reshape(shape)

    def randn(self, *shape: int, dtype: npt.DTypeLike = np.float32) -> Floats:
        """``torch.randn(shape, dtype=dtype, device="cuda")``, to about 1e-6."""
        return self.normal_(shape, dtype=dtype)

    def normal_(
        self, shape: Sequence[int], mean: float = 0.0, std: float = 1.0, *, dtype: npt.DTypeLike = np.float32
    ) -> Floats:
        """``torch.empty(shape, dtype=dtype, device="cuda").normal_(mean, std)``, to about 1e-6 times `std`."""
        kind, count = _floating(dtype), _count(shape, dtype)
        if not std >= 0:
            raise InputError("virtual_cuda.bad_std", std=std)
        wide = kind == np.float64
        normal = (
            self._striped(count, 2, kind, _wide_normals)
            if wide
            else self._striped(count, 4, np.float32, _normals)
        )
        if (mean, std) != (0, 1):
            normal = _fma(normal, normal.dtype.type(std), normal.dtype.type(mean))
        return normal.astype(kind, copy=False).reshape(shape)

    def randint(
        self, low: int, high: int, shape: Sequence[int], *, dtype: npt.DTypeLike = np.int64
    ) -> npt.NDArray[Any]:
        """``torch.randint(low, high, shape, dtype=dtype, device="cuda")``, from `low` to `high` - 1: exact."""
        kind, count, span = np.dtype(dtype), _count(shape, dtype), high - low
        if not 0 < span < 2**64:
            raise InputError("virtual_cuda.bad_range", low=low, high=high)
        if self.release < (1, 5):
            wide = kind == np.int64
        elif self.release < (2, 7):
            wide = span >= 2**32 and kind in (np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.float32))
        else:
            wide = span >= 2**28
        words = self._striped(count, 2 if wide else 4, np.uint64, _pairs if wide else _words)
        # PyTorch adds the base in 64 bits, which wrap, and narrows then.
        return (words % np.uint64(span) + np.uint64(low % 2**64)).view(np.int64).astype(kind).reshape(shape)

    def bernoulli(
        self, p: float, shape: Sequence[int], *, dtype: npt.DTypeLike = np.float32
    ) -> npt.NDArray[Any]:
        """``torch.empty(shape, dtype=dtype, device="cuda").bernoulli_(p)``: ones with probability `p`; exact."""
        kind, count = np.dtype(dtype), _count(shape, dtype)
        _check_probability(p)
        if kind == np.float64:
            ones = self._striped(count, 2, np.float64, _wide_uniforms) < np.float64(p)
        else:
            ones = self._striped(count, 4, np.float32, _uniforms) < np.float32(p)
        return ones.astype(kind).reshape(shape)

    def dropout_mask(
        self, p: float, shape: Sequence[int], *, dtype: npt.DTypeLike = np.float32
    ) -> npt.NDArray[np.bool_]:
        """Which elements ``torch.nn.functional.dropout(x, p)`` keeps, for a contiguous `x` of `shape`: exact.

        `p` is the probability to drop. What is kept, PyTorch multiplies by ``1 / (1 - p)``.
        """
        kind, count = _floating(dtype), _count(shape, dtype)
        _check_probability(p)
        if p in (0, 1) or count == 0:  # PyTorch draws nothing then
            return np.full(shape, p == 0)
        keep = (np.float64 if kind == np.float64 else np.float32)(1 - p)
        each = _neighbors(count, kind, self.release)
        if each == 1:
            return (self._striped(count, 4, np.float32, _uniforms) < keep).reshape(shape)
        return self._vectored(count, each, keep).reshape(shape)

    def randperm(self, n: int) -> npt.NDArray[np.int64]:
        """``torch.randperm(n, device="cuda")``: by the rules, which no published print confirms yet."""
        if n <= 0:
            _count((n,), np.int64)
            return np.arange(0)
        # So many bits that no two keys are equal with probability 0.9; those that are get shuffled after.
        bits = min(64, math.ceil(math.log2(n - (6 * n * n + 1) / (12 * math.log(0.9)))))
        kind, end = (np.int32, 2**31) if bits <= 32 else (np.int64, 2**63)
        keys = self.randint(-end, end - 1, (n,), dtype=kind).astype(np.int64).view(np.uint64)
        low = keys & np.uint64(2**bits - 1)
        # Sorted by their low bits; where all bits count, as signed numbers.
        order = np.argsort(low ^ np.uint64(end) if bits in (32, 64) else low, kind="stable")
        self._shuffle_islands(order, low[order])
        return order

    def __getattr__(self, name: str) -> Any:
        if name in _NOT_MODELLED:
            raise InputError("virtual_cuda.not_modelled", name=name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # How they are drawn ----------------------------------------------------------------------------------

    def _threads(self, count: int) -> int:
        return min(-(-count // BLOCK) * BLOCK, GPUS[self.gpu].threads)

    def _draw(self, count: int, each: int) -> int:
        """Move the offset past a draw of `count` elements, `each` to a thread at once; the block it began at."""
        start = self._offset // WORDS
        if count:
            self._offset += ((count - 1) // (self._threads(count) * each) + 1) * WORDS
        return start

    def _striped(self, count: int, each: int, kind: npt.DTypeLike, transform: Transform) -> npt.NDArray[Any]:
        """`count` numbers, `each` to a block of words: neighbors come from neighboring threads.

        Element i comes from thread ``i % threads``; a thread's second number stands `threads` elements on.
        """
        # Before 2.4 the host counted as if every block gave four, so that wide draws began anew too early.
        threads, start = self._threads(count), self._draw(count, each if self.release >= (2, 4) else WORDS)
        blocks = -(-count // (threads * each)) if count else 0
        numbers = np.empty((blocks, each, threads), dtype=kind)
        for block in range(blocks):
            left = count - block * threads * each
            rows = min(each, -(-left // threads))
            for first in range(0, min(threads, left), CHUNK):
                words = philox(self._seed, start + block, first, min(CHUNK, threads - first))
                for row, made in enumerate(transform(words, rows)):
                    numbers[block, row, first : first + CHUNK] = made
        return numbers.reshape(-1)[:count]

    def _vectored(self, count: int, each: int, keep: np.floating[Any]) -> npt.NDArray[np.bool_]:
        """Which of `count` elements are kept, when a thread takes `each` neighbors at once, a power of two."""
        threads, start = self._threads(count), self._draw(count, WORDS)
        rounds = -(-count // (threads * each))
        kept = np.empty((rounds, threads, each), dtype=np.bool_)
        for turn in range(rounds):
            left = -(-(count - turn * threads * each) // each)
            for first in range(0, min(threads, left), CHUNK):
                for place in range(each):
                    # Eight neighbors take two blocks; two take half of one, and the other half in the next turn.
                    number = turn * each + place
                    if place % WORDS == 0:
                        many = min(CHUNK, threads - first)
                        words = philox(self._seed, start + number // WORDS, first, many)
                    kept[turn, first : first + CHUNK, place] = _uniform(words[number % WORDS]) < keep
        return kept.reshape(-1)[:count]

    def _shuffle_islands(self, order: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64]) -> None:
        """Shuffle, in place, the stretches of `order` whose sorted `keys` are equal, as the second kernel does."""
        count = len(order)
        start, self._offset = self._offset // WORDS, self._offset + -(-count // WORDS) * WORDS
        equal = np.concatenate([[False], keys[1:] == keys[:-1], [False]])
        for first in np.flatnonzero(~equal[:-1] & equal[1:]).tolist():
            size = 1
            while first + size < count and equal[first + size]:
                size += 1
            blocks = range(-(-(size - 1) // WORDS))
            words = [int(word[0]) for block in blocks for word in philox(self._seed, start + block, first, 1)]
            for last, word in zip(range(size - 1, 0, -1), words, strict=False):
                a, b = first + last, first + word % (last + 1)
                order[a], order[b] = order[b], order[a]


class VirtualCluster:
    """Some virtual GPUs of one model, and the functions of `torch.cuda` that seed them.

    >>> cluster = VirtualCluster(4)
    >>> cluster.manual_seed_all(42)
    >>> len({generator.rand(2, 2).tobytes() for generator in cluster})
    1

    Lesson: multi_gpu_seeding
    """

    def __init__(self, gpus: int, gpu: str = "A100", *, release: tuple[int, int] = RULES_OF) -> None:
        if not 1 <= gpus <= MOST_GPUS:
            raise InputError("virtual_cuda.bad_gpus", given=gpus, most=MOST_GPUS)
        self.generators = tuple(VirtualCudaGenerator(gpu, release=release) for _ in range(gpus))

    def manual_seed(self, seed: int, device: int = 0) -> None:
        """``torch.cuda.manual_seed(seed)`` with `device` as the current device: that one and no other."""
        self.generators[device].manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """``torch.cuda.manual_seed_all(seed)``: the same seed on every GPU, and so the same numbers."""
        for generator in self.generators:
            generator.manual_seed(seed)

    def seed_all(self) -> None:
        """``torch.cuda.seed_all()``: one seed from the operating system, the same on every GPU."""
        self.manual_seed_all(self.generators[0].seed())

    def __len__(self) -> int:
        return len(self.generators)

    def __getitem__(self, device: int) -> VirtualCudaGenerator:
        return self.generators[device]

    def __iter__(self) -> Iterator[VirtualCudaGenerator]:
        return iter(self.generators)


def warn_of_newer_torch() -> None:
    """Warn when the PyTorch that is installed is newer than the rules here.

    Lesson: generators
    """
    installed = tuple(int(part) for part in re.findall(r"\d+", metadata.version("torch"))[:2])
    if installed > RULES_OF:
        names = {"installed": ".".join(map(str, installed)), "rules": ".".join(map(str, RULES_OF))}
        warnings.warn(text("virtual_cuda.newer_torch", **names), stacklevel=2)


# Words ---------------------------------------------------------------------------------------------------


def philox(key: int, block: int, first: int, count: int) -> tuple[Words, ...]:
    """The four words of block `block`, for `count` threads from thread `first`: Philox4x32-10.

    `key` and `block` have 64 bits. Each word comes as a uint64 array of `count` numbers below 2^32.

    Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    key_0, key_1 = key & _LOW, key >> 32
    a: Any = np.uint64(block & _LOW)
    b: Any = np.uint64(block >> 32)
    c: Any = np.arange(first, first + count, dtype=np.uint64)
    d: Any = c >> np.uint64(32)
    c = c & np.uint64(_LOW)
    for _ in range(10):
        p, q = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b, c, d = (
            (q >> np.uint64(32)) ^ b ^ np.uint64(key_0),
            q & np.uint64(_LOW),
            (p >> np.uint64(32)) ^ d ^ np.uint64(key_1),
            p & np.uint64(_LOW),
        )
        key_0, key_1 = (key_0 + 0x9E3779B9) & _LOW, (key_1 + 0xBB67AE85) & _LOW
    return a, b, c, d


def _uniform(word: Words) -> Floats:
    """A word as float32 in (0, 1]: the 32-bit word is rounded first, then half a unit is added."""
    return word.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)


def _uniforms(words: Sequence[Words], rows: int) -> list[Floats]:
    return [_uniform(word) for word in words[:rows]]


def _wide_uniforms(words: Sequence[Words], rows: int) -> list[Floats]:
    """Two words as float64 in (0, 1]: 53 bits."""
    return [
        (low ^ (high << np.uint64(21))).astype(np.float64) * 2.0**-53 + 2.0**-54
        for low, high in (words[0:2], words[2:4])[:rows]
    ]


def _pairs(words: Sequence[Words], rows: int) -> list[npt.NDArray[np.uint64]]:
    return [(high << np.uint64(32)) | low for high, low in (words[0:2], words[2:4])[:rows]]


def _normals(words: Sequence[Words], rows: int) -> list[Floats]:
    """Box and Muller: radius from one word, angle from the next; sine first, cosine second."""
    made: list[Floats] = []
    for radius_word, angle_word in (words[0:2], words[2:4])[: -(-rows // 2)]:
        radius = np.sqrt(np.float32(-2) * np.log(_uniform(radius_word)))
        # The device turns the word into radians, back into turns, and chops them to float32 for its sine
        # unit. The chopping is repeated here, for it moves the sixth digit; the unit's own error is not.
        per_word = np.float32(2.0**-32 * 2 * math.pi)
        radians = _fma(angle_word.astype(np.float32), per_word, np.float32(per_word / 2))
        exact = radians.astype(np.float64) * np.float64(np.float32(1 / (2 * math.pi)))
        turns = exact.astype(np.float32)
        turns = np.where(turns > exact, np.nextafter(turns, np.float32(0)), turns)
        angle = 2 * math.pi * turns.astype(np.float64)
        made += [(np.sin(angle) * radius).astype(np.float32), (np.cos(angle) * radius).astype(np.float32)]
    return made[:rows]


def _wide_normals(words: Sequence[Words], rows: int) -> list[Floats]:
    radius_word, angle_word = (low ^ (high << np.uint64(21)) for low, high in (words[0:2], words[2:4]))
    radius = np.sqrt(-2 * np.log(radius_word.astype(np.float64) * 2.0**-53 + 2.0**-54))
    angle = np.pi * (angle_word.astype(np.float64) * 2.0**-52 + 2.0**-53)
    return [np.sin(angle) * radius, np.cos(angle) * radius][:rows]


def _fma(x: Floats, factor: np.floating[Any], term: np.floating[Any]) -> Floats:
    """``x * factor + term`` in the format of `x`, rounded once, as the device's fused instruction does."""
    if x.dtype == np.float64:
        wide: Floats = x * factor + term
        return wide  # rounded twice: NumPy has no wider format everywhere
    # The product of two float32 numbers is exact in float64. The sum may not be; rounding it to odd makes
    # the rounding to float32 that follows come out as if it had been.
    product = x.astype(np.float64) * np.float64(factor)
    total = product + np.float64(term)
    rest = (product - (total - np.float64(term))) + (np.float64(term) - (total - (total - np.float64(term))))
    bits = total.view(np.int64)
    to_odd = (rest != 0) & (bits & 1 == 0)
    toward = np.where((rest > 0) == (total > 0), 1, -1)
    odd: npt.NDArray[np.float64] = np.where(to_odd, bits + toward, bits).view(np.float64)
    return odd.astype(np.float32)


def _words(words: Sequence[Words], rows: int) -> Sequence[Words]:
    return words[:rows]


# What is asked for -------------------------------------------------------------------------------------------


def _count(shape: Sequence[int], dtype: npt.DTypeLike) -> int:
    """The number of elements in `shape`, if it is modelled."""
    try:
        sizes = [operator.index(size) for size in shape]
    except TypeError:
        sizes = [-1]
    if min(sizes, default=0) < 0:
        raise InputError("virtual_cuda.bad_shape", shape=tuple(shape))
    count = math.prod(sizes)
    if count * np.dtype(dtype).itemsize >= LARGEST_TENSOR:
        raise InputError("virtual_cuda.too_large", shape=tuple(shape), dtype=np.dtype(dtype).name)
    return count


def _floating(dtype: npt.DTypeLike) -> np.dtype[Any]:
    kind = np.dtype(dtype)
    if kind not in (np.float16, np.float32, np.float64):
        raise InputError("virtual_cuda.bad_dtype", dtype=kind.name)
    return kind


def _check_probability(p: float) -> None:
    if not 0 <= p <= 1:
        raise InputError("virtual_cuda.bad_probability", p=p)


def _neighbors(count: int, kind: np.dtype[Any], release: tuple[int, int]) -> int:
    """How many neighbors a thread of the dropout kernel takes: as many as divide `count`, up to 16 bytes."""
    if release < (1, 5):
        return 1
    most = 16 // kind.itemsize if release >= (2, 8) else 4
    return math.gcd(count, most)

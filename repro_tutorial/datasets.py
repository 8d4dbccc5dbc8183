"""CIFAR-10 from disk or downloaded, and drawn pictures that stand in for it where there is no network.

Both come as plain arrays: a training loop that picks its batches from them needs no worker processes, and
`torchvision_dataset` hands the same pictures to torchvision's own pipeline.
"""

import codecs
import hashlib
import http.client
import io
import json
import pickle
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from repro_tutorial.messages import InputError, os_problem

PICTURES = 50_000  # of a training set, real or drawn
SIZE = 32  # rows and columns of a picture
CLASSES = 10


@dataclass(frozen=True)
class Pictures:
    """Labeled pictures in memory.

    `pixels` is uint8 of shape (pictures, 32, 32, 3): rows, columns, red green blue. `labels` is int64 of
    shape (pictures,), each from 0 to 9. `verified` says whether they are known to be what `name` says;
    `origin` is what the folder itself says of unverified ones.
    """

    name: str
    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    verified: bool = True
    origin: Mapping[str, Any] = field(default_factory=dict)


# Drawn pictures -----------------------------------------------------------------------------------------

# Ten shapes, each a test on every pixel: `u` and `v` are the pixel's column and row counted from the
# shape's center, `r` the shape's radius. All are int16, and every operation stays within int16.
Coordinates = npt.NDArray[np.int16]
Mask = npt.NDArray[np.bool_]
SHAPES: tuple[Callable[[Coordinates, Coordinates, Coordinates], Mask], ...] = (
    lambda u, v, r: u * u + v * v <= r * r,  # disc
    lambda u, v, r: abs(u * u + v * v - r * r) <= 3 * r + 6,  # ring
    lambda u, v, r: np.maximum(abs(u), abs(v)) <= r - 1,  # square
    lambda u, v, r: abs(np.maximum(abs(u), abs(v)) - r + 1) <= 1,  # frame
    lambda u, v, r: abs(u) + abs(v) <= r + 2,  # diamond
    lambda u, v, r: (np.minimum(abs(u), abs(v)) <= 1) & (np.maximum(abs(u), abs(v)) <= r),  # plus
    lambda u, v, r: (abs(abs(u) - abs(v)) <= 1) & (abs(u) <= r - 1),  # cross
    lambda u, v, r: (np.maximum(abs(u), abs(v)) <= r) & ((v + r) % 5 < 2),  # lying bars
    lambda u, v, r: (np.maximum(abs(u), abs(v)) <= r) & ((u + r) % 5 < 2),  # standing bars
    lambda u, v, r: (2 * abs(u) <= v + r) & (v <= r - 1),  # triangle
)

# What each class adds to red, green and blue of the ground: a cue, as the sea is for ships, and no proof.
TINTS = np.array(
    [
        (40, 40, 40),
        (-40, -40, -40),
        (40, -13, -13),
        (-13, 40, -13),
        (-13, -13, 40),
        (-40, 13, 13),
        (13, -40, 13),
        (13, 13, -40),
        (32, 0, -32),
        (-32, 0, 32),
    ],
    dtype=np.int16,
)

# Each picture has a row of random words: one for each of these, five for each color, the rest for the noise.
LABEL, COLUMN, ROW, RADIUS, SHEAR, OTHER, OTHER_COLUMN, OTHER_ROW, GRAIN, CHANCE, STRAY, FIRST_COLOR = range(
    12
)
OF_A_COLOR = 5  # slope across, slope down, ground, shape, the other shape
NUMBERS = FIRST_COLOR + 3 * OF_A_COLOR
NOISE_WORDS = 3 * SIZE * SIZE // 8  # of 64 bits: a byte for each color of each pixel
STRAYS = 33  # of 100 pictures show any shape, so that no network can know all labels
BLOCK = 500  # pictures drawn at once: few enough to stay in the processor's cache


def synthetic_pictures(pictures: int = PICTURES, seed: int = 0, first: int = 0) -> Pictures:
    """`pictures` drawn ones from number `first` on: ten shapes, in any color, place and size, under noise.

    Made with integers alone, so that they are the same on every platform and under every NumPy. Picture i
    depends on `seed` and i, on nothing else. 50,000 take about a second on two cores. A small network learns them about
    as fast as CIFAR-10, and never quite: a third of them show any of the shapes, whatever their label.

    >>> a, b = synthetic_pictures(20), synthetic_pictures(5, first=15)
    >>> bool((a.pixels[15:] == b.pixels).all()), a.pixels.shape
    (True, (20, 32, 32, 3))

    Lesson: cifar_cudnn
    """
    pixels = np.empty((pictures, SIZE, SIZE, 3), dtype=np.uint8)
    labels = np.empty(pictures, dtype=np.int64)

    def draw_block(start: int) -> None:
        part = slice(start, min(start + BLOCK, pictures))
        numbers = np.arange(first + part.start, first + part.stop, dtype=np.uint64)
        labels[part], pixels[part] = _draw(numbers, seed)

    with ThreadPoolExecutor(2) as pool:  # NumPy lets other threads run while it computes
        for _ in pool.map(draw_block, range(0, pictures, BLOCK)):
            pass
    return Pictures("synthetic", pixels, labels)


def _draw(numbers: npt.NDArray[np.uint64], seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """The labels and the pixels of the pictures with these numbers."""
    count = len(numbers)
    start = _mixed(numbers + np.uint64(seed << 32))[:, None]
    words = _mixed(start + np.arange(NUMBERS + NOISE_WORDS, dtype=np.uint64) * _ODD)
    noise = words[:, NUMBERS:].astype("<u8").view(np.int8).reshape(count, 3, SIZE, SIZE)
    upper = words[:, :NUMBERS] >> np.uint64(32)

    def number(which: int, low: int, high: int) -> Coordinates:
        """One number of each picture, from `low` to `high`: how far up its word lies, in so many steps."""
        below = upper[:, which] * np.uint64(high - low + 1) >> np.uint64(32)
        return (below.astype(np.int16) + np.int16(low))[:, None, None]

    x = np.arange(SIZE, dtype=np.int16)  # a row and a column: whole planes are made as late as may be
    y = x[:, None]
    labels = number(LABEL, 0, CLASSES - 1)
    v = y - number(ROW, 12, 19)
    u = x - number(COLUMN, 12, 19) + (v * number(SHEAR, -3, 3) >> 3)
    stray = number(CHANCE, 1, 100) <= STRAYS
    kinds = np.where(stray, number(STRAY, 0, CLASSES - 1), labels)
    shape = _inside(kinds, u, v, number(RADIUS, 8, 11))
    small = x - number(OTHER_COLUMN, 0, 31), y - number(OTHER_ROW, 0, 31)
    other = _inside(number(OTHER, 0, CLASSES - 1), *small, np.full((count, 1, 1), 4, dtype=np.int16))
    grain = number(GRAIN, 2, 4).astype(np.int8)
    pixels = np.empty((count, SIZE, SIZE, 3), dtype=np.uint8)
    for color in range(3):
        own = FIRST_COLOR + OF_A_COLOR * color
        plane = (x - 16) * number(own, -4, 4) + (y - 16) * number(own + 1, -4, 4)
        plane >>= 2
        plane += number(own + 2, 60, 195) + TINTS[labels[:, 0, 0], color, None, None]
        plane += shape * number(own + 3, -120, 120)
        plane += other * number(own + 4, -40, 40)
        plane += noise[:, color] >> grain
        pixels[..., color] = np.clip(plane, 0, 255, out=plane).astype(np.uint8)
    return labels.ravel().astype(np.int64), pixels


def _inside(kinds: Coordinates, u: Coordinates, v: Coordinates, radius: Coordinates) -> Coordinates:
    """1 inside the shape that each picture has, 0 outside."""
    inside = np.empty((len(kinds), SIZE, SIZE), dtype=np.int16)
    for kind, holds in enumerate(SHAPES):
        chosen = np.flatnonzero(kinds == kind)
        inside[chosen] = holds(u[chosen], v[chosen], radius[chosen])
    return inside


_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio, made odd


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Each 64-bit word hashed: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    words = words + _ODD
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


# CIFAR-10 -----------------------------------------------------------------------------------------------

FOLDER = "cifar-10-batches-py"  # as in torchvision, which is slow to import
ORIGIN = "origin.json"  # beside the data: an object in which a folder says where unverified data came from
WAIT = 30  # seconds without a byte after which a download is given up
CHUNK = 1 << 18


class _ArraysOnly(pickle.Unpickler):
    """Reads pickled arrays and plain data: a pickle may call anything, and CIFAR-10 comes as pickles."""

    def find_class(self, module: str, name: str) -> Any:
        reconstruct = np.empty(0).__reduce__()[0]  # where it lives depends on NumPy's version
        known = {
            "numpy.core.multiarray._reconstruct": reconstruct,
            "numpy._core.multiarray._reconstruct": reconstruct,
            "numpy.ndarray": np.ndarray,
            "numpy.dtype": np.dtype,
            "_codecs.encode": codecs.encode,
        }
        if f"{module}.{name}" not in known:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return known[f"{module}.{name}"]


def has_cifar10(folder: Path) -> bool:
    """Whether `folder` seems to hold CIFAR-10; only loading it shows whether it is whole.

    Lesson: cifar_cudnn
    """
    return (folder / FOLDER).exists()


def load_cifar10(folder: Path, *, verify: bool = True) -> Pictures:
    """The 50,000 training pictures from ``folder/cifar-10-batches-py``, in the official order.

    `verify` demands files with the checksums that torchvision knows. Without it others are taken too, and
    the result says so; nothing in them is executed, which torchvision's own reader does not promise.

    Raises:
        InputError: a file is missing, damaged, or not the one that torchvision knows.

    Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009.

    Lesson: cifar_cudnn
    """
    from torchvision.datasets import CIFAR10

    if folder.exists() and not folder.is_dir():
        raise InputError("datasets.not_a_folder", folder=folder)
    base = folder / FOLDER
    verified = True
    pixels, labels = [], []
    for name, md5 in CIFAR10.train_list:
        data = _read(base / name)
        if hashlib.md5(data, usedforsecurity=False).hexdigest() != md5:
            if verify:
                raise InputError("datasets.unverified", file=base / name)
            verified = False
        some, their_labels = _unpickled(data, base / name)
        pixels.append(some.reshape(-1, 3, SIZE, SIZE).transpose(0, 2, 3, 1))
        labels.append(their_labels)
    origin = {} if verified else _origin(base / ORIGIN)
    return Pictures("cifar10", np.concatenate(pixels), np.concatenate(labels), verified, origin)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError("datasets.missing", file=path) from error
    except OSError as error:
        raise InputError("files.cannot_read", file=path, problem=os_problem(error)) from error


_DAMAGE = (
    pickle.PickleError, EOFError, LookupError, ValueError, TypeError, AttributeError, ImportError,
    MemoryError, OverflowError, AssertionError,
)  # fmt: skip  # what reading a damaged pickle may end with


def _unpickled(data: bytes, path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """One of the five files: pixels of shape (pictures, 3072) and labels of shape (pictures,)."""
    try:
        batch = _ArraysOnly(io.BytesIO(data), encoding="latin1").load()
        pixels, labels = np.asarray(batch["data"]), np.asarray(batch["labels"])
        assert pixels.dtype == np.uint8 and pixels.shape[1:] == (3 * SIZE * SIZE,)
        assert labels.dtype.kind == "i" and labels.shape == pixels.shape[:1]
        assert labels.min() >= 0 and labels.max() < CLASSES
    except _DAMAGE as error:
        raise InputError("datasets.damaged", file=path) from error
    return pixels, labels.astype(np.int64)


def _origin(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        told = json.loads(_read(path))
    except ValueError as error:
        raise InputError("datasets.bad_origin", file=path) from error
    if not isinstance(told, dict):
        raise InputError("datasets.bad_origin", file=path)
    return told


def torchvision_dataset(pictures: Pictures, transform: Callable[[Any], Any]) -> Any:
    """`pictures` as the data set that ``torchvision.datasets.CIFAR10`` would have read from disk.

    Lesson: cifar_cudnn
    """
    from torchvision.datasets import CIFAR10, VisionDataset

    dataset = CIFAR10.__new__(CIFAR10)  # its own constructor reads files
    VisionDataset.__init__(dataset, "", transform=transform)
    dataset.train = True
    dataset.data = pictures.pixels
    dataset.targets = pictures.labels.tolist()
    return dataset


def download_cifar10(folder: Path, url: str | None = None) -> None:
    """Fetch CIFAR-10 into ``folder/cifar-10-batches-py``, unless that exists.

    `url` is the archive's address at a mirror; by default it is torchvision's. What has arrived stays in a
    file ending in ``.part``, and the next call goes on behind it. The archive must have torchvision's
    checksum before anything is unpacked. A progress bar shows on a terminal.

    Raises:
        InputError: no network, a server that refuses, a download cut off or damaged, a full disk.

    Lesson: cifar_cudnn
    """
    from torchvision.datasets import CIFAR10

    url = url or CIFAR10.url
    if not url.startswith(("http://", "https://")):
        raise InputError("datasets.bad_mirror", url=repr(url))
    if folder.exists() and not folder.is_dir():
        raise InputError("datasets.not_a_folder", folder=folder)
    if (folder / FOLDER).exists():
        if all((folder / FOLDER / name).is_file() for name, _ in CIFAR10.train_list):
            return
        raise InputError("datasets.half_a_folder", folder=folder / FOLDER)
    part = folder / f"{CIFAR10.filename}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _md5(part) != CIFAR10.tgz_md5:
            _fetch(url, part)
            if _md5(part) != CIFAR10.tgz_md5:
                part.unlink()
                raise InputError("datasets.damaged_download", url=url)
        _unpack(part, folder / FOLDER)
        part.unlink()
    except OSError as error:  # of our own files: those of the network became others below
        raise InputError("datasets.cannot_keep", folder=folder, problem=os_problem(error)) from error


def _md5(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _fetch(url: str, part: Path) -> None:
    """Fetch what `part` lacks of `url`."""
    have = part.stat().st_size if part.exists() else 0
    try:
        request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
        answer = urllib.request.urlopen(request, timeout=WAIT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # nothing behind what we have: the checksum will say whether it is right
            return
        raise InputError("datasets.refused", url=url, code=error.code) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise InputError("datasets.no_network", url=url, problem=_reason(error)) from error
    with answer:
        if answer.status != 206:
            have = 0  # the server knows no ranges, and sends all of it again
        length = answer.headers.get("Content-Length", "")
        total = have + int(length) if length.isdecimal() else None
        with (
            part.open("ab" if have else "wb") as file,
            tqdm(
                initial=have,
                total=total,
                desc="CIFAR-10",
                unit="B",
                unit_scale=True,
                leave=False,
                disable=None,
            ) as bar,
        ):
            for chunk in _chunks(answer, url):
                file.write(chunk)
                bar.update(len(chunk))
    if total is not None and part.stat().st_size < total:
        raise InputError("datasets.cut_off", url=url, problem=f"{part.stat().st_size:,} / {total:,} B")


def _chunks(answer: IO[bytes], url: str) -> Iterator[bytes]:
    while True:
        try:
            chunk = answer.read(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise InputError("datasets.cut_off", url=url, problem=_reason(error)) from error
        if not chunk:
            return
        yield chunk


def _reason(error: Exception) -> str:
    """What the network complains of, in its own words."""
    reason = getattr(error, "reason", error)
    return str(getattr(reason, "strerror", None) or reason) or type(reason).__name__


def _unpack(archive: Path, target: Path) -> None:
    """Write the files of the archive's folder to `target`: all of them, or nothing."""
    partial = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=target.parent))
    try:
        with tarfile.open(archive, "r:gz") as files:
            for member in files:
                content = files.extractfile(member)
                if content is not None and Path(member.name).parent.name == target.name:
                    with (partial / Path(member.name).name).open("wb") as file:
                        shutil.copyfileobj(content, file)
        partial.chmod(0o755)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)

"""Drawn pictures are the same everywhere; CIFAR-10 is read safely, and its download survives what networks do."""

import errno
import hashlib
import io
import pickle
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torchvision
from torchvision.datasets import CIFAR10

from repro_tutorial import datasets
from repro_tutorial.datasets import (
    FOLDER,
    download_cifar10,
    has_cifar10,
    load_cifar10,
    synthetic_pictures,
    torchvision_dataset,
)
from repro_tutorial.messages import InputError

# Over all pixels, then all labels as little-endian 64-bit integers.
SYNTHETIC_SHA256 = "5910132a15cdbcba8986e873191531685ae6402f0e7934b003905a819330dce2"


def sha256(pictures: datasets.Pictures) -> str:
    digest = hashlib.sha256(pictures.pixels.tobytes())
    digest.update(pictures.labels.astype("<i8").tobytes())
    return digest.hexdigest()


# Drawn pictures ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drawn() -> datasets.Pictures:
    return synthetic_pictures()


def test_the_drawn_pictures_are_the_same_on_every_platform(drawn):
    assert drawn.pixels.shape == (50_000, 32, 32, 3)
    assert drawn.pixels.dtype == np.uint8
    assert sha256(drawn) == SYNTHETIC_SHA256


def test_a_picture_depends_on_the_seed_and_its_number_alone(drawn):
    for first, count in ((0, 1), (199, 3), (12_345, 450)):
        some = synthetic_pictures(count, first=first)
        assert np.array_equal(some.pixels, drawn.pixels[first : first + count])
        assert np.array_equal(some.labels, drawn.labels[first : first + count])
    other = synthetic_pictures(100, seed=1)
    assert not np.array_equal(other.pixels, drawn.pixels[:100])
    assert all(not np.array_equal(a, b) for a, b in zip(other.pixels, drawn.pixels[1:101], strict=True))


def test_the_pictures_all_differ_and_the_classes_are_about_equal(drawn):
    assert len({picture.tobytes() for picture in drawn.pixels[:5000]}) == 5000
    counts = np.bincount(drawn.labels, minlength=10)
    assert len(counts) == 10
    assert 4_700 < counts.min() <= counts.max() < 5_300


def test_drawing_needs_no_random_generator_and_no_float():
    """The leak guard watches the generators; here the arithmetic."""
    labels, pixels = datasets._draw(np.arange(3, dtype=np.uint64), 0)
    assert (labels.dtype, pixels.dtype) == (np.int64, np.uint8)
    source = Path(datasets.__file__).read_text(encoding="utf-8")
    body = source[source.index("# Drawn pictures") : source.index("# CIFAR-10 ---")]
    assert "float" not in body
    assert " / " not in body


# The data set of torchvision --------------------------------------------------------------------------------


def write_batches(
    folder: Path, monkeypatch: pytest.MonkeyPatch | None, pictures: int = 4
) -> datasets.Pictures:
    """A small CIFAR-10 of 5 times `pictures`, whose checksums torchvision is made to know."""
    made = synthetic_pictures(5 * pictures)
    base = folder / FOLDER
    base.mkdir(parents=True)
    rows = made.pixels.transpose(0, 3, 1, 2).reshape(len(made.labels), -1)
    known = []
    for number in range(5):
        part = slice(number * pictures, (number + 1) * pictures)
        batch = {"labels": made.labels[part].tolist(), "data": rows[part]}
        data = pickle.dumps(batch, 2)
        (base / f"data_batch_{number + 1}").write_bytes(data)
        known.append([f"data_batch_{number + 1}", hashlib.md5(data).hexdigest()])
    meta = pickle.dumps({"label_names": list("abcdefghij")}, 2)
    (base / "batches.meta").write_bytes(meta)
    if monkeypatch:
        monkeypatch.setattr(CIFAR10, "train_list", known)
        monkeypatch.setattr(CIFAR10, "test_list", [])
        monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": hashlib.md5(meta).hexdigest()})
    return made


def test_the_folder_is_called_as_in_torchvision(tmp_path):
    assert CIFAR10.base_folder == FOLDER
    assert not has_cifar10(tmp_path)
    write_batches(tmp_path, None, 1)
    assert has_cifar10(tmp_path)


def test_cifar10_is_read_as_torchvision_reads_it(tmp_path, monkeypatch):
    made = write_batches(tmp_path, monkeypatch)
    read = load_cifar10(tmp_path)
    theirs = CIFAR10(tmp_path)
    assert read.verified
    assert (read.name, read.origin) == ("cifar10", {})
    assert np.array_equal(read.pixels, made.pixels)
    assert np.array_equal(read.pixels, theirs.data)
    assert read.labels.tolist() == theirs.targets == made.labels.tolist()


def test_the_data_set_in_memory_gives_what_torchvisions_gives(tmp_path, monkeypatch):
    write_batches(tmp_path, monkeypatch)
    to_tensor = torchvision.transforms.ToTensor()
    ours = pickle.loads(pickle.dumps(torchvision_dataset(load_cifar10(tmp_path), to_tensor)))
    theirs = CIFAR10(tmp_path, transform=to_tensor)
    assert len(ours) == len(theirs) == 20
    for (image, label), (other, their_label) in zip(map(ours.__getitem__, range(20)), theirs, strict=False):
        assert (image == other).all()
        assert label == their_label
    assert "Number of datapoints: 20" in repr(ours)


def test_data_with_another_checksum_is_refused_unless_asked_for(tmp_path):
    made = write_batches(tmp_path, None)
    with pytest.raises(InputError, match="data_batch_1: its checksum is not the one that torchvision knows"):
        load_cifar10(tmp_path)
    (tmp_path / FOLDER / "origin.json").write_text('{"rebuilt": true}')
    read = load_cifar10(tmp_path, verify=False)
    assert not read.verified
    assert read.origin == {"rebuilt": True}
    assert np.array_equal(read.pixels, made.pixels)


class Harmful:
    def __reduce__(self) -> tuple:
        return print, ("executed",)


def batch(**changes: object) -> bytes:
    whole = {"labels": [0, 1], "data": np.zeros((2, 3072), dtype=np.uint8)} | changes
    return pickle.dumps(whole, 2)


DAMAGED = {
    "empty": b"",
    "text": b"<html>not found</html>",
    "cut short": batch()[:5000],
    "harmful": pickle.dumps({"labels": [0], "data": Harmful()}, 2),
    "no dict": pickle.dumps([1, 2], 2),
    "no labels": pickle.dumps({"data": np.zeros((1, 3072), dtype=np.uint8)}, 2),
    "label 10": batch(labels=[0, 10]),
    "label -1": batch(labels=[0, -1]),
    "one label": batch(labels=[0]),
    "labels of text": batch(labels=["a", "b"]),
    "floats": batch(data=np.zeros((2, 3072))),
    "other size": batch(data=np.zeros((2, 784), dtype=np.uint8)),
    "no pictures": batch(labels=[], data=np.zeros((0, 3072), dtype=np.uint8)),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_gets_one_line_and_nothing_in_it_is_executed(data, tmp_path, capsys):
    write_batches(tmp_path, None)
    (tmp_path / FOLDER / "data_batch_3").write_bytes(data)
    with pytest.raises(
        InputError, match=r"data_batch_3: it is damaged, or no part of CIFAR-10; move"
    ) as error:
        load_cifar10(tmp_path, verify=False)
    assert "\n" not in str(error.value)
    assert capsys.readouterr().out == ""


def test_missing_data_says_what_to_do(tmp_path):
    with pytest.raises(InputError, match=r"there is no .*data_batch_1; add --download .* --data synthetic$"):
        load_cifar10(tmp_path / "nowhere")
    write_batches(tmp_path, None)
    (tmp_path / FOLDER / "data_batch_5").unlink()
    with pytest.raises(InputError, match=r"there is no .*data_batch_5"):
        load_cifar10(tmp_path, verify=False)


@pytest.mark.parametrize("use", [load_cifar10, download_cifar10])
def test_a_folder_that_is_a_file_is_told(use, tmp_path):
    (tmp_path / "data").write_text("mine")
    with pytest.raises(InputError, match=r"in .*data: it is a file; give a folder as --data-dir"):
        use(tmp_path / "data")
    assert (tmp_path / "data").read_text() == "mine"


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_an_origin_that_is_no_object_is_told(text, tmp_path):
    write_batches(tmp_path, None)
    (tmp_path / FOLDER / "origin.json").write_text(text)
    with pytest.raises(InputError, match=r"origin.json: it must hold a JSON object"):
        load_cifar10(tmp_path, verify=False)


# Downloading ------------------------------------------------------------------------------------------------


@pytest.fixture
def archive(tmp_path, monkeypatch) -> bytes:
    """A small archive, whose checksum torchvision is made to know."""
    write_batches(tmp_path / "made", monkeypatch, 40)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as files:
        files.add(tmp_path / "made" / FOLDER, FOLDER)
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(packed.getvalue()).hexdigest())
    monkeypatch.setattr(datasets, "CHUNK", 4096)
    return packed.getvalue()


@pytest.fixture
def server(archive):
    """A server of the archive; its attributes say how it misbehaves."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Range")
            self.server.ranges.append(given)
            data = self.server.data
            start = int(given[6:-1]) if given and self.server.knows_ranges else 0
            if self.server.status != 200:
                self.send_error(self.server.status)
                return
            if start >= len(data):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.wfile.write(data[start:][: self.server.cut])
            self.close_connection = True

        def log_message(self, *about: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.data, server.knows_ranges, server.status, server.cut, server.ranges = archive, True, 200, None, []
    server.url = f"http://127.0.0.1:{server.server_port}/cifar-10-python.tar.gz"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_download_is_whole_and_leaves_nothing_else(server, tmp_path, capsys):
    folder = tmp_path / "new" / "data"
    download_cifar10(folder, server.url)
    assert load_cifar10(folder).verified
    assert [path.name for path in folder.iterdir()] == [FOLDER]
    assert capsys.readouterr() == ("", ""), "no progress bar in a pipe"
    download_cifar10(folder, server.url)
    assert len(server.ranges) == 1, "what is there is not fetched again"


def test_a_download_that_was_cut_off_goes_on_where_it_stopped(server, tmp_path):
    server.cut = 10_000
    with pytest.raises(InputError, match=r"was cut off \(10,000 / [\d,]+ B\); run the same command again"):
        download_cifar10(tmp_path, server.url)
    server.cut = None
    download_cifar10(tmp_path, server.url)
    assert server.ranges == [None, "bytes=10000-"]
    assert load_cifar10(tmp_path).verified


def test_a_server_that_knows_no_ranges_sends_it_all_again(server, tmp_path):
    server.cut, server.knows_ranges = 10_000, False
    with pytest.raises(InputError, match="cut off"):
        download_cifar10(tmp_path, server.url)
    server.cut = None
    download_cifar10(tmp_path, server.url)
    assert server.ranges[-1] == "bytes=10000-"
    assert load_cifar10(tmp_path).verified


def test_corrupt_bytes_are_removed_and_nothing_is_unpacked(server, archive, tmp_path):
    server.data = archive[:-500] + bytes(500)
    with pytest.raises(InputError, match="its checksum is not the one that torchvision knows, and it was"):
        download_cifar10(tmp_path / "data", server.url)
    assert list((tmp_path / "data").iterdir()) == []
    server.data = archive
    download_cifar10(tmp_path / "data", server.url)
    assert load_cifar10(tmp_path / "data").verified
    assert (tmp_path / "data" / FOLDER).stat().st_mode & 0o777 == 0o755, "others may read it"


def test_half_a_folder_is_told_not_taken_for_a_whole_one(server, tmp_path):
    (tmp_path / FOLDER).mkdir()
    with pytest.raises(InputError, match="it exists and lacks files of CIFAR-10; remove it first"):
        download_cifar10(tmp_path, server.url)
    assert server.ranges == []


def test_a_part_longer_than_the_archive_is_removed(server, archive, tmp_path):
    (tmp_path / "cifar-10-python.tar.gz.part").write_bytes(bytes(len(archive) + 1))
    with pytest.raises(InputError, match="its checksum is not the one"):
        download_cifar10(tmp_path, server.url)
    download_cifar10(tmp_path, server.url)
    assert load_cifar10(tmp_path).verified


def test_a_server_that_refuses_is_told(server, tmp_path):
    server.status = 404
    with pytest.raises(InputError, match=r"the server answers 404; give another address with --mirror"):
        download_cifar10(tmp_path, server.url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://127.0.0.1:1/cifar-10-python.tar.gz", "Connection refused"),
        ("http://nowhere.invalid/cifar-10-python.tar.gz", "; check the network"),
        ("http://[bad/cifar-10-python.tar.gz", "Invalid IPv6 URL"),
    ],
)
def test_no_network_is_told(url, problem, tmp_path):
    with pytest.raises(InputError, match=r"^cannot download http.*--data synthetic$") as error:
        download_cifar10(tmp_path, url)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("url", ["ftp://mirror/x", "file:///etc/hostname", "mirror"])
def test_an_address_that_is_none_is_told(url, tmp_path):
    with pytest.raises(InputError, match="a mirror's address starts with http"):
        download_cifar10(tmp_path, url)
    assert list(tmp_path.iterdir()) == []


class FullDisk:
    """A file on a disk that takes so many more bytes."""

    def __init__(self, file: io.BufferedWriter, room: int) -> None:
        self.file, self.room = file, room

    def __enter__(self) -> "FullDisk":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)


@pytest.mark.parametrize("what", [".part", "data_batch_2"])
def test_a_full_disk_keeps_what_has_arrived(what, server, archive, tmp_path, monkeypatch):
    """Full while downloading, and full while unpacking."""
    opened = Path.open

    def open_on_full_disk(path: Path, mode: str = "r", *more: object, **others: object) -> object:
        file = opened(path, mode, *more, **others)
        return FullDisk(file, 9_000) if path.name.endswith(what) and mode != "rb" else file

    folder = tmp_path / "data"
    with monkeypatch.context() as full:
        full.setattr(Path, "open", open_on_full_disk)
        with pytest.raises(InputError, match=r"the disk is full; make room .* what has arrived is kept$"):
            download_cifar10(folder, server.url)
    (part,) = folder.iterdir()
    assert part.stat().st_size == (8192 if what == ".part" else len(archive))
    download_cifar10(folder, server.url)
    assert server.ranges == [None, "bytes=8192-"] if what == ".part" else [None]
    assert load_cifar10(folder).verified


def test_ctrl_c_while_downloading_keeps_what_has_arrived(server, tmp_path, monkeypatch):
    chunks = datasets._chunks

    def interrupted(*arguments: object) -> object:
        yield next(chunks(*arguments))
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr(datasets, "_chunks", interrupted)
        with pytest.raises(KeyboardInterrupt):
            download_cifar10(tmp_path, server.url)
    assert (tmp_path / "cifar-10-python.tar.gz.part").stat().st_size == 4096
    download_cifar10(tmp_path, server.url)
    assert server.ranges == [None, "bytes=4096-"]
    assert load_cifar10(tmp_path).verified


def test_torchvision_is_loaded_for_real_data_alone():
    code = "import sys, repro_tutorial.datasets as d; d.synthetic_pictures(10); print('torchvision' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

"""Packed weights in a file: the bits of those in memory of one's own, shared, written whole or not at all, removed with their model."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from toy_gguf import write_toy_gguf

from pitstop.errors import WeightsError
from pitstop.models import decoder, load_model, packed
from pitstop.models.decoder import Decoder
from pitstop.models.weights.source import open_model
from pitstop.ops import dispatch
from pitstop.ops.linear import PackedLinear, packing

pytestmark = pytest.mark.skipif(dispatch.native is None, reason="the native kernels are missing")

KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, in which toys have files, too."""
    monkeypatch.setenv("PITSTOP_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(packed, "SMALLEST", 0)
    return tmp_path / "home"


def toy(folder: Path, kind: str = "Q8_0", **about) -> Path:
    return write_toy_gguf(folder / f"{kind}.gguf", kind, **about)


def load(path: Path, share: bool = True, activations: str = "exact") -> Decoder:
    dispatch.use("auto")
    return load_model(open_model(path), "cpu", 64, activations, share)


def files(home: Path) -> list[Path]:
    return sorted((home / "packed").iterdir())


def matrices(found: object) -> Iterator[PackedLinear]:
    """All that hang on a model."""
    if isinstance(found, PackedLinear):
        yield found
    elif isinstance(found, list | tuple):
        for one in found:
            yield from matrices(one)
    elif dataclasses.is_dataclass(found):
        yield from matrices([getattr(found, field.name) for field in dataclasses.fields(found)])
    elif isinstance(found, Decoder):
        yield from matrices(list(vars(found).values()))


def data(found: object) -> list[torch.Tensor]:
    return [part.data for matrix in matrices(found) for part in matrix.parts or (matrix,)]


def assert_same(one: Decoder, other: Decoder) -> None:
    pairs = list(zip(matrices(one), matrices(other), strict=True))
    assert len(pairs) > 8
    while pairs:
        mine, yours = pairs.pop()
        assert (mine.kind, mine.out_features, mine.in_features) == (yours.kind, yours.out_features, yours.in_features)
        assert mine.activations == yours.activations
        assert (mine.data.dtype, mine.data.shape) == (yours.data.dtype, yours.data.shape)
        assert torch.equal(mine.data.view(-1).view(torch.uint8), yours.data.view(-1).view(torch.uint8))
        pairs += zip(mine.parts, yours.parts, strict=True)


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_holds_what_would_be_packed(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    path = toy(tmp_path, kind, tied=False)
    own, writer = load(path, share=False), load(path)
    [file] = files(home)
    assert (own.shared, writer.shared) == (0, file.stat().st_size)
    monkeypatch.setattr(decoder, "pack_stored", None)  # nothing is packed again
    reader = load(path)
    for shared in (writer, reader):
        assert_same(shared, own)
        assert all(part.data_ptr() % 64 == 0 for part in data(shared))


def test_stacks_and_other_activations_come_from_the_same_file(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch):
    """Parts that lie apart, as those of several kinds do, and sizes that do not suit the next one's address."""
    path, real = toy(tmp_path), decoder.pack_stored

    def stack(parts, device, activations):
        apart = [real([part], device, activations) for part in parts]
        return packing._stacked([dataclasses.replace(part, data=part.data[: 100 + len(part.data) % 7]) for part in apart], activations)

    monkeypatch.setattr(decoder, "pack_stored", stack)
    own = load(path, share=False, activations="int8")
    assert any(matrix.parts for matrix in matrices(own))
    load(path)
    monkeypatch.setattr(decoder, "pack_stored", None)
    found = load(path, activations="int8")
    assert_same(found, own)
    assert all(part.data_ptr() % 64 == 0 for part in data(found))
    assert len(files(home)) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_what_is_written_into_a_mapping_stays_there(tmp_path: Path, home: Path):
    path = toy(tmp_path)
    one, other = load(path), load(path)
    [file] = files(home)
    before = file.read_bytes()
    assert sum(str(file) in line for line in Path("/proc/self/maps").read_text().splitlines()) == 2
    wrong, right = data(one)[0], data(other)[0]
    kept = right.clone()
    wrong.copy_(255 - wrong)
    assert torch.equal(right, kept)
    assert not torch.equal(wrong, kept)
    assert file.read_bytes() == before
    assert torch.equal(data(load(path))[0], kept)


HARMS = {
    "empty": lambda whole: b"",
    "cut": lambda whole: whole[:-1],
    "without its beginning": lambda whole: whole[1000:],
    "zeros": lambda whole: bytes(len(whole)),
    "the end alone": lambda whole: whole[-20:],
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_file_that_is_not_whole_is_written_again(tmp_path: Path, home: Path, harm: Callable[[bytes], bytes]):
    path = toy(tmp_path)
    own = load(path, share=False)
    load(path)
    [file] = files(home)
    whole = file.read_bytes()
    file.write_bytes(harm(whole))
    assert_same(load(path), own)
    assert files(home) == [file]
    assert file.read_bytes() == whole


def test_a_full_disk_and_a_folder_that_cannot_be_are_no_reason_not_to_serve(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    path = toy(tmp_path)
    own = load(path, share=False)
    monkeypatch.setattr(packed, "FREE", 1 << 62)
    full = load(path)
    assert full.shared == 0
    assert_same(full, own)
    assert "would be left" in caplog.text
    assert files(home) == []
    (home / "packed").rmdir()
    (home / "packed").write_text("no folder")
    assert load(path).shared == 0


def test_a_model_that_cannot_be_loaded_leaves_nothing(tmp_path: Path, home: Path):
    whole = open_model(toy(tmp_path))
    del whole._tensors["blk.1.ffn_down.weight"]
    with pytest.raises(WeightsError, match=r"blk\.1\.ffn_down"):
        load_model(whole, "cpu", 64, share=True)
    assert files(home) == []


def test_of_several_that_start_at_once_one_writes(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch):
    path, written, real = toy(tmp_path), [], packed._write
    monkeypatch.setattr(packed, "_write", lambda *args: (written.append(args), real(*args)))
    dispatch.use("auto")
    with ThreadPoolExecutor(4) as threads:
        models = list(threads.map(lambda _: load_model(open_model(path), "cpu", 64, share=True), range(4)))
    assert len(written) == 1
    assert len({model.shared for model in models}) == 1
    assert all(torch.equal(*pair) for pair in zip(data(models[0]), data(models[3]), strict=True))


def test_files_go_with_their_models(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch):
    """When another one is written: of a model that is gone, that has changed, and what a killed process left."""
    gone, changed, stays = (toy(tmp_path, kind) for kind in ("F32", "F16", "Q8_0"))
    for path in (gone, changed, stays):
        load(path)
    assert len(files(home)) == 3
    gone.unlink()
    os.utime(changed, (1, 1))
    (home / "packed" / "half.part").write_text("half")
    [kept] = [file for file in files(home) if (index := packed._read_index(file)) and index.source == str(stays)]
    load(toy(tmp_path, "Q4_1"))
    assert len(files(home)) == 2
    assert kept in files(home)
    load(changed)
    assert len(files(home)) == 3
    monkeypatch.setattr(packed, "LAYOUT", packed.LAYOUT + 1)  # an installation that packs otherwise
    assert kept in files(home)
    load(stays)
    [only] = files(home)
    assert only != kept


def test_matrices_that_the_file_lacks_are_packed(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch):
    path = toy(tmp_path)
    own = load(path, share=False)
    load(path)
    real = packed._read_index

    def without(file: Path):
        index = real(file)
        del index.matrices["blk.0.attn_output"]
        return index

    monkeypatch.setattr(packed, "_read_index", without)
    assert_same(load(path), own)


@pytest.mark.parametrize("why", ["not asked for", "small", "the reference's"])
def test_others_have_no_file(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, why: str):
    path = toy(tmp_path)
    if why == "small":
        monkeypatch.setattr(packed, "SMALLEST", 1 << 24)
    with dispatch.use("ref" if why == "the reference's" else "auto"):
        model = load_model(open_model(path), "cpu", 64, share=why != "not asked for")
    assert model.shared == 0
    assert not (home / "packed").exists()

"""Reading GGUF files gives what the gguf library gives, faster."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

from astrai_engine.errors import ModelLoadError
from astrai_engine.loading.gguf_file import GGUFFile


def write(path, tensors=(), metadata=None, endian=gguf.GGUFEndian.LITTLE):
    writer = gguf.GGUFWriter(path, "llama", False, endian)
    for key, (add, value) in (metadata or {}).items():
        getattr(writer, f"add_{add}")(key, value)
    for name, values, kind in tensors:
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFFile(path)


def read(file, name, size):
    values = np.full(size, np.nan, np.float32)
    file.read_into(name, values)
    return values


METADATA = {
    "llama.block_count": ("uint32", 3),
    "a.float": ("float32", 0.5),
    "a.flag": ("bool", True),
    "a.text": ("string", "gr\u00f6\u00dfe \U0001f642"),
    "a.texts": ("array", ["", "x", "\u0120t", "zwei W\u00f6rter"]),
    "a.ints": ("array", [1, -2, 3]),
    "a.floats": ("array", [0.5, -1.25]),
    "a.flags": ("array", [True, False]),
}


@pytest.mark.parametrize("endian", list(gguf.GGUFEndian))
def test_metadata_equals_the_library(tmp_path, endian):
    file = write(tmp_path / "m.gguf", metadata=METADATA, endian=endian)
    library = gguf.GGUFReader(tmp_path / "m.gguf")
    assert {key: file.get(key) for key in library.fields} == {
        key: field.contents() for key, field in library.fields.items()
    }
    assert {key: file.get(key) for key in METADATA} == {
        key: value for key, (_, value) in METADATA.items()
    }


def test_absent_metadata_has_a_default(tmp_path):
    file = write(tmp_path / "m.gguf", metadata=METADATA)
    assert (file.get("no.such"), file.get("no.such", 7)) == (None, 7)
    assert (file.architecture, file.setting("block_count"), file.setting("x", 1)) == ("llama", 3, 1)


@pytest.mark.parametrize("kind", list(gguf.quants._type_traits), ids=lambda kind: kind.name)
def test_every_type_the_library_dequantises(tmp_path, kind):
    """Read in pieces, a tensor has the values the library makes of the whole."""
    values_per_block, bytes_per_block = gguf.GGML_QUANT_SIZES[kind]
    blocks = 3 * 2**16 // values_per_block // 8
    # Bytes below 96 make no half-precision scale infinite or not a number.
    data = np.random.default_rng(0).integers(0, 96, (8, blocks * bytes_per_block), np.uint8)
    file = write(tmp_path / "m.gguf", [("x", data, kind)])
    whole = dequantize(file.tensors["x"].data, kind).ravel()
    np.testing.assert_array_equal(read(file, "x", whole.size), whole)
    assert file.shape("x") == (8, whole.size // 8)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_plain_types(tmp_path, dtype):
    values = np.random.default_rng(0).normal(size=(3, 40000)).astype(dtype)
    file = write(tmp_path / "m.gguf", [("x", values, None)])
    np.testing.assert_array_equal(read(file, "x", values.size), values.astype(np.float32).ravel())


def test_a_type_the_library_cannot_dequantise_is_named(tmp_path):
    file = write(tmp_path / "m.gguf", [("x", np.zeros((2, 292), np.uint8), Type.Q8_K)])
    with pytest.raises(ModelLoadError, match=r"Tensor x in .*m\.gguf is of type Q8_K"):
        read(file, "x", 512)


@pytest.mark.parametrize("content", [b"", b"not a gguf file at all", b"GGUF\x03\x00\x00\x00"])
def test_what_is_no_gguf_file_is_refused(tmp_path, content):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=r"m\.gguf is not a complete GGUF file"):
        GGUFFile(path)


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    write(path, [("x", np.ones((64, 64), np.float32), None)], METADATA)
    whole = path.read_bytes()
    for size in range(0, len(whole) - 1, 97):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelLoadError):
            GGUFFile(path)

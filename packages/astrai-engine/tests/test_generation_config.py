"""The sampling parameters that models bring."""

import gguf
import pytest

from astrai_engine.errors import ModelLoadError
from astrai_engine.loading.generation_config import (
    gguf_generation_config,
    read_generation_config,
    sampling_defaults,
)
from astrai_engine.loading.gguf_file import GGUFFile


def test_what_generation_config_names_is_taken_over():
    config = {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.0,
        "repetition_penalty": 1.05,
        "do_sample": True,
        "max_new_tokens": 2048,
        "eos_token_id": [1, 2],
        "typical_p": 0.5,
    }
    taken = {name: config[name] for name in list(config)[:5]}
    assert sampling_defaults(config) == taken
    assert sampling_defaults({"top_k": None, "eos_token_id": 2}) == {}


@pytest.mark.parametrize(
    "value", [{"temperature": -1}, {"top_p": 1.5}, {"top_k": "many"}, {"repetition_penalty": 0}]
)
def test_what_no_request_could_have_is_left_out_with_a_warning(value, caplog):
    assert sampling_defaults(value | {"min_p": 0.1}) == {"min_p": 0.1}
    assert next(iter(value)) in caplog.text


def test_no_file_is_an_empty_one(tmp_path):
    assert read_generation_config(tmp_path) == {}
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(ModelLoadError, match="does not hold a JSON object"):
        read_generation_config(tmp_path)


def test_gguf_files_have_names_of_their_own(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_float32("general.sampling.temp", 0.5)
    writer.add_int32("general.sampling.top_k", 40)
    writer.add_float32("general.sampling.penalty_repeat", 1.25)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = gguf_generation_config(GGUFFile(tmp_path / "m.gguf"))
    assert sampling_defaults(config) == {
        "temperature": 0.5,
        "top_k": 40,
        "repetition_penalty": 1.25,
    }

"""How fast a checkpoint loads, beside reading the same file, and how much memory that takes.

Writes a bfloat16 checkpoint of a 1B-class Llama into a temporary folder, with the file dropped from
the page cache before each run unless ``--warm``. The memory that a run needs is used once before
it: the host of a virtual machine may have taken back what is free, and gives it slowly. Run it
alone on the machine::

    python packages/astrai-engine/benchmarks/loading.py
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import tokenizers
from tokenizers import decoders, models

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCAB = 2048, 8192, 16, 32, 8, 32000
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
NEEDED_SHARE_OF_READING = 0.7
MOST_ANONYMOUS_MEMORY = 1.1
PIECE = 1 << 24
USE_MEMORY = """
import mmap, sys
memory = mmap.mmap(-1, int(sys.argv[1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_HUGEPAGE)
for at in range(0, len(memory), 1 << 21):
    memory[at] = 1
"""


def shapes() -> dict[str, list[int]]:
    keys = HIDDEN * KV_HEADS // HEADS
    per_layer = {
        "input_layernorm": [HIDDEN],
        "self_attn.q_proj": [HIDDEN, HIDDEN],
        "self_attn.k_proj": [keys, HIDDEN],
        "self_attn.v_proj": [keys, HIDDEN],
        "self_attn.o_proj": [HIDDEN, HIDDEN],
        "post_attention_layernorm": [HIDDEN],
        "mlp.gate_proj": [INNER, HIDDEN],
        "mlp.up_proj": [INNER, HIDDEN],
        "mlp.down_proj": [HIDDEN, INNER],
    }
    layers = {
        f"model.layers.{i}.{name}.weight": shape
        for i in range(LAYERS)
        for name, shape in per_layer.items()
    }
    return {"model.embed_tokens.weight": [VOCAB, HIDDEN], **layers, "model.norm.weight": [HIDDEN]}


def write_checkpoint(folder: Path) -> Path:
    header, end = {}, 0
    for name, shape in shapes().items():
        start, end = end, end + 2 * int(1 if len(shape) == 1 else shape[1]) * shape[0]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    path = folder / "model.safetensors"
    noise = os.urandom(PIECE)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for start in range(0, end, PIECE):
            file.write(noise[: min(PIECE, end - start)])
        os.fsync(file.fileno())
    (folder / "config.json").write_text(json.dumps(CONFIG))
    backend = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    backend.decoder = decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    return path


def forget(path: Path) -> None:
    """Drop a file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def have_memory(size: int) -> None:
    """Use so much memory in a process that then ends: for the page cache, and for the tensors."""
    subprocess.run([sys.executable, "-c", USE_MEMORY, str(size)], check=True)


def read_seconds(path: Path) -> float:
    have_memory(path.stat().st_size)
    start = time.perf_counter()
    subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def load_once(folder: Path) -> None:
    """Print the seconds a load takes and the anonymous memory it adds; a process of its own."""
    import torch  # noqa: PLC0415 (the parent needs none)

    from astrai_engine.loading import load_model, resolve_source  # noqa: PLC0415

    source = resolve_source(str(folder))
    before, peak, done = anonymous_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, anonymous_bytes())

    have_memory(2 * sum(file.stat().st_size for file in folder.glob("*.safetensors")))
    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    load_model(source, device=torch.device("cpu"), dtype=torch.bfloat16)
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    print(json.dumps({"seconds": seconds, "anonymous": peak - before}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--warm", action="store_true", help="leave the file in the page cache")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        load_once(options.load)
        return
    with tempfile.TemporaryDirectory() as name:
        path = write_checkpoint(Path(name))
        size = path.stat().st_size
        loads, reads = [], []
        for _ in range(options.runs):
            for is_load in (False, True):
                if not options.warm:
                    forget(path)
                if not is_load:
                    reads.append(read_seconds(path))
                    continue
                command = [sys.executable, __file__, "--load", name]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                loads.append(json.loads(done.stdout))
    seconds, reading = min(load["seconds"] for load in loads), min(reads)
    memory = max(load["anonymous"] for load in loads) / size
    print(f"{size / 1e9:.2f} GB, {'warm' if options.warm else 'dropped from the page cache'}")
    print(f"read with cat  {size / reading / 1e9:.2f} GB/s")
    print(f"loaded         {size / seconds / 1e9:.2f} GB/s, {reading / seconds:.0%} of that")
    print(f"anonymous memory {memory:.2f} times the file")
    if reading / seconds < NEEDED_SHARE_OF_READING or memory > MOST_ANONYMOUS_MEMORY:
        raise SystemExit("too slow, or too much memory")


if __name__ == "__main__":
    main()

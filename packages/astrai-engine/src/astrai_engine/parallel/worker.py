"""A rank other than the first: loads its share, then runs each step that it is told of.

It is a process that rank 0 starts. It has no scheduler, no tokenizer and no cache bookkeeping: all
it keeps are its share of the weights and of the K/V. It ends when its standard input does, however
rank 0 ended.
"""

import logging
import os
import pickle
import select
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from typing import IO

import torch

from astrai_engine.errors import AstraiError
from astrai_engine.loading.loader import load_part
from astrai_engine.models import DecoderModel
from astrai_engine.parallel.frames import read_frame, write_frame
from astrai_engine.parallel.orders import Loaded, LoadOrder, Refused, ServeOrder
from astrai_engine.parallel.ranks import ProcessRanks
from astrai_engine.parallel.step import decode
from astrai_engine.placement import use_threads
from astrai_engine.sizing import free_memory
from astrai_kernels import (
    ATTN_BACKEND,
    AttentionBackend,
    AttentionShape,
    BackendChoice,
    select_backend,
)
from astrai_kvcache import KVStorage


def main() -> None:
    """Serve rank 0 through standard input and output, until it ends."""
    with suppress(EOFError):
        _serve()


def _serve() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all of a group; rank 0 decides
        signal.signal(number, signal.SIG_IGN)
    logging.disable(logging.WARNING)  # rank 0 says the same
    inbox, outbox = sys.stdin.buffer, _own_output()
    threading.Thread(target=_end_with, args=(inbox,), daemon=True).start()
    order: LoadOrder = pickle.loads(read_frame(inbox))
    group = ProcessRanks(order.rank, order.size)
    try:
        model = _load(order, group)
    except AstraiError as error:
        write_frame(outbox, pickle.dumps(Refused(reason=str(error))))
        return
    device = order.form.device
    write_frame(outbox, pickle.dumps(Loaded(free_bytes=free_memory(device))))
    serve_order: ServeOrder = pickle.loads(read_frame(inbox))
    group.connect(pickle.loads(read_frame(inbox)), device)
    worker = Worker(model, device, serve_order)
    while True:
        worker.run(read_frame(inbox))


class Worker:
    """Runs a share of a model.

    Args:
        model: the share.
        device: where it is.
        order: the engine around it.
    """

    def __init__(self, model: DecoderModel, device: torch.device, order: ServeOrder) -> None:
        config = model.config
        model.fit_context(order.max_seq_len)
        self._model = model
        self._device = device
        self._page_size = order.page_size
        self._storage = KVStorage(
            order.n_tokens,
            config.num_layers,
            config.num_kv_heads,
            config.head_dim,
            device,
            order.kv_dtype,
        )
        backend = select_backend(device).backend
        backend.warmup(
            AttentionShape(
                device=device,
                dtype=model.dtype,
                kv_dtype=order.kv_dtype,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                max_batch_size=order.max_batch_size,
            )
        )
        self._backends: dict[ATTN_BACKEND, AttentionBackend] = {backend.name: backend}

    @torch.inference_mode()
    def run(self, content: bytearray) -> None:
        """Run a step, given as `astrai_engine.parallel.step.encode` writes it."""
        step = decode(content, self._storage, self._page_size)
        self._model.forward(
            step.input_ids,
            step.position_ids,
            step.cache,
            self._backend(step.backend),
            logit_rows=step.logit_rows,
        )

    def _backend(self, name: ATTN_BACKEND) -> AttentionBackend:
        if name not in self._backends:
            choice = BackendChoice(name)
            self._backends[name] = select_backend(self._device, choice=choice).backend
        return self._backends[name]


def _own_output() -> IO[bytes]:
    """Standard output for frames alone: what else is printed goes to standard error."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return output


def _load(order: LoadOrder, group: ProcessRanks) -> DecoderModel:
    device = order.form.device
    torch.set_num_threads(order.num_torch_threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if order.num_threads is not None:
        use_threads(order.num_threads, device)
    return load_part(order.path, replace(order.form, group=group))


def _end_with(inbox: IO[bytes]) -> None:
    """End the process when rank 0 is gone or wants it so, also in the middle of a step."""
    poll = select.poll()
    poll.register(inbox, 0)  # wakes up only when nobody can write any more
    poll.poll()
    os._exit(0)

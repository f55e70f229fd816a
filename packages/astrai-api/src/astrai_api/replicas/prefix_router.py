"""Which replica gets a request: the one that has computed most of its prompt, unless it is busy.

What each replica holds is not asked but remembered: where prompts that began alike were sent. The
memory is bounded, and being wrong about it costs a miss in one prefix cache, never an answer.
"""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence


class PrefixRouter:
    """Sends prompts that begin alike to the same replica, within a bound on its load.

    Args:
        capacity: blocks that are remembered, the least recently used are forgotten first.
        load_factor: how many times the mean load a replica may have and still get requests for
            what it holds.
        spare_load: requests that a replica may have anyway: so few run in one batch.
        least_match: the part of a prompt that has to be held for it to count. Two prompts that
            share only their first words are strangers.
    """

    def __init__(
        self,
        *,
        capacity: int = 2**16,
        load_factor: float = 1.5,
        spare_load: int = 4,
        least_match: float = 0.1,
    ) -> None:
        self._capacity = capacity
        self._load_factor = load_factor
        self._spare_load = spare_load
        self._least_match = least_match
        self._holders: OrderedDict[bytes, set[str]] = OrderedDict()

    def __len__(self) -> int:
        """Blocks that are remembered."""
        return len(self._holders)

    def rank(self, blocks: Sequence[bytes], loads: Mapping[str, int]) -> list[str]:
        """All replicas, the best one for a prompt first.

        The first is never over :meth:`bound`; with nothing known of the prompt it is the least
        loaded one. Equals are told apart by the prompt, so that new prompts spread.

        Args:
            blocks: of the prompt, see :mod:`astrai_api.replicas.prompt_blocks`.
            loads: requests of each replica, by its name.
        """
        bound = self.bound(loads)
        held = self._num_held(blocks, loads)
        seed = blocks[-1] if blocks else b""

        def preference(name: str) -> tuple[bool, int, int, bytes]:
            load = loads[name]
            return load >= bound, -held[name], load, _lot(seed, name)

        return sorted(loads, key=preference)

    def bound(self, loads: Mapping[str, int]) -> int:
        """From this load on a replica gets no more requests for the prompts that it holds."""
        mean = (sum(loads.values()) + 1) / max(1, len(loads))
        return max(self._spare_load, math.ceil(self._load_factor * mean))

    def record(self, blocks: Sequence[bytes], name: str) -> None:
        """Note that a replica gets a prompt, and holds it from now on."""
        for block in reversed(blocks):  # a beginning is worth more than what follows it
            self._holders.setdefault(block, set()).add(name)
            self._holders.move_to_end(block)
        while len(self._holders) > self._capacity:
            self._holders.popitem(last=False)

    def keep_only(self, names: Collection[str]) -> None:
        """Forget what replicas hold that are gone."""
        for block, holders in list(self._holders.items()):
            holders.intersection_update(names)
            if not holders:
                del self._holders[block]

    def _num_held(self, blocks: Sequence[bytes], loads: Mapping[str, int]) -> dict[str, int]:
        """How many blocks of the prompt each replica holds; none if that is too small a part."""
        held = dict.fromkeys(loads, 0)
        for count, block in enumerate(blocks, 1):
            holders = self._holders.get(block, set())
            if holders.isdisjoint(held):
                break
            if count >= self._least_match * len(blocks):
                held.update(dict.fromkeys(holders & held.keys(), count))
        return held


def _lot(seed: bytes, name: str) -> bytes:
    return hashlib.blake2b(seed + name.encode(), digest_size=8).digest()

"""Rows of a table, such as the embedding that a model's first layer reads."""

from typing import Protocol

from torch import Tensor


class Table(Protocol):
    """A weight whose rows can be read one by one."""

    @property
    def in_features(self) -> int:
        """Elements of a row."""

    @property
    def out_features(self) -> int:
        """Number of rows."""

    def lookup(self, ids: Tensor) -> Tensor:
        """The rows ``[*ids.shape, in_features]`` that ``ids`` name."""


def embedding(ids: Tensor, table: Table) -> Tensor:
    """Look up rows.

    Args:
        ids: integers of any shape, each below ``table.out_features``.
        table: a weight in any format that can be read by rows.

    Returns:
        ``[*ids.shape, in_features]``, never the table's own memory.

    Raises:
        IndexError: an id names no row.
    """
    return table.lookup(ids)

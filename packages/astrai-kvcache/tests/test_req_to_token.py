import pytest
import torch

from astrai_kvcache import DoubleFreeError, ReqToTokenPool

CPU = torch.device("cpu")


@pytest.fixture(params=["in host memory", "on a device"])
def any_table(request):
    """The test runs with a table of each kind."""
    if request.param == "on a device":
        request.getfixturevalue("far_tables")


def test_the_table_is_int32_and_starts_at_slot_zero():
    table = ReqToTokenPool(2, 5, CPU)
    assert table.req_to_token.dtype == torch.int32
    assert table.req_to_token.tolist() == [[0] * 5] * 2
    assert (table.size, table.max_context_len) == (2, 5)


def test_rows_are_handed_out_once():
    table = ReqToTokenPool(3, 1, CPU)
    assert table.alloc(2) == [0, 1]
    assert table.alloc(2) is None
    assert list(table.free_slots) == [2]
    table.free([0])
    assert table.alloc(2) == [2, 0]
    assert table.alloc(0) == []


@pytest.mark.parametrize("rows", [[0, 0], [0, 1], [2]])
def test_freeing_a_free_row_raises_and_frees_nothing(rows):
    """B026: one call that lists a row twice, and a row that is free already."""
    table = ReqToTokenPool(3, 1, CPU)
    table.alloc(1)
    with pytest.raises(DoubleFreeError, match="free each row once"):
        table.free(rows)
    assert list(table.free_slots) == [1, 2]


def test_written_values_are_there_at_once():
    table = ReqToTokenPool(2, 4, CPU)
    table.write((1, slice(1, 3)), torch.tensor([7, 8]))
    assert table.req_to_token.tolist() == [[0, 0, 0, 0], [0, 7, 8, 0]]


def test_a_table_in_host_memory_is_written_at_once():
    table = ReqToTokenPool(2, 6, CPU, page_size=2)
    table.write_pages(1, 1, [5, 3])
    assert table._table.tolist() == [[0] * 6, [0, 0, 10, 11, 6, 7]]
    assert table.pending_page(1, 2) is None


def test_page_writes_wait_until_the_table_is_read(far_tables):
    table = ReqToTokenPool(2, 6, CPU, page_size=2)
    table.write_pages(1, 1, [5, 3])
    assert table._table.tolist() == [[0] * 6] * 2
    assert table.pending_page(1, 2) == 3
    assert table.req_to_token.tolist() == [[0] * 6, [0, 0, 10, 11, 6, 7]]
    assert table.pending_page(1, 2) is None


@pytest.mark.usefixtures("any_table")
def test_the_last_of_two_writes_wins():
    table = ReqToTokenPool(1, 4, CPU, page_size=2)
    table.write_pages(0, 0, [1, 2])
    table.write_pages(0, 1, [3])
    assert table.req_to_token.tolist() == [[2, 3, 6, 7]]


@pytest.mark.usefixtures("any_table")
def test_direct_writes_come_after_writes_of_pages():
    table = ReqToTokenPool(1, 2, CPU)
    table.write_pages(0, 0, [1, 2])
    table.write((0, 1), 9)
    assert table.req_to_token.tolist() == [[1, 9]]


@pytest.mark.usefixtures("any_table")
def test_a_row_is_as_wide_as_its_pages():
    table = ReqToTokenPool(2, 5, CPU, page_size=4)
    table.write_pages(0, 1, [2])
    assert table.req_to_token.tolist() == [[0, 0, 0, 0, 8, 9, 10, 11], [0] * 8]
    assert table.req_to_token.is_contiguous()


def test_all_pending_writes_are_one_device_write(far_tables, monkeypatch):
    table = ReqToTokenPool(4, 64, CPU, page_size=4)
    sent = []
    monkeypatch.setattr(
        "astrai_kvcache.req_to_token.to_device",
        lambda numbers, device: sent.append(numbers) or torch.tensor(numbers, dtype=torch.int32),
    )
    for row in range(4):
        table.write_pages(row, 0, range(row * 4, row * 4 + 4))
    table.flush()
    table.flush()
    assert len(sent) == 1
    assert table.req_to_token[3, :16].tolist() == list(range(48, 64))


@pytest.mark.usefixtures("any_table")
def test_a_table_made_in_inference_mode_can_be_written_outside():
    with torch.inference_mode():
        table = ReqToTokenPool(1, 2, CPU)
    table.write_pages(0, 0, [1, 2])
    with torch.inference_mode():
        assert table.req_to_token.tolist() == [[1, 2]]
    table.write((0, 0), 5)
    assert table.req_to_token.tolist() == [[5, 2]]

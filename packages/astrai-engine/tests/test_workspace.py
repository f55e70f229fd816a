import torch

from astrai_engine.workspace import InferenceWorkspace

CPU = torch.device("cpu")


def test_tokens_land_in_buffers_that_never_move():
    workspace = InferenceWorkspace(4, 16, 32, CPU)
    address = workspace.input_ids.data_ptr(), workspace.position_ids.data_ptr()
    for ids, positions in (([5, 6, 7], [0, 1, 2]), ([8], [3])):
        input_ids, position_ids = workspace.load_tokens(ids, positions)
        assert (input_ids.tolist(), position_ids.tolist()) == (ids, positions)
        assert (input_ids.data_ptr(), position_ids.data_ptr()) == address


def test_the_decode_mask_shows_each_row_its_own_length():
    workspace = InferenceWorkspace(4, 16, 6, CPU)
    workspace.seq_lens[:3] = torch.tensor([0, 2, 6])
    mask = workspace.decode_mask(3)
    assert mask.long().tolist() == [[0] * 6, [1, 1, 0, 0, 0, 0], [1] * 6]
    workspace.seq_lens[0] = 1
    again = workspace.decode_mask(1)
    assert again.data_ptr() == mask.data_ptr()
    assert again.long().tolist() == [[1, 0, 0, 0, 0, 0]]

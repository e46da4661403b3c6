"""AllenNLP's layers do what its own tests check."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.compat.allennlp import (
    ElmoLstm,
    LstmCellWithProjection,
    ScalarMix,
    _ElmoCharacterEncoder,
    add_sentence_boundary_token_ids,
    batch_to_ids,
    remove_sentence_boundaries,
)
from elmokit.text.characters import encode_tokens
from tests.helpers.allennlp_files import CONFIG, write_files

LENGTHS = [5, 4, 2, 1]


def mask_of(lengths: list[int], n_steps: int) -> torch.Tensor:
    return torch.arange(n_steps) < torch.tensor(lengths)[:, None]


def random_lstm(**switches: bool) -> ElmoLstm:
    torch.manual_seed(0)
    lstm = ElmoLstm(3, 5, 7, 2, memory_cell_clip_value=2, state_projection_clip_value=1, **switches)
    for parameter in lstm.parameters():
        torch.nn.init.normal_(parameter)
    return lstm


def test_boundaries_are_added_to_rows_of_ids_and_removed_again() -> None:
    ids = torch.tensor([[4, 5, 6], [7, 0, 0], [0, 0, 0]])
    bounded, mask = add_sentence_boundary_token_ids(ids, ids > 0, 1, 2)
    assert bounded.tolist() == [[1, 4, 5, 6, 2], [1, 7, 2, 0, 0], [1, 2, 0, 0, 0]]
    assert mask.tolist() == mask_of([5, 3, 2], 5).tolist()
    vectors, inside = remove_sentence_boundaries(bounded[..., None], mask)
    assert vectors[..., 0].tolist() == ids.tolist()
    assert inside.tolist() == (ids > 0).tolist()


def test_boundaries_are_added_to_rows_of_vectors_without_positive_numbers() -> None:
    vectors = -torch.rand(2, 3, 4) * mask_of([3, 1], 3)[..., None]
    begin, end = torch.full((4,), -1.0), torch.full((4,), -2.0)
    bounded, mask = add_sentence_boundary_token_ids(vectors, mask_of([3, 1], 3).long(), begin, end)
    assert mask.tolist() == mask_of([5, 3], 5).tolist()
    assert bounded[1, :, 0].tolist() == [-1.0, vectors[1, 0, 0].item(), -2.0, 0.0, 0.0]


def test_scalar_mix_weighs_by_softmax_and_gamma() -> None:
    mix = ScalarMix(3)
    tensors = [torch.randn(3, 4, 5) for _ in range(3)]
    with torch.no_grad():
        for parameter, value in zip(mix.scalar_parameters, (0.1, 0.2, 0.3), strict=True):
            parameter.fill_(value)
        mix.gamma.fill_(0.5)
    weights = np.exp([0.1, 0.2, 0.3]) / np.exp([0.1, 0.2, 0.3]).sum()
    expected = 0.5 * sum(weight * tensor.numpy() for weight, tensor in zip(weights, tensors, strict=True))
    np.testing.assert_allclose(mix(tensors).detach().numpy(), expected, atol=1e-6)


def test_scalar_mix_can_be_frozen_at_given_weights() -> None:
    mix = ScalarMix(3, initial_scalar_parameters=[1.0, 2.0, 3.0], trainable=False)
    assert [parameter.item() for parameter in mix.scalar_parameters] == [1.0, 2.0, 3.0]
    assert not any(parameter.requires_grad for parameter in mix.parameters())


def test_scalar_mix_normalizes_over_all_real_positions_together() -> None:
    tensors = [torch.randn(3, 4, 5) for _ in range(2)]
    mask = mask_of([4, 2, 1], 4)
    expected = np.zeros((3, 4, 5))
    for tensor in tensors:
        real = tensor.numpy()[mask.numpy()]
        expected += 0.5 * (tensor.numpy() - real.mean()) / real.std()
    mixed = ScalarMix(2, do_layer_norm=True)(tensors, mask)
    np.testing.assert_allclose(mixed.detach().numpy(), expected, atol=1e-5)
    halves = ScalarMix(2, do_layer_norm=True).bfloat16()([tensor.bfloat16() for tensor in tensors], mask)
    np.testing.assert_allclose(halves.detach().float().numpy(), expected, atol=0.05)


@pytest.mark.parametrize("go_forward", [True, False])
def test_cell_is_zero_past_each_length_and_gives_the_state_after_the_last_step(go_forward: bool) -> None:
    torch.manual_seed(1)
    cell = LstmCellWithProjection(3, 5, 7, go_forward, memory_cell_clip_value=2, state_projection_clip_value=1)
    inputs = torch.rand(4, 5, 3)
    initial = torch.ones(1, 4, 5), torch.ones(1, 4, 7)
    outputs, (hidden, memory) = cell(inputs, LENGTHS, initial)
    for row, length in enumerate(LENGTHS):
        assert not outputs[row, length:].any()
        alone, (alone_hidden, alone_memory) = cell(
            inputs[row : row + 1, :length], [length], (initial[0][:, :1], initial[1][:, :1])
        )
        torch.testing.assert_close(outputs[row, :length], alone[0])
        torch.testing.assert_close(hidden[:, row], alone_hidden[:, 0])
        torch.testing.assert_close(memory[:, row], alone_memory[:, 0])
        torch.testing.assert_close(hidden[0, row], outputs[row, length - 1 if go_forward else 0])
    assert outputs.abs().max() < 1
    assert hidden.shape == (1, 4, 5)
    assert memory.shape == (1, 4, 7)
    assert memory.abs().max() < 2


def test_new_cell_is_orthogonal_with_an_open_forget_gate() -> None:
    cell = LstmCellWithProjection(7, 7, 7)
    block = cell.input_linearity.weight[7:14]
    torch.testing.assert_close(block @ block.t(), torch.eye(7), atol=1e-5, rtol=0)
    assert cell.state_linearity.bias.tolist() == [0.0] * 7 + [1.0] * 7 + [0.0] * 14


def test_cell_drops_the_same_units_at_every_step_in_training() -> None:
    torch.manual_seed(1)
    cell = LstmCellWithProjection(3, 50, 60, recurrent_dropout_probability=0.5)
    dropped = cell(torch.rand(1, 4, 3), [4])[0][0] == 0
    assert dropped[0].any()
    assert (dropped == dropped[0]).all()
    assert not (cell.eval()(torch.rand(1, 4, 3), [4])[0] == 0).any()


def test_lstm_layers_are_zero_past_each_length_and_keep_states_of_both_directions() -> None:
    lstm = random_lstm()
    output = lstm(torch.rand(4, 5, 3), mask_of(LENGTHS, 5))
    assert output.shape == (2, 4, 5, 10)
    for row, length in enumerate(LENGTHS):
        assert not output[:, row, length:].any()
        assert output[:, row, :length].all()
    assert lstm._states[0].shape == (2, 4, 10)
    assert lstm._states[1].shape == (2, 4, 14)


def test_states_grow_and_rows_that_are_not_read_keep_theirs() -> None:
    lstm = random_lstm()
    lstm(torch.rand(2, 3, 3), mask_of([3, 2], 3))
    two = lstm._states[1].clone()
    lstm(torch.rand(1, 3, 3), mask_of([3], 3))
    assert not torch.equal(lstm._states[1][:, 0], two[:, 0])
    assert torch.equal(lstm._states[1][:, 1], two[:, 1])
    one = lstm._states[1].clone()
    lstm(torch.rand(4, 3, 3), mask_of([0, 3, 0, 1], 3))
    assert lstm._states[1].shape == (2, 4, 14)
    assert torch.equal(lstm._states[1][:, 0], one[:, 0])
    assert not lstm._states[1][:, 2].any()
    assert lstm._states[1][:, 3].all()
    before = lstm._states[1].clone()
    assert not lstm(torch.rand(2, 3, 3), mask_of([0, 0], 3)).any()
    assert torch.equal(lstm._states[1], before)


def test_a_batch_continues_where_the_previous_one_ended() -> None:
    inputs = torch.rand(2, 6, 3)
    every = mask_of([3, 3], 3)
    lstm = random_lstm()
    parts = [lstm(inputs[:, :3], every), lstm(inputs[:, 3:], every)]
    whole = random_lstm()(inputs, mask_of([6, 6], 6))
    torch.testing.assert_close(torch.cat(parts, dim=2)[..., :5], whole[..., :5])  # the forward half


def test_states_are_reset_wholly_or_by_row() -> None:
    lstm = random_lstm()
    lstm(torch.rand(3, 2, 3), mask_of([2, 2, 2], 2))
    lstm._states = lstm._states[0].transpose(0, 1).contiguous().transpose(0, 1), lstm._states[1]  # not contiguous
    before = lstm._states[0].clone()
    lstm.reset_states(torch.tensor([True, False, True]))
    assert not lstm._states[0][:, [0, 2]].any()
    assert torch.equal(lstm._states[0][:, 1], before[:, 1])
    lstm.reset_states()
    assert lstm._states is None


def test_a_row_that_became_nan_is_not_carried() -> None:
    lstm, clean = random_lstm(), random_lstm()
    inputs = torch.rand(2, 3, 3)
    poisoned = inputs.clone()
    poisoned[0] = float("nan")
    lstm(poisoned, mask_of([3, 3], 3))
    clean(inputs, mask_of([3, 3], 3))
    after, expected = (each(inputs, mask_of([3, 3], 3)) for each in (lstm, clean))
    assert after.isfinite().all()
    torch.testing.assert_close(after[:, 1], expected[:, 1])


def test_state_follows_to_another_dtype_and_out_of_inference_mode() -> None:
    lstm = random_lstm()
    inputs, mask = torch.rand(2, 3, 3), mask_of([3, 2], 3)
    with torch.inference_mode():
        lstm(inputs, mask)
    lstm(inputs, mask).sum().backward()
    assert lstm.double()(inputs.double(), mask).dtype == torch.float64
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lstm.float()(inputs, mask)
    assert lstm(inputs, mask).dtype == torch.float32


def test_lstm_takes_the_weights_of_a_published_model(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    lstm = ElmoLstm(8, 8, 14, 2, memory_cell_clip_value=2, state_projection_clip_value=3)
    lstm.load_weights(files.weights)
    assert not any(parameter.requires_grad for parameter in lstm.parameters())
    inputs, mask = torch.rand(2, 3, 8), mask_of([3, 2], 3)
    expected = files.bilm.contextualize(inputs, mask, files.bilm.zero_state(2)).layers
    torch.testing.assert_close(lstm(inputs, mask), expected[1:], atol=1e-6, rtol=1e-5)


def test_character_encoder_gives_the_vectors_of_the_char_cnn_with_boundaries(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    encoder = _ElmoCharacterEncoder(files.options, files.weights)
    sentence = ["First", "•", "x" * 70, "First"]
    encoded = encoder(batch_to_ids([sentence, ["a"]]))
    ids = torch.from_numpy(encode_tokens(["<S>", *sentence, "</S>"], 50))
    torch.testing.assert_close(encoded["token_embedding"][0], files.bilm.token_layer(ids), atol=1e-5, rtol=1e-5)
    assert encoded["mask"].sum(dim=1).tolist() == [6, 3]
    assert encoder.get_output_dim() == CONFIG.projection_dim


def test_a_boundary_token_has_the_vector_of_the_boundary_that_is_put_in(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    vectors = _ElmoCharacterEncoder(files.options, files.weights)(batch_to_ids([["<S>"], ["</S>"]]))["token_embedding"]
    torch.testing.assert_close(vectors[0, 1], vectors[0, 0])
    torch.testing.assert_close(vectors[1, 1], vectors[1, 2])

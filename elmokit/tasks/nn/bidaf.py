"""The layers of BiDAF above the embeddings (Seo et al. 2017), as AllenNLP built them.

Highway layers, a bidirectional LSTM over question and passage, attention in both directions, two modeling layers, and a
score of each passage word as the first and as the last of the answer. The end is scored from a further LSTM that knows
the expected start. BiDAF++ (``qa.py``) is the newer model.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elmokit.network.char_cnn import Highway
from elmokit.tasks.nn.attention import masked_softmax
from elmokit.tasks.nn.bi_attention import BiAttention
from elmokit.tasks.nn.recurrent import run_packed


class BiDafLayers(nn.Module):
    """From the embeddings of question and passage to two scores of each passage word.

    Args:
        input_dim: Size of the embeddings.
        hidden: Units per direction of every LSTM.
        highway_layers: Number of highway layers.
        modeling_layers: Number of layers of the LSTM after the attention.
        dropout: Dropout on the output of every LSTM and on the input of the two scores.
    """

    def __init__(self, input_dim: int, hidden: int, highway_layers: int, modeling_layers: int, dropout: float) -> None:
        super().__init__()
        both = 2 * hidden
        self.highways = nn.ModuleList(Highway(input_dim) for _ in range(highway_layers))
        for highway in self.highways:
            assert isinstance(highway, Highway)
            highway.reset_parameters()
        self.phrases = nn.LSTM(input_dim, hidden, batch_first=True, bidirectional=True)
        self.attention = BiAttention(both)
        merged_dim = self.attention.output_dim
        self.modeling = nn.LSTM(
            merged_dim,
            hidden,
            modeling_layers,
            batch_first=True,
            bidirectional=True,
            dropout=dropout if modeling_layers > 1 else 0.0,
        )
        self.end_encoder = nn.LSTM(merged_dim + 3 * both, hidden, batch_first=True, bidirectional=True)
        self.start = nn.Linear(merged_dim + both, 1)
        self.end = nn.Linear(merged_dim + both, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, question: Tensor, passage: Tensor, question_mask: Tensor, passage_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Score the words of passages.

        Args:
            question: ``(batch, question_time, input_dim)``.
            passage: ``(batch, time, input_dim)``.
            question_mask, passage_mask: Bool, True on a real token; at least one each.

        Returns:
            Scores of each word as the first and as the last of the answer, ``(batch, time)`` each, of any value on
            padding.
        """
        encoded_question, encoded_passage = (
            self.dropout(run_packed(self.phrases, self._highway(inputs), mask))
            for inputs, mask in ((question, question_mask), (passage, passage_mask))
        )
        merged = self.attention(encoded_passage, encoded_question, passage_mask, question_mask)
        modeled = self.dropout(run_packed(self.modeling, merged, passage_mask))
        starts = self.start(self.dropout(torch.cat([merged, modeled], dim=-1)))[..., 0]
        # The modeled passage at the start of the answer, in expectation.
        expected = (masked_softmax(starts, passage_mask)[:, None, :] @ modeled).expand_as(modeled)
        at_end = torch.cat([merged, modeled, expected, modeled * expected], dim=-1)
        encoded_end = self.dropout(run_packed(self.end_encoder, at_end, passage_mask))
        ends = self.end(self.dropout(torch.cat([merged, encoded_end], dim=-1)))[..., 0]
        return starts, ends

    def _highway(self, inputs: Tensor) -> Tensor:
        for highway in self.highways:
            inputs = highway(inputs)
        return inputs

"""Encodes texts with an LSTM, as part of the built-in torso."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from headrace.errors import ConfigError
from headrace.nn.recurrent import orthogonal_gates


class TextEncoder(nn.Module):
    """An LSTM over embedded tokens; its output at a text's last token stands for the text.

    The sizes are those of Espeholt et al. (2018), Figure 3. Token 0 is padding, at the end.

    Args:
        vocabulary: the number of tokens, padding included.
        embedding: numbers that stand for a token; units: of the LSTM, ``num_outputs``.

    Raises:
        ConfigError: a number is below 1.
    """

    def __init__(self, vocabulary: int, embedding: int = 20, units: int = 64) -> None:
        super().__init__()
        for name, value in (("vocabulary", vocabulary), ("embedding", embedding), ("units", units)):
            if value < 1:
                raise ConfigError(f"{name}={value} of a text encoder must be at least 1")
        self.vocabulary, self.num_outputs = vocabulary, units
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.lstm = orthogonal_gates(nn.LSTM(embedding, units, batch_first=True))

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute features ``[N, units]`` of texts, ignoring padding; zeros for an empty text.

        Args:
            tokens: ``[N, L]`` integers in ``[0, vocabulary)``.

        Raises:
            TypeError: tokens aren't integers.
            IndexError: a token is outside the vocabulary.
        """
        if tokens.is_floating_point():
            raise TypeError(f"tokens must be integers, not {tokens.dtype}")
        if not tokens.numel():
            return self.embedding.weight.new_zeros(len(tokens), self.num_outputs)
        # An instruction is read again at every step of its episode: each is encoded only once.
        texts, number = tokens.long().unique(dim=0, return_inverse=True)
        self.check(texts)
        place = torch.arange(1, texts.shape[1] + 1, device=texts.device)
        length = (place * (texts != 0)).amax(1)
        cut = length.clamp(min=1).cpu()
        rows = pack_padded_sequence(self.embedding(texts), cut, True, enforce_sorted=False)
        _, (last, _) = self.lstm(rows)
        return torch.where(length.unsqueeze(1) > 0, last[0], 0.0)[number]

    def check(self, tokens: Tensor) -> None:
        """Raise IndexError if a token is outside the vocabulary."""
        if not tokens.numel():
            return
        low, high = map(int, tokens.long().aminmax())  # unsigned tensors have no aminmax
        if low < 0 or high >= self.vocabulary:
            raise IndexError(
                f"token {low if low < 0 else high} is outside the vocabulary of "
                f"{self.vocabulary}: tokens are 0 (padding) to {self.vocabulary - 1}"
            )

"""Keys and values of every token that the target has processed, in memory set aside once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class KeyValueCache:
    """Pre-allocated keys and values of a decoder, with a committed length.

    keys, values: [layers, rows, heads, capacity, head_dim]. A forward writes behind `length`;
    `advance` commits what was written, anything not committed is overwritten by the next forward.
    So drafts are rejected and the action expert's own tokens forgotten by doing nothing.
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        heads: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, rows, heads, capacity, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.length = 0

    @property
    def capacity(self) -> int:
        """Tokens that fit in a row."""
        return self.keys.shape[3]

    @property
    def rows(self) -> int:
        """Sequences held side by side."""
        return self.keys.shape[1]

    def update(self, keys: Tensor, values: Tensor, layer: int, **_: Any) -> tuple[Tensor, Tensor]:
        """Writes one layer's new keys and values [rows, heads, k, head_dim] behind the committed ones.

        Returns views of all keys and values up to the new ones. The signature is the one that
        transformers' attention calls. Raises ValueError when the capacity is exceeded.
        """
        end = self.length + keys.shape[2]
        if end > self.capacity:
            raise ValueError(f"{end} tokens do not fit the {self.capacity} that the cache was made for")
        self.keys[layer, :, :, self.length : end] = keys
        self.values[layer, :, :, self.length : end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def advance(self, tokens: int) -> None:
        """Commits that many of the tokens written last."""
        self.crop(self.length + tokens)

    def crop(self, length: int) -> None:
        """Sets the committed length; what lies behind it is free to be overwritten."""
        if not 0 <= length <= self.capacity:
            raise ValueError(f"a cache of {self.capacity} tokens cannot be cut to {length}")
        self.length = length

    def fork(self, rows: int) -> KeyValueCache:
        """A copy of a one-row cache with its committed tokens in `rows` rows."""
        layers, own_rows, heads, capacity, head_dim = self.keys.shape
        if own_rows != 1:
            raise ValueError(f"only a cache of one row can be forked, this one has {own_rows}")
        other = KeyValueCache(layers, rows, heads, capacity, head_dim, self.keys.dtype, self.keys.device)
        other.keys[:, :, :, : self.length] = self.keys[:, :, :, : self.length]
        other.values[:, :, :, : self.length] = self.values[:, :, :, : self.length]
        other.length = self.length
        return other

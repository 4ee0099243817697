"""The routine reasoner: a small draft that reads the target's hidden states and writes a whole block in one pass.

After DFlash (block drafting on a target's hidden states); positions and context are what is studied here. As a
baseline the same network can write token by token, as EAGLE's autoregressive head does.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rsd_planner.kv_cache import KeyValueCache
from rsd_planner.reasoning.drafts import Proposal
from rsd_planner.reasoning.rope import Positions, angles, rotate
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.reasoning.target import Prompt, TokenKind, TokenSource


class Reads(enum.Enum):
    """Which tokens of the prompt a draft attends to; of the chain it always sees everything."""

    ALL = "all"
    NO_VISUAL = "no visual"
    HISTORY = "history"

    def selects(self, kinds: Tensor) -> Tensor:
        """Mask [...] over kinds [...] of tokens."""
        if self is Reads.ALL:
            return torch.ones_like(kinds, dtype=torch.bool)
        return kinds != TokenKind.VISUAL if self is Reads.NO_VISUAL else kinds == TokenKind.HISTORY


class Writes(enum.Enum):
    """How a draft writes."""

    BLOCK = "block"
    """All tokens in one pass, from MASKs that see one another."""
    TOKEN = "token"
    """A pass for each token, which reads those before."""


@dataclass(frozen=True)
class RoutineConfig:
    """Sizes and kind of a routine reasoner. target_layers: whose inputs it reads; hidden: the target's width."""

    hidden: int
    target_layers: tuple[int, ...]
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 768
    block: int = 16
    positions: Positions = Positions.FLAT
    reads: Reads = Reads.ALL
    writes: Writes = Writes.BLOCK
    theta: float = 10_000.0
    sections: tuple[int, int, int] = (12, 10, 10)

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads or self.block < 2 or not self.target_layers:
            raise ValueError("a draft needs heads in whole groups, a block of at least 2 and layers to read")

    def check_target(self, hidden: int, layers: int, source: object) -> None:
        """Raises ValueError if a target of this width and number of layers is not what the draft was trained for."""
        if hidden != self.hidden or max(self.target_layers) > layers:
            raise ValueError(
                f"the routine reasoner {source} reads layers {list(self.target_layers)} of width {self.hidden}; the "
                f"target has {layers} of width {hidden}"
            )

    @classmethod
    def named(cls, hidden: int, target_layers: Sequence[int], entries: Mapping[str, Any]) -> RoutineConfig:
        """From entries as a file holds them. Raises ValueError or TypeError for what is not known."""
        kinds: dict[str, Callable[[Any], Any]] = {
            "positions": Positions,
            "reads": Reads,
            "writes": Writes,
            "sections": tuple,
        }
        known = {name: kinds[name](value) if name in kinds else value for name, value in entries.items()}
        return cls(hidden=hidden, target_layers=tuple(target_layers), **known)


class Attention(nn.Module):
    """Grouped-query attention of a block on context and itself, with normed queries and keys."""

    def __init__(self, config: RoutineConfig) -> None:
        super().__init__()
        self._config = config
        size, wide, narrow = config.hidden, config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj, self.o_proj = nn.Linear(size, wide, bias=False), nn.Linear(wide, size, bias=False)
        self.k_proj, self.v_proj = nn.Linear(size, narrow, bias=False), nn.Linear(size, narrow, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(config.head_dim, eps=1e-6), nn.RMSNorm(config.head_dim, eps=1e-6)

    def keys_values(self, states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Of states [B, n, D] at their places: [B, kv_heads, n, head_dim] each."""
        split = (self._config.kv_heads, self._config.head_dim)
        keys = self.k_norm(self.k_proj(states).unflatten(-1, split)).transpose(-3, -2)
        return rotate(keys, cos, sin), self.v_proj(states).unflatten(-1, split).transpose(-3, -2)

    def queries(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Of a block's states [B, n, D]: [B, heads, n, head_dim]."""
        split = (self._config.heads, self._config.head_dim)
        return rotate(self.q_norm(self.q_proj(states).unflatten(-1, split)).transpose(-3, -2), cos, sin)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Mixed values [B, n, D]; mask [B, 1, n, keys] is True where a query may look."""
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
        return self.o_proj(mixed.transpose(-3, -2).flatten(-2))


class Layer(nn.Module):
    """Pre-norm attention and gated MLP."""

    def __init__(self, config: RoutineConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.attention_norm = nn.RMSNorm(config.hidden, eps=1e-6)
        self.mlp_norm = nn.RMSNorm(config.hidden, eps=1e-6)
        self.gate_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.intermediate, bias=False)
        self.down_proj = nn.Linear(config.intermediate, config.hidden, bias=False)

    def mlp(self, states: Tensor) -> Tensor:
        """The second half, with its residual."""
        normed = self.mlp_norm(states)
        return states + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))


class RoutineNetwork(nn.Module):
    """The weights, and one pass over blocks; what the target shares (embedding, head) stays the target's."""

    def __init__(self, config: RoutineConfig) -> None:
        super().__init__()
        self.config = config
        self.fuse = nn.Linear(config.hidden * len(config.target_layers), config.hidden, bias=False)
        self.fuse_norm = nn.RMSNorm(config.hidden, eps=1e-6)
        self.mask_embedding = nn.Parameter(torch.zeros(config.hidden))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden, eps=1e-6)

    def context(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """Context states [B, n, D] of the target's layer inputs [B, n, D], each brought to one size first."""
        normed = [F.rms_norm(hidden[layer], hidden[layer].shape[-1:]) for layer in self.config.target_layers]
        return self.fuse_norm(self.fuse(torch.cat(normed, dim=-1).to(self.fuse.weight.dtype)))

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine [..., head_dim] of positions [3, ...]."""
        return angles(positions, self.config.head_dim, self.config.theta, self.config.sections)

    def forward(
        self,
        block: Tensor,
        positions: Tensor,
        join: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]],
        mask: Tensor | None = None,
    ) -> Tensor:
        """Normed output [B, n, D] for a block's embeddings [B, n, D] at positions [3, B, n].

        join(keys, values, layer) puts the block's [B, kv_heads, n, head_dim] behind the m of what came before; mask
        [B, 1, n, m + n].
        """
        cos, sin = self.angles(positions)
        states = block
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            normed = layer.attention_norm(states)
            keys, values = layer.attention.keys_values(normed, cos, sin)
            mixed = layer.attention(layer.attention.queries(normed, cos, sin), *join(keys, values, number), mask)
            states = layer.mlp(states + mixed)
        return self.norm(states)


class RoutineReasoner:
    """A draft source: the network with the context of one prompt, whose keys and values are kept.

    embed and head are the target's: tokens [...] -> [..., D], normed states [..., D] -> logits [..., V].
    """

    def __init__(
        self, network: RoutineNetwork, embed: Callable[[Tensor], Tensor], head: Callable[[Tensor], Tensor]
    ) -> None:
        self.network, self._embed, self._head = network, embed, head
        self._cache: KeyValueCache | None = None
        self._prompt_length = self._slots = self._delta = 0

    @property
    def layers(self) -> Collection[int]:
        """Layers of the target whose inputs it reads."""
        return self.network.config.target_layers

    @torch.inference_mode()
    def begin(self, prompt: Prompt, hidden: Mapping[int, Tensor], room: int) -> None:
        """Takes in the part of the prompt that it reads."""
        config = self.network.config
        seen = config.reads.selects(prompt.kinds).nonzero().squeeze(-1)
        self._cache = self._cache_for(len(seen) + room + config.block)
        self._prompt_length = self._slots = len(prompt.tokens)
        self._delta = prompt.delta
        self._append(
            {layer: hidden[layer][:, seen] for layer in self.layers}, config.positions.of_prompt(prompt)[:, seen]
        )

    @torch.inference_mode()
    def observe(self, committed: Sequence[int], hidden: Mapping[int, Tensor]) -> None:
        """Takes in committed tokens."""
        device = hidden[self.network.config.target_layers[0]].device
        slots = torch.arange(self._slots, self._slots + len(committed), device=device)
        self._append(hidden, self.network.config.positions.of_chain(slots, self._delta))
        self._slots += len(committed)

    @torch.inference_mode()
    def propose(self, committed: Sequence[int], most: int, sampling: Sampling) -> Proposal | None:
        """Behind the last committed token; what the pass writes into the cache is not committed there."""
        assert self._cache is not None, "begin with a prompt first"
        config, device = self.network.config, self.network.mask_embedding.device
        count = min(most, config.block - 1)
        if count < 1:
            return None
        numbers = torch.arange(count + 1, device=device)
        slots = self._prompt_length + len(committed) - 1 + numbers
        positions = config.positions.of_chain(slots, self._delta, numbers)[:, None]
        if config.writes is Writes.BLOCK:
            inputs = torch.cat([self._embedded(committed[-1]), self.network.mask_embedding.expand(count, -1)])
            logits = self._head(self.network(inputs[None], positions, self._cache.update)[0, 1:])
            tokens = sampling.choose_along(logits, len(committed)).tolist()
        else:
            tokens, logits = self._one_by_one(committed, positions[..., :count], sampling)
        log_q = sampling.log_probabilities(logits) if sampling.rejection and not sampling.greedy else None
        return Proposal(tokens, TokenSource.ROUTINE, log_q)

    def _one_by_one(self, committed: Sequence[int], positions: Tensor, sampling: Sampling) -> tuple[list[int], Tensor]:
        """A token for each position, and their logits."""
        assert self._cache is not None
        tokens, found, length = [committed[-1]], [], self._cache.length
        for number in range(positions.shape[-1]):
            inputs = self._embedded(tokens[-1])[None]
            found.append(self._head(self.network(inputs, positions[..., number, None], self._cache.update)[0]))
            self._cache.advance(1)
            tokens.append(int(sampling.choose_along(found[-1], len(committed) + number)[0]))
        self._cache.crop(length)
        return tokens[1:], torch.cat(found)

    def _embedded(self, token: int) -> Tensor:
        mask = self.network.mask_embedding
        return self._embed(torch.tensor([token], device=mask.device)).to(mask.dtype)

    def _append(self, hidden: Mapping[int, Tensor], positions: Tensor) -> None:
        assert self._cache is not None
        states = self.network.context(hidden)
        cos, sin = self.network.angles(positions)
        for number, layer in enumerate(self.network.layers):
            assert isinstance(layer, Layer)
            self._cache.update(*layer.attention.keys_values(states, cos, sin), number)
        self._cache.advance(states.shape[1])

    def _cache_for(self, capacity: int) -> KeyValueCache:
        """The cache of the last prompt, if it is large enough."""
        if self._cache is not None and self._cache.capacity >= capacity:
            self._cache.crop(0)
            return self._cache
        config, weight = self.network.config, self.network.fuse.weight
        return KeyValueCache(config.layers, 1, config.kv_heads, capacity, config.head_dim, weight.dtype, weight.device)

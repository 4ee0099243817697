"""What the routine reasoner is trained on: blocks that begin anywhere in the target's own chains of causation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rsd_planner.reasoning.routine import Layer, RoutineNetwork, Writes
from rsd_planner.reasoning.target import Prompt

_IGNORED = -100


@dataclass(frozen=True)
class DraftBatch:
    """N prompts with the chains that the target wrote after them, padded at the end.

    hidden: layer -> [N, P + C, D], inputs of the target's layers over prompt and chain; kinds [N, P] of the prompt's
    tokens (one length P for all); positions [3, P]: the target's, the same for all prompts, and delta, see
    reasoning.target.Prompt; chain [N, C] tokens, ends included; lengths [N] of the chains.
    """

    hidden: Mapping[int, Tensor]
    kinds: Tensor
    positions: Tensor
    delta: int
    chain: Tensor
    lengths: Tensor

    def on(self, device: torch.device) -> DraftBatch:
        """The batch on a device."""
        hidden = {layer: states.to(device) for layer, states in self.hidden.items()}
        rest = (self.kinds.to(device), self.positions.to(device), self.delta, self.chain.to(device))
        return DraftBatch(hidden, *rest, self.lengths.to(device))


@dataclass(frozen=True)
class DraftWeights:
    """How much each part counts.

    decay: weight of a position in the block over the one before (an early mistake costs the whole rest). focal: extra
    weight of a block's first wrong position; expected: of minus the expected share of the block that is accepted (both
    after the left-to-right losses of arXiv 2606.11552).
    """

    decay: float = 0.9
    focal: float = 0.0
    expected: float = 0.0


@dataclass(frozen=True)
class DraftFigures:
    """loss to be lowered; accepted: tokens of a block that greedy verification would accept, on average (no bonus)."""

    loss: Tensor
    accepted: Tensor


class DraftLosses(nn.Module):
    """The network with its loss. embed and head are the target's, frozen: tokens -> [..., D], states -> logits."""

    def __init__(
        self, network: RoutineNetwork, embed: Callable[[Tensor], Tensor], head: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.network = network
        self._embed, self._head = embed, head

    def forward(self, batch: DraftBatch, starts: Tensor, weights: DraftWeights) -> DraftFigures:
        """starts [N, M]: chain index of each block's first token, the last one that is committed when it is drafted."""
        block = self.network.config.block
        logits = self._drafted(batch, starts)  # [N, M, block - 1, V]
        labels = self._labels(batch, starts)
        there = labels != _IGNORED
        entropy = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=_IGNORED, reduction="none")
        entropy = entropy.view_as(labels)
        decayed = weights.decay ** torch.arange(block - 1, device=starts.device) * there
        right = (logits.argmax(-1) == labels) | ~there
        if weights.focal:
            first_wrong = (right.long().cumprod(dim=-1).sum(dim=-1, keepdim=True)) == torch.arange(
                block - 1, device=starts.device
            )
            decayed = decayed * (1.0 + weights.focal * first_wrong)
        loss = (entropy * decayed).sum() / decayed.sum().clamp_min(1e-6)
        reached = ((-entropy).exp() * there).cumprod(dim=-1).sum(dim=-1) / there.sum(dim=-1).clamp_min(1)
        if weights.expected:
            loss = loss - weights.expected * reached[there.any(dim=-1)].mean()
        accepted = ((right & there).long().cumprod(dim=-1).sum(dim=-1)).float().mean()
        return DraftFigures(loss, accepted)

    def standing(self, batch: DraftBatch, starts: Tensor) -> Tensor:
        """How many tokens of each block greedy verification accepts [N, M]."""
        labels = self._labels(batch, starts)
        right = (self._drafted(batch, starts).argmax(-1) == labels) & (labels != _IGNORED)
        return right.long().cumprod(dim=-1).sum(dim=-1)

    def _labels(self, batch: DraftBatch, starts: Tensor) -> Tensor:
        """What is to be drafted [N, M, block - 1]; _IGNORED behind a chain's end."""
        index = starts[..., None] + 1 + torch.arange(self.network.config.block - 1, device=starts.device)
        said = batch.chain.gather(1, index.clamp_max(batch.chain.shape[1] - 1).flatten(1)).view_as(index)
        return said.masked_fill(index >= batch.lengths[:, None, None], _IGNORED)

    def _drafted(self, batch: DraftBatch, starts: Tensor) -> Tensor:
        """Logits [N, M, block - 1, V] of all blocks in one pass; a block sees its own context and itself."""
        network, config = self.network, self.network.config
        rows, blocks = starts.shape
        prompt, chain = batch.kinds.shape[1], batch.chain.shape[1]
        device = starts.device
        slots = torch.arange(prompt, prompt + chain, device=device)
        context_positions = torch.cat(
            [_of_prompt(network, batch, prompt), config.positions.of_chain(slots, batch.delta)], dim=1
        )
        states = network.context(batch.hidden)
        angles = network.angles(context_positions)
        numbers = torch.arange(config.block, device=device)
        block_slots = prompt + starts[..., None] + numbers
        positions = config.positions.of_chain(block_slots, batch.delta, numbers.expand_as(block_slots)).flatten(2)
        by_token = config.writes is Writes.TOKEN
        said = (starts[..., None] + numbers[: config.block if by_token else 1]).clamp_max(chain - 1)
        inputs = self._embed(batch.chain.gather(1, said.flatten(1)).view_as(said)).to(states.dtype)
        if not by_token:
            masks = network.mask_embedding.expand(rows, blocks, config.block - 1, -1)
            inputs = torch.cat([inputs, masks], dim=2)
        seen_prompt = config.reads.selects(batch.kinds)[:, None].expand(-1, blocks, -1)
        seen_chain = torch.arange(chain, device=device) < starts[..., None]
        seen = torch.cat([seen_prompt, seen_chain], dim=-1).repeat_interleave(config.block, dim=1)
        own = torch.arange(blocks, device=device).repeat_interleave(config.block)
        among = own[:, None] == own
        if by_token:
            among &= torch.ones_like(among).tril()
        mask = torch.cat([seen, among.expand(rows, -1, -1)], dim=-1)[:, None]

        def join(keys: Tensor, values: Tensor, number: int) -> tuple[Tensor, Tensor]:
            layer = network.layers[number]
            assert isinstance(layer, Layer)
            before = layer.attention.keys_values(states, *angles)
            return torch.cat([before[0], keys], dim=-2), torch.cat([before[1], values], dim=-2)

        out = network(inputs.flatten(1, 2), positions, join, mask).unflatten(1, (blocks, config.block))
        return self._head(out[:, :, :-1] if by_token else out[:, :, 1:]).float()


def _of_prompt(network: RoutineNetwork, batch: DraftBatch, length: int) -> Tensor:
    blank = torch.zeros(length, dtype=torch.long, device=batch.chain.device)
    return network.config.positions.of_prompt(Prompt(blank, blank, batch.positions, batch.delta))

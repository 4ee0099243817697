"""FlatRoPE and its rivals, and a routine reasoner whose kept context is the context made anew."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

from rsd_planner.reasoning.decoding import Ending, decode_autoregressively, decode_speculatively
from rsd_planner.reasoning.drafts import FirstOf, PreviousChain, PromptLookup
from rsd_planner.reasoning.rope import Positions, angles, rotate
from rsd_planner.reasoning.routine import Reads, RoutineConfig, RoutineNetwork, RoutineReasoner, Writes
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.reasoning.target import Prompt, TokenKind

V, D = 40, 32
KINDS = torch.tensor([0, 1, 1, 1, 1, 0, 2, 2, 2, 0])
PROMPT = Prompt(
    tokens=torch.arange(10),
    kinds=KINDS,
    positions=torch.tensor(
        [[0, 1, 1, 1, 1, 3, 4, 5, 6, 7], [0, 1, 1, 2, 2, 3, 4, 5, 6, 7], [0, 1, 2, 1, 2, 3, 4, 5, 6, 7]]
    ),
    delta=-2,
)


def _config(**more) -> RoutineConfig:
    return RoutineConfig(
        hidden=D, target_layers=(1, 3), heads=4, kv_heads=2, head_dim=8, intermediate=48, block=6, sections=(2, 1, 1),
        **more,
    )  # fmt: skip


def test_angles_are_those_of_qwen3_vl_and_of_plain_rope():
    config = Qwen3VLTextConfig(
        head_dim=64, hidden_size=64, num_attention_heads=1, rope_theta=5000.0,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [12, 10, 10],
                         "mrope_interleaved": True},
    )  # fmt: skip
    positions = torch.randint(0, 3000, (3, 1, 50), generator=torch.Generator().manual_seed(0))
    expected = Qwen3VLTextRotaryEmbedding(config)(torch.zeros(1, dtype=torch.float32), positions)
    for found, wanted in zip(angles(positions, 64, 5000.0, (12, 10, 10)), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-3)  # 3,000 rad in float32
    # The same number on all axes: pairs (x_k, x_k+32) turned as complex numbers by i theta^(-k/32).
    flat = positions[:1].expand(3, 1, -1)
    heads = torch.randn(1, 2, 50, 64)
    found = rotate(heads, *angles(flat, 64, 5000.0, (12, 10, 10)))
    turn = np.exp(1j * flat[0, 0, :, None].numpy() * 5000.0 ** (-np.arange(32) / 32))
    spun = (heads[..., :32].numpy() + 1j * heads[..., 32:].numpy()) * turn
    np.testing.assert_allclose(found, np.concatenate([spun.real, spun.imag], axis=-1), atol=1e-3)


def test_positions_of_prompt_and_chain():
    slots, numbers = torch.tensor([11, 12]), torch.tensor([0, 1])
    for scheme, prompt, context, block in (
        (Positions.FLAT, list(range(10)), [11, 12], [11, 12]),
        (Positions.MROPE, PROMPT.positions[1].tolist(), [9, 10], [9, 10]),
        (Positions.BLOCK, [0] * 10, [0, 0], [0, 1]),
        (Positions.NONE, [0] * 10, [0, 0], [0, 0]),
    ):
        assert scheme.of_prompt(PROMPT)[1].tolist() == prompt
        assert scheme.of_chain(slots, PROMPT.delta)[2].tolist() == context
        assert scheme.of_chain(slots, PROMPT.delta, numbers)[0].tolist() == block


def test_what_a_draft_reads():
    assert Reads.ALL.selects(KINDS).sum() == 10
    assert Reads.NO_VISUAL.selects(KINDS).tolist() == [kind != TokenKind.VISUAL for kind in KINDS]
    assert Reads.HISTORY.selects(KINDS).nonzero().squeeze().tolist() == [6, 7, 8]


def _reasoner(seed: int = 0, **more) -> RoutineReasoner:
    torch.manual_seed(seed)
    network = RoutineNetwork(_config(**more))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    table = torch.randn(V, D)
    return RoutineReasoner(network, lambda tokens: table[tokens], lambda states: states @ table.T)


def _hidden(length: int, seed: int = 1) -> dict[int, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {layer: torch.randn(1, length, D, generator=random) for layer in (1, 3)}


def _part(hidden, begin: int, end: int):
    return {layer: states[:, begin:end] for layer, states in hidden.items()}


@pytest.mark.parametrize(("positions", "reads"), list(itertools.product(Positions, Reads)))
def test_a_kept_context_is_the_context_made_anew(positions, reads):
    """Committed in pieces of any size, with rejected drafts in between, or all at once; and by one plain pass."""
    hidden, chain = _hidden(17), [5, 6, 7, 8, 9, 10, 11]
    pieces = _reasoner(positions=positions, reads=reads)
    pieces.begin(PROMPT, _part(hidden, 0, 10), 30)
    done = 0
    for count in (1, 3, 2, 1):
        pieces.propose(chain[: done + 1], 5, Sampling(greedy=True))
        pieces.observe(chain[done : done + count], _part(hidden, 10 + done, 10 + done + count))
        done += count
    once = _reasoner(positions=positions, reads=reads)
    once.begin(PROMPT, _part(hidden, 0, 10), 30)
    once.observe(chain, _part(hidden, 10, 17))
    committed = [*chain, 12]
    sampling = Sampling(seed=3, temperature=2.0, rejection=True)
    one, two = (source.propose(committed, 4, sampling) for source in (pieces, once))
    assert one is not None and two is not None and one.tokens == two.tokens and len(one.tokens) == 4
    np.testing.assert_allclose(one.log_q, two.log_q, atol=1e-4)

    network = once.network
    with torch.inference_mode():
        seen = torch.cat([reads.selects(KINDS), torch.ones(7, dtype=torch.bool)]).nonzero().squeeze()
        where = torch.cat([positions.of_prompt(PROMPT), positions.of_chain(torch.arange(10, 17), -2)], dim=1)[:, seen]
        states = network.context({layer: value[:, seen] for layer, value in hidden.items()})
        block = torch.cat([once._embed(torch.tensor([12])), network.mask_embedding.expand(4, -1)])[None]
        in_block = positions.of_chain(torch.arange(17, 22), -2, torch.arange(5))[:, None]

        def join(keys, values, number):
            before = network.layers[number].attention.keys_values(states, *network.angles(where))
            return torch.cat([before[0], keys], dim=2), torch.cat([before[1], values], dim=2)

        out = network(block, in_block, join)
        expected = sampling.log_probabilities(once._head(out[0, 1:]))
    np.testing.assert_allclose(two.log_q, expected, atol=1e-4)


def test_rejected_drafts_leave_no_trace_over_prompts():
    """A reasoner that has drafted for other prompts drafts as a new one."""
    used, new = _reasoner(), _reasoner()
    used.begin(PROMPT, _hidden(10, seed=7), 30)
    used.propose([1], 5, Sampling(greedy=True))
    used.observe([1, 2, 3], _hidden(3, seed=8))
    for source in (used, new):
        source.begin(PROMPT, _hidden(10), 20)
    assert used.propose([4], 5, Sampling(greedy=True)) == new.propose([4], 5, Sampling(greedy=True))


def test_blocks_are_bounded():
    source = _reasoner()
    source.begin(PROMPT, _hidden(10), 30)
    assert len(source.propose([4], 50, Sampling(greedy=True)).tokens) == 5
    assert source.propose([4], 0, Sampling(greedy=True)) is None
    with pytest.raises(ValueError, match="heads in whole groups"):
        RoutineConfig(hidden=8, target_layers=(), heads=3, kv_heads=2)


def test_positions_matter_but_not_without():
    """Without positions a permuted context drafts the same, with FlatRoPE it does not."""
    order = torch.randperm(10, generator=torch.Generator().manual_seed(2))
    for positions, same in ((Positions.NONE, True), (Positions.FLAT, False)):
        drafted = []
        for hidden in (_hidden(10), {layer: value[:, order] for layer, value in _hidden(10).items()}):
            source = _reasoner(positions=positions)
            source.begin(PROMPT, hidden, 30)
            proposal = source.propose([4], 5, Sampling(rejection=True))
            drafted.append(proposal.log_q.nan_to_num(neginf=-50.0))
        assert np.allclose(*drafted, atol=1e-3) == same


@pytest.fixture(scope="module")
def tiny_context(tiny, tiny_record):
    """A maker of fresh contexts of the tiny checkpoint's prompt."""
    from rsd_planner.vla.vision import ImagePatches

    patches = ImagePatches(tiny_record("pixel_values"), tiny_record("image_grid_thw"))

    def make(keep=()):
        features = tiny.encode_images(patches)
        return tiny.prefill(tiny_record("fused_ids"), features, patches.grid_thw, extra=60, keep=keep)

    return make


def test_prompts_of_the_tiny_checkpoint(tiny, tiny_context, tiny_record):
    prompt = tiny.prompt_of(tiny_context())
    ids = tiny_record("fused_ids")[0]
    assert int((prompt.kinds == TokenKind.VISUAL).sum()) == int((ids == tiny.vlm.config.image_token_id).sum())
    assert int((prompt.kinds == TokenKind.HISTORY).sum()) == 48
    assert prompt.positions.shape == (3, len(ids)) and int(prompt.positions.max()) + 1 == len(ids) + prompt.delta


@pytest.mark.parametrize("greedy", [True, False])
def test_a_real_target_with_an_untrained_draft_is_exact(tiny, tiny_context, greedy):
    """Tokens are the autoregressive run's; the cache after the rounds is that of one fresh pass."""
    config = tiny.vlm.config.text_config
    torch.manual_seed(0)
    network = RoutineNetwork(
        RoutineConfig(
            hidden=config.hidden_size, target_layers=(0, config.num_hidden_layers), heads=4, kv_heads=2, head_dim=16,
            intermediate=64, block=7, sections=(4, 2, 2),
        )
    )  # fmt: skip
    ending = Ending(tiny.config.future_start_token, 2, 1214)
    for seed in range(4):
        sampling = Sampling(greedy=greedy, seed=seed, temperature=1.2, masked=tiny.masked_tokens)
        alone_context = tiny_context()
        (alone,) = decode_autoregressively(alone_context, sampling, ending, budget=40)
        one_by_one = RoutineNetwork(dataclasses.replace(network.config, writes=Writes.TOKEN))
        for source in (
            RoutineReasoner(network, tiny.embed, tiny.head),
            RoutineReasoner(one_by_one, tiny.embed, tiny.head),
            FirstOf(_remembering(alone.tokens), RoutineReasoner(network, tiny.embed, tiny.head)),
            PromptLookup(),
        ):
            context = tiny_context(keep=source.layers)
            found = decode_speculatively(
                context, source, tiny.prompt_of(context), sampling, ending, budget=40, block=2 + 5 * seed
            )
            assert found.tokens == alone.tokens and found.length == alone.length == context.length
            fresh = tiny_context()
            fresh.verify(torch.tensor([found.tokens]))
            for name in ("keys", "values"):
                kept, made = (getattr(one.cache, name)[..., : found.length, :] for one in (context, fresh))
                np.testing.assert_allclose(kept, made, atol=1e-5)


def _remembering(tokens) -> PreviousChain:
    """The right chain but for one token."""
    source = PreviousChain()
    source.remember([*tokens[:3], 5, *tokens[4:]])
    return source

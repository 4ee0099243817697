"""The draft's training against its inference, block by block, and that it learns."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from rsd_planner.reasoning.rope import Positions
from rsd_planner.reasoning.routine import Reads, RoutineConfig, RoutineNetwork, RoutineReasoner, Writes
from rsd_planner.reasoning.routine_checkpoint import load_routine, save_routine
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.reasoning.target import Prompt
from rsd_planner.training.draft import DraftTrainer, DraftTraining, accepted_length
from rsd_planner.training.draft_data import Chains, write_chains
from rsd_planner.training.draft_losses import DraftBatch, DraftLosses, DraftWeights
from rsd_planner.training.mini import save_weights
from rsd_planner.training.samples import Collator, Recorded
from rsd_planner.vla.checkpoint import Checkpoint
from rsd_planner.vla.prompt import Prompter
from rsd_planner.vla.vision import ImagePatches


@pytest.fixture(scope="module")
def fresh_target(fresh):
    """A checkpoint with random weights."""
    directory, model, _ = fresh
    save_weights(model, directory)
    return directory


V, D, P, C = 30, 32, 9, 8
KINDS = torch.tensor([[0, 1, 1, 1, 0, 2, 2, 2, 0]] * 2)
POSITIONS = torch.tensor([[0, 1, 1, 1, 3, 4, 5, 6, 7], [0, 1, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 1, 3, 4, 5, 6, 7]])


def _network(**more) -> RoutineNetwork:
    torch.manual_seed(0)
    config = RoutineConfig(
        hidden=D, target_layers=(0, 2), heads=4, kv_heads=2, head_dim=8, intermediate=48, block=5, sections=(2, 1, 1),
        **more,
    )  # fmt: skip
    network = RoutineNetwork(config)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return network


TABLE = torch.randn(V, D, generator=torch.Generator().manual_seed(5))


def _embed(tokens):
    return TABLE[tokens]


def _head(states):
    return states @ TABLE.T


def _batch() -> DraftBatch:
    random = torch.Generator().manual_seed(1)
    hidden = {layer: torch.randn(2, P + C, D, generator=random) for layer in (0, 2)}
    chain = torch.randint(0, V, (2, C), generator=random)
    return DraftBatch(hidden, KINDS, POSITIONS, -1, chain, torch.tensor([8, 5]))


@pytest.mark.parametrize(("positions", "reads"), list(itertools.product(Positions, Reads)))
def test_all_blocks_in_one_pass_are_the_drafts_of_inference(positions, reads):
    network, batch = _network(positions=positions, reads=reads), _batch()
    starts = torch.tensor([[0, 2, 6], [1, 3, 0]])
    losses = DraftLosses(network, _embed, _head)
    with torch.no_grad():
        logits = losses._drafted(batch, starts)
    for row, block in itertools.product(range(2), range(3)):
        start = int(starts[row, block])
        source = RoutineReasoner(network, _embed, _head)
        own = {layer: states[row : row + 1] for layer, states in batch.hidden.items()}
        prompt = Prompt(torch.zeros(P, dtype=torch.long), KINDS[row], POSITIONS, -1)
        source.begin(prompt, {layer: states[:, :P] for layer, states in own.items()}, 20)
        chain = batch.chain[row].tolist()
        source.observe(chain[:start], {layer: states[:, P : P + start] for layer, states in own.items()})
        sampling = Sampling(rejection=True, temperature=1.0, top_p=1.0)
        proposal = source.propose(chain[: start + 1], 4, sampling)
        np.testing.assert_allclose(proposal.log_q, logits[row, block].log_softmax(-1), atol=1e-4)


def test_a_draft_that_writes_token_by_token_reads_what_it_wrote():
    """What it drafts one after another is what one pass over the finished block gives."""
    network, batch = _network(writes=Writes.TOKEN), _batch()
    for row, start in itertools.product(range(2), (0, 3)):
        source = RoutineReasoner(network, _embed, _head)
        own = {layer: states[row : row + 1] for layer, states in batch.hidden.items()}
        source.begin(
            Prompt(torch.zeros(P, dtype=torch.long), KINDS[row], POSITIONS, -1),
            {layer: states[:, :P] for layer, states in own.items()},
            20,
        )
        chain = batch.chain[row].tolist()
        source.observe(chain[:start], {layer: states[:, P : P + start] for layer, states in own.items()})
        proposal = source.propose(chain[: start + 1], 4, Sampling(rejection=True, temperature=1.0, top_p=1.0))
        assert source.propose(chain[: start + 1], 4, Sampling(rejection=True)) is not None  # no trace of the first
        said = batch.chain.clone()
        said[row, start + 1 : start + 5] = torch.tensor(proposal.tokens)
        with torch.no_grad():
            starts = torch.full((2, 1), start)
            logits = DraftLosses(network, _embed, _head)._drafted(dataclasses.replace(batch, chain=said), starts)
        np.testing.assert_allclose(proposal.log_q, logits[row, 0].log_softmax(-1), atol=1e-4)


def test_the_loss_by_hand():
    """Cross-entropy with falling weights, over what the chain holds; the parts for the first error and for length."""
    losses, batch, starts = DraftLosses(_network(), _embed, _head), _batch(), torch.tensor([[5], [3]])
    with torch.no_grad():
        log_q = losses._drafted(batch, starts).log_softmax(-1)
        plain = losses(batch, starts, DraftWeights(decay=0.5))
        focal = losses(batch, starts, DraftWeights(decay=0.5, focal=2.0))
        length = losses(batch, starts, DraftWeights(decay=0.5, expected=1.0))
    # Of row 0 the chain tokens 6 and 7 are left, of row 1 (5 long) token 4.
    places = [(0, 0, 6), (0, 1, 7), (1, 0, 4)]
    entropy = [-float(log_q[row, 0, k, batch.chain[row, token]]) for row, k, token in places]
    weights = [1.0, 0.5, 1.0]
    assert float(plain.loss) == pytest.approx(np.average(entropy, weights=weights), rel=1e-5)
    wrong = [int(log_q[row, 0, k].argmax()) != int(batch.chain[row, token]) for row, k, token in places]
    first = [wrong[0], wrong[1] and not wrong[0], wrong[2]]
    focused = [weight * (3.0 if is_first else 1.0) for weight, is_first in zip(weights, first, strict=True)]
    assert float(focal.loss) == pytest.approx(np.average(entropy, weights=focused), rel=1e-5)
    p = np.exp(-np.array(entropy))
    expected = ((p[0] + p[0] * p[1]) / 2 + p[2]) / 2
    assert float(length.loss) == pytest.approx(float(plain.loss) - expected, rel=1e-5)
    assert float(plain.accepted) == ((not wrong[0]) + (not wrong[0] and not wrong[1]) + (not wrong[2])) / 2


def test_it_learns_chains_by_heart():
    network, batch = _network(), _batch()
    losses = DraftLosses(network, _embed, _head)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    starts = torch.arange(7).expand(2, -1)
    for _ in range(200):
        figures = losses(batch, starts, DraftWeights(focal=1.0, expected=0.2))
        optimiser.zero_grad()
        figures.loss.backward()
        optimiser.step()
    # 8 tokens: after start s min(4, 7 - s) are left; 5 tokens: min(4, 4 - s).
    whole = sum(min(4, 7 - s) for s in range(7)) + sum(max(0, min(4, 4 - s)) for s in range(7))
    assert float(figures.accepted) == pytest.approx(whole / 14)


def test_the_length_of_real_rounds():
    """accepted_length against a decoder that drafts and verifies the kept chains block by block."""
    network, batch = _network(), _batch()
    losses = DraftLosses(network, _embed, _head)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(25):  # half learned: some blocks stand, some do not
        loss = losses(batch, torch.arange(7).expand(2, -1), DraftWeights()).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    class Kept:
        def __len__(self) -> int:
            return 2

        def batch(self, indices):
            rows = list(indices)
            hidden = {layer: states[rows] for layer, states in batch.hidden.items()}
            return DraftBatch(hidden, KINDS[rows], POSITIONS, -1, batch.chain[rows], batch.lengths[rows])

    committed = rounds = 0
    for row in range(2):
        chain = batch.chain[row, : int(batch.lengths[row])].tolist()
        own = {layer: states[row : row + 1] for layer, states in batch.hidden.items()}
        source = RoutineReasoner(network, _embed, _head)
        source.begin(Prompt(torch.zeros(P), KINDS[row], POSITIONS, -1), {k: v[:, :P] for k, v in own.items()}, 20)
        done = 0
        while done < len(chain):
            drafted = source.propose(chain[: done + 1], 4, Sampling(greedy=True)).tokens
            stands = 0
            while done + 1 + stands < len(chain) and stands < 4 and drafted[stands] == chain[done + 1 + stands]:
                stands += 1
            source.observe(
                chain[done : done + 1 + stands], {k: v[:, P + done : P + done + 1 + stands] for k, v in own.items()}
            )
            done += 1 + stands
            rounds += 1
        committed += len(chain)
    found = accepted_length(losses, Kept(), rows=1)
    assert found["accepted_length"] == pytest.approx(committed / rounds) and 1.0 < found["accepted_length"] < 5.0
    assert found["routine_share"] == pytest.approx(1.0 - rounds / committed)


def test_a_network_is_read_as_it_was_written(tmp_path):
    network = _network(positions=Positions.BLOCK, reads=Reads.NO_VISUAL)
    save_routine(network, tmp_path, torch.float32)
    found = load_routine(tmp_path, dtype=torch.float32)
    assert found.config == network.config
    for name, value in network.state_dict().items():
        assert torch.equal(found.state_dict()[name], value)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no routine reasoner"):
        load_routine(tmp_path)


def test_a_distillation_from_data_to_draft(data, fresh_target, tmp_path):
    """The whole command on a random target: its chains are written once, the draft learns them, it resumes."""
    run = DraftTraining(
        target=fresh_target, train=(data / "train",), validation=(data / "train",), out=tmp_path / "flat", samples=8,
        validation_samples=8, target_layers=(0, 2), steps=200, batch=4, learning_rate=3e-3, warm_up=5, ema=0.9,
        draft={"layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 32, "intermediate": 64, "sections": [6, 5, 5]},
        evaluate_every=1000,
    )  # fmt: skip
    figures = DraftTrainer(run).train()
    shard = tmp_path / "chains" / "train" / "000000.safetensors"
    written = shard.stat().st_mtime_ns
    assert figures["accepted_length"] > 2.0  # by heart
    assert load_routine(tmp_path / "flat" / "checkpoint").config.target_layers == (0, 2)
    assert DraftTrainer(run)._step == 200 and shard.stat().st_mtime_ns == written
    further = dataclasses.replace(
        run, initial=tmp_path / "flat" / "checkpoint", out=tmp_path / "further", steps=1, learning_rate=1e-6
    )
    assert DraftTrainer(further).train()["accepted_length"] > 2.0  # it has not begun anew
    with pytest.raises(ValueError, match="holds chains of another target, of other layers"):
        DraftTrainer(dataclasses.replace(run, target_layers=(0, 1), out=tmp_path / "other"))
    # What was kept is what the target says and thinks one prompt at a time, as far as bfloat16 goes.
    kept = Chains(tmp_path / "chains" / "train").batch([5])
    logits, hidden, visual = _alone(fresh_target, data / "train", 5, kept.chain[0, : int(kept.lengths[0])])
    said = kept.chain[0, : int(kept.lengths[0])]
    told = logits[: len(said) - 2]  # the last two may have been forced
    behind = told.max(dim=-1).values - told.gather(1, said[: len(told), None])[:, 0]
    assert float(behind.max()) < 0.03 * float(told[told.isfinite()].std())
    np.testing.assert_allclose(kept.hidden[2][0, : len(hidden)], hidden, atol=0.05, rtol=0.05)
    assert int((kept.kinds == 1).sum()) == visual


def test_sampled_chains_are_drawn_as_the_planner_draws(data, fresh_target, tmp_path):
    write_chains(fresh_target, [data / "train"], tmp_path / "drawn", (2,), 8, budget=12, sampled=1.0)
    write_chains(fresh_target, [data / "train"], tmp_path / "greedy", (2,), 8, budget=12)
    drawn, greedy = (Chains(tmp_path / name).batch(range(8)) for name in ("drawn", "greedy"))
    assert not torch.equal(drawn.chain, greedy.chain)
    sampling, same = Sampling(), []
    for row in range(8):
        said = drawn.chain[row, :12]
        logits, _, _ = _alone(fresh_target, data / "train", row, said)
        same += (sampling.choose_along(logits[:12], 0, row) == said)[: int(drawn.lengths[row]) - 2].tolist()
    assert np.mean(same) > 0.8  # a choice between near equals may fall otherwise in bfloat16


def _alone(target, shards, index, chain):
    """Raw masked logits at each place of a chain, layer 2's inputs over the prompt, and its visual tokens; float32."""
    checkpoint = Checkpoint.open(target)
    model = checkpoint.load(dtype=torch.float32)
    prompter = Prompter.from_directory(target, checkpoint.config)
    batch = Collator(Recorded(shards), model, prompter)([index])
    features = model.encode_images(ImagePatches(batch.pixels, batch.grid))
    prompt = batch.tokens[:, : batch.prompt_length]
    context = model.prefill(prompt, features, batch.grid, extra=50, keep=(2,))
    first, hidden = context.last.logits[0], context.last.hidden[2][0]
    logits = torch.cat([first, context.verify(chain[None]).logits[0, :-1]])
    logits[:, slice(*model.masked_tokens)] = -torch.inf
    return logits, hidden, int((prompt == model.vlm.config.image_token_id).sum())

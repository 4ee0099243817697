"""Whole cycles against the reference's recordings (float32, CPU).

The random weights of `alpamayo_reference` make its action flow chaotic: noise moved by 1e-7 ends
0.5 away after ten steps (`test_why_the_flow_is_compared_step_by_step`). So each of its ten Euler
steps is compared from the recorded state before it; `alpamayo_tiny` is compared end to end.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import Recorded, assert_close

from rsd_planner.reasoning.decoding import Ending, decode_autoregressively
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.vla import flow
from rsd_planner.vla.backbone import Context, rope_positions
from rsd_planner.vla.model import Alpamayo
from rsd_planner.vla.vision import ImagePatches

PROMPT = 271


def _features(model: Alpamayo, recorded: Recorded):
    patches = ImagePatches(recorded("pixel_values"), recorded("image_grid_thw"))
    return model.encode_images(patches), patches.grid_thw


def _fused(model: Alpamayo, recorded: Recorded, unfused: torch.Tensor) -> torch.Tensor:
    tokens = unfused.clone()
    bins = model.config.history_tokenizer.encode(recorded("ego_history_xyz")[0, 0])
    tokens[tokens == model.config.history_token] = model.config.history_token_start + bins
    return tokens


@pytest.fixture(scope="module")
def prefilled(reference, record):
    recorded = record("r1_prefill")
    features, grid = _features(reference, recorded)

    def make(tokens: torch.Tensor | None = None) -> Context:
        tokens = recorded("input_ids_fused") if tokens is None else tokens
        return reference.prefill(tokens, features, grid, extra=32, keep=range(5))

    return make


def test_prefill(reference, record, prefilled):
    recorded = record("r1_prefill")
    assert torch.equal(_fused(reference, recorded, recorded("input_ids_unfused")), recorded("input_ids_fused"))
    features, grid = _features(reference, recorded)
    assert_close(features.embeds, recorded["image_embeds"])
    assert_close(torch.stack(features.deepstack), recorded["deepstack_embeds"])
    positions, delta = rope_positions(reference.vlm, recorded("input_ids_fused"), grid)
    np.testing.assert_array_equal(positions, recorded["position_ids"])
    context = prefilled()
    assert context.rope_delta == delta == int(recorded["rope_deltas"][0, 0])
    for layer in range(5):
        assert_close(context.last.hidden[layer][0], recorded["prefill_hidden_states"][layer])
    assert_close(context.last.logits[0], recorded["prefill_logits_last"])
    assert_close(context.cache.keys[:, 0, :, PROMPT - 8 : PROMPT], recorded["kv_keys_last8"])
    assert_close(context.cache.values[:, 0, :, PROMPT - 8 : PROMPT], recorded["kv_values_last8"])


def test_action_embedding(reference, record):
    recorded = record("r1_prefill")
    time = recorded("inproj_t").flatten()
    assert_close(reference.action_in_proj(recorded("inproj_x")[:1], time[:1]), recorded["inproj_out_t0"])
    assert_close(reference.action_in_proj(recorded("inproj_x")[1:], time[1:]), recorded["inproj_out_t0p3"])


def _replay(model: Alpamayo, context: Context, run: Recorded, prompt: int, cached: int) -> None:
    """Feeds the recorded tokens one by one and compares the top-5 logits (bins left out) of every step."""
    first, end = model.masked_tokens
    logits = context.last.logits[:, -1]
    tokens = run("sequences")[:, prompt:]
    for step in range(len(run["gen_logits_raw_top5"])):
        ids = run("gen_logits_raw_top5_ids")[step]
        assert_close(logits.gather(1, ids), run["gen_logits_raw_top5"][step])
        masked = logits.clone()
        masked[:, first:end] = -torch.inf
        assert torch.equal(masked.topk(5).indices, ids)
        if context.length == cached:
            break
        logits = context.verify(tokens[:, step : step + 1]).logits[:, -1]
    while context.length < cached:
        step = context.length - prompt
        context.verify(tokens[:, step : step + 1])
    assert context.length == cached


def _compare_flow(model: Alpamayo, run: Recorded, velocity, history: Recorded, expert) -> None:
    """Expert inputs, first hidden state, every Euler step from its recorded start, and the trajectory."""
    np.testing.assert_array_equal(expert.positions, run["expert_position_ids"])
    rows = len(run["noise"])
    with torch.inference_mode():
        embeds = model.action_in_proj(run("noise"), torch.zeros(rows))
        assert_close(embeds, run["expert_inputs_embeds_step0"])
        assert_close(expert.hidden(run("noise"), torch.zeros(rows)), run["expert_hidden_step0"])
        states, times = run("flow_all_steps"), run("flow_time_steps")
        for step in range(10):
            x = states[:, step]
            after = x + 0.1 * velocity(x, times[step].expand(rows))
            assert_close(after, run["flow_all_steps"][:, step + 1], relative=1e-5)
    xyz, rotation = history("ego_history_xyz")[0], history("ego_history_rot")[0]
    v0 = model.action_space.estimate_v0(xyz, rotation).expand(rows)
    rollout = model.action_space.trajectory_from_action(states[:, -1], v0, xyz[:, -1, 2].expand(rows))
    np.testing.assert_allclose(rollout.xyz, run["pred_xyz"][0, 0], atol=1e-4)
    np.testing.assert_allclose(rollout.rotation, run["pred_rot"][0, 0], atol=1e-5)


def _allowed(expert, length: int) -> np.ndarray:
    rows = expert.positions.shape[1]
    if expert.allowed is None:
        return np.ones((rows, 1, 64, length + 64), dtype=bool)
    return expert.allowed.expand(rows, 1, 64, -1).numpy()


ENDING = Ending(future_start=5062, end_of_text=1026, cot_end=5059)


def _greedy(model: Alpamayo) -> Sampling:
    return Sampling(greedy=True, masked=model.masked_tokens)


def test_a_run_that_stops(reference, record, prefilled):
    run = record("r1_run_B_stop")
    (row,) = decode_autoregressively(prefilled(), _greedy(reference), ENDING, budget=24)
    assert row.tokens == run["sequences"][0, PROMPT:-1].tolist()
    assert row.length == int(run["cache_len"]) and not row.truncated
    context = prefilled()
    _replay(reference, context, run, PROMPT, int(run["cache_len"]))
    expert = reference.velocity(context)
    np.testing.assert_array_equal(_allowed(expert, context.length), run["expert_attn_allowed"])
    _compare_flow(reference, run, expert, record("r1_prefill"), expert)


def test_three_samples_from_one_prefill(reference, record, prefilled):
    run = record("r1_run_C_three_samples")
    rows = decode_autoregressively(prefilled().fork(3), _greedy(reference), ENDING, budget=24)
    for row, expected in zip(rows, run["sequences"], strict=True):
        assert row.tokens == expected[PROMPT:-1].tolist()
    context = prefilled().fork(3)
    _replay(reference, context, run, PROMPT, int(run["cache_len"]))
    expert = reference.velocity(context)
    np.testing.assert_array_equal(_allowed(expert, context.length), run["expert_attn_allowed"])
    _compare_flow(reference, run, expert, record("r1_prefill"), expert)


def test_a_run_that_does_not_stop(reference, record, prefilled):
    """The reference leaves its last token out of the cache but counts its position; we reproduce it on request."""
    run = record("r1_run_A_no_stop")
    context = prefilled()
    _replay(reference, context, run, PROMPT, int(run["cache_len"]))
    first = torch.tensor([run["sequences"].shape[1] + context.rope_delta])
    expert = reference.velocity(context, first_position=first)
    np.testing.assert_array_equal(_allowed(expert, context.length), run["expert_attn_allowed"])
    _compare_flow(reference, run, expert, record("r1_prefill"), expert)
    # Ours closes the chain instead.
    (row,) = decode_autoregressively(prefilled(), _greedy(reference), ENDING, budget=5)
    assert row.tokens == [*run["sequences"][0, PROMPT : PROMPT + 5].tolist(), ENDING.cot_end, ENDING.future_start]
    assert row.truncated and row.length == PROMPT + 7


@pytest.mark.parametrize("form", ["cams", "nav", "cfg_nav"])
def test_version_1_5(form, reference, record, prefilled):
    run, history = record(f"a15_run_{form}"), record("r1_prefill")
    context = prefilled(_fused(reference, history, run("input_ids")))
    prompt, total, cached = run["input_ids"].shape[1], run["sequences"].shape[1], int(run["cache_len"])
    # `cams` misses the stop token: as in run A, the last token's position counts, but it is not in the cache.
    _replay(reference, context, run, prompt, cached)
    stopped = ENDING.future_start in run["sequences"][0, prompt:].tolist()
    first = torch.tensor([(cached if stopped else total) + context.rope_delta])
    expert = reference.velocity(context, first_position=first)
    velocity: flow.Velocity = expert
    np.testing.assert_array_equal(_allowed(expert, cached), run["expert_attn_allowed"])
    if form == "cfg_nav":
        other = prefilled(_fused(reference, history, run("input_ids_no_nav")))
        # The reference's second prefill also holds the token after the stop and masks it.
        other.verify(run("sequences")[:, prompt:])
        unguided = reference.velocity(other, valid=torch.tensor([other.length - 1]))
        np.testing.assert_array_equal(unguided.positions, run["expert_position_ids_unguided"])
        np.testing.assert_array_equal(_allowed(unguided, other.length), run["expert_attn_allowed_unguided"])
        velocity = flow.guided(expert, unguided, weight=1.5)
    _compare_flow(reference, run, velocity, history, expert)


def test_the_tiny_model_end_to_end(tiny, tiny_record):
    patches = ImagePatches(tiny_record("pixel_values"), tiny_record("image_grid_thw"))
    features = tiny.encode_images(patches)
    context = tiny.prefill(tiny_record("fused_ids"), features, patches.grid_thw, extra=32)
    positions, delta = rope_positions(tiny.vlm, tiny_record("fused_ids"), patches.grid_thw)
    np.testing.assert_array_equal(positions, tiny_record["mrope_position_ids"])
    assert delta == int(tiny_record["rope_delta"][0, 0])
    assert_close(context.last.logits[0, 0], tiny_record["prefill_logits_last"])
    greedy, expected = Sampling(greedy=True, masked=tiny.masked_tokens), tiny_record["greedy_logits"]
    usable = np.isfinite(expected)
    logits = context.last.logits[:, -1]
    for step, token in enumerate(tiny_record["greedy_ids"].tolist()):
        assert greedy.choose(logits, step).tolist() == [token]
        assert_close(logits[0].numpy()[usable[step]], expected[step][usable[step]])
        logits = context.verify(torch.tensor([[token]])).logits[:, -1]
    context.crop(130 + 11)  # up to the trajectory's start
    action = tiny.sample_action(tiny.velocity(context), tiny_record("flow_noise"))
    # Ten steps amplify last-digit differences 3e4 times here, so the action is held to 3e-4 relative.
    assert_close(action, tiny_record["sampled_action"], relative=3e-4)
    xyz, rotation = tiny_record("history_xyz")[:1], tiny_record("history_rot")[:1]
    v0 = tiny.action_space.estimate_v0(xyz, rotation)
    rollout = tiny.action_space.trajectory_from_action(action, v0, xyz[:, -1, 2])
    np.testing.assert_allclose(rollout.xyz, tiny_record["trajectory_xyz"], atol=1e-3)
    np.testing.assert_allclose(rollout.rotation, tiny_record["trajectory_rot"], atol=1e-3)


def test_why_the_flow_is_compared_step_by_step(reference, record, prefilled):
    run = record("r1_run_B_stop")
    context = prefilled()
    context.verify(run("sequences")[:, PROMPT:-1])
    velocity = reference.velocity(context)
    ends = [reference.sample_action(velocity, run("noise") + shift) for shift in (0.0, 1e-7)]
    assert (ends[0] - ends[1]).abs().max() > 0.05


def test_tokens_at_once_equal_tokens_one_by_one(record, prefilled):
    tokens = record("r1_run_B_stop")("sequences")[:, PROMPT:]
    one, many = prefilled(), prefilled()
    single = torch.cat([one.verify(token.view(1, 1)).logits for token in tokens[0]], dim=1)
    block = many.verify(tokens, keep=[2, 4])
    assert_close(block.logits, single.numpy(), relative=1e-5)
    assert_close(many.cache.keys[:, :, :, : many.length], one.cache.keys[:, :, :, : one.length].numpy(), relative=1e-5)
    # A rejected block leaves no trace: what follows a crop is what follows the tokens that were kept.
    many.crop(PROMPT + 2)
    assert_close(many.verify(tokens[:, 2:3]).logits[0], single[:, 2].numpy(), relative=1e-5)
    assert {layer: tuple(hidden.shape) for layer, hidden in block.hidden.items()} == {2: (1, 8, 64), 4: (1, 8, 64)}


@torch.inference_mode()
def test_rows_of_different_length_plan_as_if_alone(tiny, tiny_record):
    patches = ImagePatches(tiny_record("pixel_values"), tiny_record("image_grid_thw"))
    context = tiny.prefill(tiny_record("fused_ids"), tiny.encode_images(patches), patches.grid_thw, extra=34)
    # A token that this model writes often stands for the end, so that rows stop at different places.
    ending = Ending(future_start=99, end_of_text=2, cot_end=1214)
    sampling = Sampling(seed=3, temperature=1.0, masked=tiny.masked_tokens)
    forked = context.fork(3)
    rows = decode_autoregressively(forked, sampling, ending, budget=32)
    lengths = torch.tensor([row.length for row in rows])
    assert len(set(lengths.tolist())) > 1
    noise = flow.noise(1, 64, seed=1)
    velocity = tiny.velocity(forked, valid=lengths)
    together = velocity(noise.expand(3, -1, -1), torch.zeros(3))
    for index, row in enumerate(rows):
        context.crop(130)
        context.verify(torch.tensor([row.tokens]))
        alone = tiny.velocity(context)(noise, torch.zeros(1))
        assert_close(together[index : index + 1], alone.numpy(), relative=1e-5)

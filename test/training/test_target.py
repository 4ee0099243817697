"""Training of the target: losses against the inference engine, exact resumption, and that something is learned."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats
from small import SHAPE

from rsd_planner.planner import Planner, PlannerSettings
from rsd_planner.reasoning.sampling import Sampling
from rsd_planner.simulation.cameras import Rig
from rsd_planner.training.clips import read_shard
from rsd_planner.training.cpu import for_training
from rsd_planner.training.losses import TargetLosses, Weights, flow_time, path_error
from rsd_planner.training.mini import save_weights
from rsd_planner.training.recipe import Stage, TargetTraining, batch_indices, learning_rate
from rsd_planner.training.samples import IGNORED, Collator, Recorded, actions
from rsd_planner.training.scoring import ABLATIONS, score
from rsd_planner.training.target import TargetTrainer
from rsd_planner.vla.action_space import ActionSpace
from rsd_planner.vla.checkpoint import Checkpoint
from rsd_planner.vla.prompt import ImageSlot, Prompter
from rsd_planner.vla.vision import ImagePatches


def test_recorded_samples_are_the_shards(data, recorded):
    assert len(recorded) == 8 and len(Recorded(data / "train", limit=3)) == 3
    for index, sample in enumerate(read_shard(data / "train" / "a.tar")):
        assert recorded.samples[index].key == sample.key
        for camera, frames in recorded.frames(index).items():
            np.testing.assert_array_equal(frames, sample.frames[camera])
    scene = recorded.scene(2)
    assert [camera.index for camera in scene.cameras] == [1, 6] and scene.history.xyz.shape == (16, 3)
    assert [s.key for s in recorded.spread(3).samples] == [recorded.samples[index].key for index in (0, 4, 7)]
    assert len(recorded.spread(100)) == 8 and len(Recorded(data / "train", data / "validation")) == 12
    with pytest.raises(ValueError, match=r"holds no shards"):
        Recorded(data)


def test_the_tokenizer_writes_what_it_reads(fresh, recorded):
    _, _, prompter = fresh
    for sample in recorded.samples:
        tokens = prompter.encode(sample.text)
        assert "".join(prompter.strings(tokens)) == sample.text and len(tokens) < len(sample.text) / 2
    assert prompter.encode("<|cot_end|>") == [prompter.token_id("cot_end")]


def test_a_checkpoint_of_the_public_layout(fresh):
    directory, model, _ = fresh
    save_weights(model, directory)
    checkpoint = Checkpoint.open(directory)
    checkpoint.check()
    loaded = checkpoint.load(dtype=torch.float32)
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(loaded.state_dict()[name], value, rtol=8e-3, atol=1e-6)


def test_actions_drive_the_experts_way(recorded, fresh):
    _, model, _ = fresh
    space = model.action_space
    found = actions(recorded.samples, space)
    assert abs(float(found.mean())) < 0.1 and float(found.std()) == pytest.approx(1.0, abs=0.1)
    for sample, action in zip(recorded.samples, found, strict=True):
        driven = space.trajectory_from_action(action.double(), torch.tensor(sample.speed_mps), torch.tensor(0.0))
        assert np.abs(driven.xyz.numpy()[:, :2] - sample.future[:, :2]).max() < 0.6


@pytest.mark.parametrize("part", [0, 1], ids=["acceleration", "curvature"])
def test_the_path_error_is_how_far_a_roll_out_goes_astray(part):
    """Against roll-outs of the action space: a small error of the actions on a straight road at 9 m/s."""
    space, error = ActionSpace(accel_mean=0.0, curvature_mean=0.0), torch.zeros(1, 64, 2, dtype=torch.float64)
    error[0, :, part] = 2e-2 * torch.sin(torch.arange(64) / 9.0)
    right, wrong = (
        space.trajectory_from_action(action, torch.tensor([9.0]), torch.tensor([0.0]))
        for action in (torch.zeros_like(error), error)
    )
    astray = [wrong.speed_mps - right.speed_mps, *(wrong.xyz - right.xyz)[..., :2].unbind(-1)]
    expected = sum(0.5 * float(part.square().mean()) for part in astray)
    found = path_error(error, torch.full((1, 64), 9.0, dtype=torch.float64), space)
    assert 1e-4 < expected == pytest.approx(float(found), rel=0.06)


def test_a_path_error_grows_in_proportion_beyond_a_metre():
    error = torch.zeros(1, 64, 2)
    error[..., 0] = 30.0
    once, twice = (float(path_error(scale * error, torch.full((1, 64), 9.0), ActionSpace())) for scale in (1.0, 2.0))
    assert twice == pytest.approx(2.0 * once, rel=0.02)


def test_losses_are_those_of_the_engine_that_drives(fresh, recorded):
    """Batches of rows of different lengths against the planner's own prefill, verify and expert, row by row."""
    _, model, prompter = fresh
    collator, losses = Collator(recorded, model, prompter), TargetLosses(model)
    batch = collator([0, 3, 5])
    assert len(set(batch.lengths.tolist())) > 1
    generator = torch.Generator().manual_seed(3)
    noise, time = torch.randn(batch.action.shape, generator=generator), torch.tensor([0.1, 0.5, 0.9])
    with torch.no_grad():
        found = losses(batch, noise[None], time[None], Weights(words=1.0, flow=1.0))
    words, flow, right = [], [], []
    per_row = len(batch.grid) // 3
    for row in range(3):
        patches = len(batch.pixels) // 3
        images = ImagePatches(
            batch.pixels[row * patches : (row + 1) * patches], batch.grid[row * per_row : (row + 1) * per_row]
        )
        said = batch.labels[row][batch.labels[row] != IGNORED]
        prompt = batch.tokens[row : row + 1, : batch.prompt_length]
        context = model.prefill(prompt, model.encode_images(images), images.grid_thw, extra=len(said))
        first = context.last.logits
        logits = torch.cat([first, context.verify(said[None]).logits[:, :-1]], dim=1)[0].float()
        words.append(torch.nn.functional.cross_entropy(logits, said, reduction="none"))
        right += (logits.argmax(-1) == said).float().tolist()
        mixed = time[row] * batch.action[row] + (1 - time[row]) * noise[row]
        with torch.inference_mode():
            velocity = model.velocity(context)(mixed[None], time[row : row + 1])[0]
        flow.append((velocity - (batch.action[row] - noise[row])) ** 2)
    assert float(found.words) == pytest.approx(float(torch.cat(words).mean()), abs=1e-5)
    assert float(found.right) == pytest.approx(np.mean(right))
    assert float(found.flow) == pytest.approx(float(torch.stack(flow).mean()), abs=1e-5)


def test_the_layers_of_a_training_compute_the_same(tiny_directory):
    """Pictures of one size in one batch and of two sizes the usual way; a prompt, tokens behind it, and the expert."""
    usual, found = (Checkpoint.open(tiny_directory).load(dtype=torch.float32) for _ in range(2))
    for_training(found)
    random = np.random.default_rng(0)
    one = [random.integers(0, 255, (96, 160, 3), dtype=np.uint8) for _ in range(3)]
    two = [one[0], random.integers(0, 255, (160, 96, 3), dtype=np.uint8)]
    prompter = Prompter.from_directory(tiny_directory, usual.config)
    for pictures in (one, two):
        patches = usual.image_processor(pictures)
        said = []
        for model in (usual, found):
            features = model.encode_images(patches)
            slots = [ImageSlot(1, k, int(grid.prod()) // 4) for k, grid in enumerate(patches.grid_thw)]
            prompt = prompter.question(slots, "What is there?")
            context = model.prefill(prompt, features, patches.grid_thw, extra=4)
            first = context.last.logits
            later = context.verify(torch.tensor([[5, 6, 7]])).logits
            with torch.inference_mode():
                velocity = model.velocity(context)(torch.ones(1, 64, 2), torch.tensor([0.3]))
            said.append([features.embeds, *features.deepstack, first, later, velocity])
        for a, b in zip(*said, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-4)


def test_new_weights_keep_what_passes_through_in_size(fresh):
    _, model, _ = fresh
    for name, module in model.vlm.named_modules():
        if isinstance(module, torch.nn.Linear) and min(module.weight.shape) >= 32:
            size = float((module.weight @ torch.randn(module.weight.shape[1], 200)).std())
            adds = name.endswith(("o_proj", "down_proj", "attn.proj", "mlp.linear_fc2"))
            assert size == pytest.approx(0.5 if adds else 1.0, rel=0.15), name  # two layers: 1 / sqrt(4)


def test_gradients_go_where_they_should(fresh, recorded, data):
    _, model, prompter = fresh
    rig = Rig.from_yaml(data / "rig.yaml")
    batch = Collator(recorded, model, prompter, rig)([1, 2], sights=True)
    noise, time = torch.zeros_like(batch.action), torch.tensor([0.3, 0.6])
    backbone, expert = model.vlm.model.language_model.layers[0].mlp.up_proj.weight, model.action_out_proj.weight
    for words, flow, motion, detach, reached in (
        (1.0, 0.0, 0.0, True, (True, False)), (0.0, 1.0, 0.0, True, (False, True)),
        (0.0, 1.0, 0.0, False, (True, True)), (0.0, 0.0, 1.0, True, (True, False)),
    ):  # fmt: skip
        model.zero_grad()
        weights = Weights(words, flow, motion=motion, detach=detach)
        weights.total(TargetLosses(model)(batch, noise[None], time[None], weights)).backward()
        found = tuple(weight.grad is not None and bool(weight.grad.abs().sum() > 0) for weight in (backbone, expert))
        assert found == reached
    model.zero_grad()


def test_times_of_the_flow_have_the_public_distribution():
    times = flow_time((20_000,), torch.Generator().manual_seed(0)).numpy()
    assert stats.kstest(1.0 - times / 0.999, stats.beta(1.5, 1.0).cdf).pvalue > 0.01


def test_every_epoch_sees_every_sample_once():
    seen = [index for step in range(21) for index in batch_indices(12, 4, step, seed=5)]
    for epoch in range(7):
        assert sorted(seen[12 * epoch : 12 * (epoch + 1)]) == list(range(12))
    assert seen[:12] != seen[12:24]


def test_the_learning_rate_rises_and_falls():
    stage = Stage("a", steps=100, learning_rate=1e-3, warm_up=10)
    rates = [learning_rate(stage, step) for step in range(100)]
    assert rates[0] == pytest.approx(1e-4) and max(rates) == rates[9] == pytest.approx(1e-3)
    assert all(b <= a for a, b in itertools.pairwise(rates[10:]))
    assert rates[-1] == pytest.approx(1e-4, rel=0.02)


def _run(data, out, **more) -> TargetTraining:
    stages = more.pop("stages", None) or (
        Stage("reasoning", 3, 1e-3, batch=4, warm_up=1),
        Stage("joint", 3, 1e-3, flow=1.0, batch=4, warm_up=1),
    )
    return TargetTraining(
        (data / "train",), data / "validation", out, stages, SHAPE,
        **({"precision": "no", "evaluate_every": 100, "evaluate_on": 2, "ema": 0.5} | more),
    )  # fmt: skip


def test_an_interrupted_run_ends_as_an_uninterrupted_one(data, tmp_path, monkeypatch):
    whole = TargetTrainer(_run(data, tmp_path / "whole"))
    whole.train()

    class Interrupted(Exception):
        pass

    broken = TargetTrainer(_run(data, tmp_path / "broken", save_minutes=0.0))
    step = broken._train_step

    def three_steps(batch):
        if broken._step == 4:
            raise Interrupted
        return step(batch)

    monkeypatch.setattr(broken, "_train_step", three_steps)
    with pytest.raises(Interrupted):
        broken.train()
    resumed = TargetTrainer(_run(data, tmp_path / "broken"))
    assert resumed._step == 4
    resumed.train()
    one, two = (Checkpoint.open(tmp_path / name / "checkpoint").load() for name in ("whole", "broken"))
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name


def test_it_learns_its_samples_by_heart(data, tmp_path):
    """Words and flow fall far, and the planner says and drives what it was taught."""
    run = _run(data, tmp_path, ema=0.9, stages=(Stage("joint", 150, 3e-3, flow=1.0, batch=8, warm_up=10),))
    trainer = TargetTrainer(run)
    trainer.train()
    checkpoint = Checkpoint.open(tmp_path / "checkpoint")
    model = checkpoint.load(dtype=torch.float32)
    figures = score(model, Prompter.from_directory(checkpoint.directory, model.config), Recorded(data / "train"))
    assert figures["coc_parsed"] == 1.0 and figures["coc_cause"] >= 0.8
    assert figures["ade_3s"] < 1.0
    recorded, prompter = Recorded(data / "train"), Prompter.from_directory(checkpoint.directory, model.config)
    planner = Planner(model, prompter, PlannerSettings(sampling=Sampling(greedy=True), token_budget=48))
    own = planner.plan(recorded.scene(0))
    assert not own.reasoning.truncated
    # Told its own words, it drives the same way; told others, another.
    told = planner.plan(recorded.scene(0), own.reasoning.text)
    assert told.reasoning.ids == own.reasoning.ids and {int(source) for source in told.reasoning.sources} == {3}
    # The flow amplifies last-digit differences of the cache (its highest frequency is 100).
    np.testing.assert_allclose(told.trajectory.xyz[:20], own.trajectory.xyz[:20], atol=0.1)
    nothing = planner.plan(recorded.scene(0), "")
    assert nothing.reasoning.text == "" and len(nothing.reasoning.ids) == 2
    assert np.abs(nothing.trajectory.xyz - own.trajectory.xyz).max() > 1e-3
    figures = {name: score(model, prompter, recorded, ablation=name) for name in ABLATIONS}
    assert figures["true CoC"]["coc_decision"] == 1.0 and figures["no CoC"]["coc_parsed"] == 0.0
    assert len({round(figure["ade_3s"], 6) for figure in figures.values()}) >= 4  # each takes something away
    with pytest.raises(ValueError, match="ablation 'sound' is not one of own CoC"):
        score(model, prompter, recorded, ablation="sound")


def test_runs_that_cannot_be_are_refused(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("train: a\nvalidation: b\nout: c\nstages: [{name: x, steps: 0, learning_rate: 1.0e-3}]\n")
    with pytest.raises(ValueError, match="stage x: steps, batch and learning_rate must be positive"):
        TargetTraining.from_yaml(path)
    path.write_text("train: a\nvalidation: b\nout: c\nspeed: 3\nstages: []\n")
    with pytest.raises(ValueError, match=r"run.yaml: .*speed"):
        TargetTraining.from_yaml(path)
    with pytest.raises(ValueError, match="trains nothing"):
        Stage("y", 1, 1e-3, words=0.0)

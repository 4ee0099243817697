"""The data set: geometry of samples, repeatable shards, resumption, and checks that find what is wrong."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil

import numpy as np
import pytest
import yaml

from rsd_planner.simulation import expert
from rsd_planner.simulation.cameras import Renderer, Rig
from rsd_planner.simulation.chain_of_causation import meaning
from rsd_planner.simulation.scenarios import FAMILIES
from rsd_planner.simulation.snapshot import restore
from rsd_planner.simulation.wording import parse
from rsd_planner.training import clips, data_set
from rsd_planner.training.clips import clip_source, read_shard, record_clip, write_shard

CAMERA = {"name": "front", "index": 1, "position": [1.8, 0.0, 1.6], "yaw_deg": 0.0, "pitch_deg": 2.0}


@pytest.fixture(scope="module")
def rig_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rig") / "rig.yaml"
    path.write_text(yaml.dump({"cameras": [CAMERA | {"field_of_view_deg": 90.0}], "resolution": [96, 64]}))
    return path


@pytest.fixture
def _short_clips(monkeypatch):
    monkeypatch.setattr(clips, "CLIP_S", 2.5)  # two samples a clip


@pytest.fixture(scope="module")
def samples(rig_file):
    renderer = Renderer(Rig.from_yaml(rig_file))
    made = list(record_clip("train", list(FAMILIES).index("follow"), renderer))
    renderer.close()
    return made


def test_some_samples_are_those_of_the_whole_clip(rig_file, samples):
    renderer = Renderer(Rig.from_yaml(rig_file))
    some = list(record_clip("train", list(FAMILIES).index("follow"), renderer, wanted={0, 7, 8}))
    renderer.close()
    assert len(samples) == clips.samples_of_a_clip() and [one.key for one in some] == [
        samples[k].key for k in (0, 7, 8)
    ]
    for one, number in zip(some, (0, 7, 8), strict=True):
        np.testing.assert_array_equal(one.history, samples[number].history)
        for made, known in zip(one.frames["front"], samples[number].frames["front"], strict=True):
            np.testing.assert_array_equal(made, known)


def test_disturbed_clips_wander_and_their_labels_lead_back(rig_file):
    """In a disturbed clip many samples lie beside the middle; the plan ends in it, as the chain says."""
    renderer = Renderer(Rig.from_yaml(rig_file))
    clip = len(FAMILIES) + list(FAMILIES).index("green light")
    assert clips.is_disturbed("train", clip)
    made = list(record_clip("train", clip, renderer))
    calm = list(record_clip("train", clip - len(FAMILIES), renderer))
    renderer.close()

    def offsets(samples):
        """Of the car, and of the end of its plan, from the lane's middle (m)."""
        worlds = [restore(sample.world) for sample in samples]
        now = [world.ego_place()[1] for world in worlds]
        ends = []
        for sample, world in zip(samples, worlds, strict=True):
            x, y, ego = *sample.future[-1, :2], world.ego
            cos, sin = np.cos(ego.yaw_rad), np.sin(ego.yaw_rad)
            ends.append(world.road.project(ego.x_m + cos * x - sin * y, ego.y_m + sin * x + cos * y)[1])
        return np.abs(now), np.abs(ends)

    now, ends = offsets(made)
    assert np.mean(now > 0.4) > 0.25 and now.max() < 1.7 and ends.max() < 0.1
    assert {sample.meaning.lateral for sample in made} == {"keep lane"}
    assert offsets(calm)[0].max() < 0.3


def test_families_take_turns():
    sources = [clip_source(clip) for clip in range(2 * len(FAMILIES))]
    assert [family for family, _ in sources] == list(FAMILIES) * 2
    assert {seed for _, seed in sources} == {0, 1}


def test_history_and_future_are_one_drive(samples):
    assert [round(b.time_s - a.time_s, 6) for a, b in itertools.pairwise(samples)] == [0.5] * 20
    for before, after in itertools.pairwise(samples):
        assert before.history.shape == (16, 3) and before.future.shape == (64, 3)
        np.testing.assert_allclose(before.history[-1], 0.0, atol=1e-9)
        # Where the car was half a second later, seen from the later moment, is the origin of its own past.
        x, y, yaw = after.history[-6]  # the earlier t0 in the later base_link
        cos, sin = np.cos(yaw), np.sin(yaw)
        came = np.array([-x * cos - y * sin, x * sin - y * cos])  # the later t0 in the earlier base_link
        # The expert replans, so the drive is not exactly the first plan, but near it for that time.
        assert np.linalg.norm(came - before.future[4, :2]) < 0.2
        speed = np.linalg.norm(np.diff(before.future[:, :2], axis=0), axis=1) / 0.1
        np.testing.assert_allclose(speed, (before.future_speed_mps[1:] + before.future_speed_mps[:-1]) / 2, atol=0.05)


def test_text_and_state_say_the_same(samples):
    for sample in samples:
        assert parse(sample.text) == sample.meaning
        assert meaning(restore(sample.world)) == sample.meaning
        assert sample.speed_mps == pytest.approx(
            np.linalg.norm(np.diff(sample.history[-2:, :2], axis=0)) / 0.1, abs=0.2
        )


def test_frames_are_four_different_moments(samples):
    for sample in samples:
        assert list(sample.frames) == ["front"] and len(sample.frames["front"]) == 4
        assert all(frame.shape == (64, 96, 3) and frame.dtype == np.uint8 for frame in sample.frames["front"])
        if sample.speed_mps > 2.0:
            assert all(np.any(a != b) for a, b in itertools.pairwise(sample.frames["front"]))


@pytest.mark.usefixtures("_short_clips")
def test_a_shard_gives_back_what_went_in(tmp_path, rig_file):
    rig = Rig.from_yaml(rig_file)
    assert write_shard(tmp_path / "a.tar", "train", range(2), rig) == 4
    write_shard(tmp_path / "b.tar", "train", range(2), rig)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    renderer = Renderer(rig)
    originals = [sample for clip in range(2) for sample in record_clip("train", clip, renderer)]
    renderer.close()
    for found, original in zip(read_shard(tmp_path / "a.tar"), originals, strict=True):
        for field in dataclasses.fields(found):
            a, b = getattr(found, field.name), getattr(original, field.name)
            if field.name == "frames":
                error = np.abs(np.array(a["front"], dtype=int) - np.array(b["front"], dtype=int)).mean()
                assert error < 6.0  # JPEG
            elif isinstance(b, np.ndarray):
                np.testing.assert_allclose(a, b, atol=1e-5)
            else:
                assert a == b, field.name
    assert not list(tmp_path.glob("*.partial"))


def test_an_interrupted_shard_is_not_there(tmp_path, rig_file, monkeypatch):
    def fails(*_):
        raise RuntimeError("out of luck")
        yield

    monkeypatch.setattr(clips, "record_clip", fails)
    with pytest.raises(RuntimeError, match="out of luck"):
        write_shard(tmp_path / "a.tar", "train", range(1), Rig.from_yaml(rig_file))
    assert not (tmp_path / "a.tar").exists()


@pytest.mark.usefixtures("_short_clips")
def test_damaged_shards_are_named(tmp_path, rig_file):
    path = tmp_path / "a.tar"
    write_shard(path, "train", range(1), Rig.from_yaml(rig_file))
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"a.tar is not a readable shard"):
        list(read_shard(path))


def test_a_data_set_resumes_and_keeps_to_itself(tmp_path, rig_file, monkeypatch):
    monkeypatch.setattr(data_set, "CLIPS_PER_SHARD", 1)
    out = tmp_path / "train"
    card = data_set.make("train", 2, out, rig_file, workers=2)
    assert card["samples"] == 42 and card["family"] == {"free curve": 21, "follow": 21} and card["made_now"] == 2
    first, second = sorted(out.glob("*.tar"))
    before = first.stat().st_mtime_ns
    second.unlink()
    assert data_set.make("train", 2, out, rig_file, workers=1)["made_now"] == 1
    assert first.stat().st_mtime_ns == before and second.exists()
    with pytest.raises(ValueError, match="holds a data set with another split"):
        data_set.make("validation", 2, out, rig_file, workers=1)
    assert json.loads((out / "card.json").read_text())["split"] == "train"

    assert data_set.leaks([out]) == []
    other = tmp_path / "copy"
    other.mkdir()
    shutil.copy(first, other / "validation-000000.tar")
    found = data_set.leaks([out, other])
    assert len(found) == 1 and str(out) in found[0] and str(other) in found[0]


def test_what_cannot_be_made_is_refused(tmp_path, rig_file):
    with pytest.raises(ValueError, match="split 'test' is not one of"):
        data_set.make("test", 1, tmp_path, rig_file, 1)
    with pytest.raises(ValueError, match="--clips must be at least 1, not 0"):
        data_set.make("train", 0, tmp_path, rig_file, 1)
    with pytest.raises(ValueError, match="holds no shards"):
        data_set.describe(tmp_path)


@pytest.mark.usefixtures("_short_clips")
def test_who_is_at_the_wheel_brings_the_car_where_it_will(rig_file):
    """It sees what the samples hold; the car goes its way; the labels are still the expert's, who would come back."""
    seen = []

    class Swerve:
        begun = 0

        def begin(self) -> None:
            self.begun += 1

        def __call__(self, world, history, frames):
            seen.append((world.time_s, history, frames["front"]))
            plan = expert.plan(world)
            aside = dataclasses.replace(plan, y_m=plan.y_m + np.linspace(0.0, 9.0, 64), yaw_rad=plan.yaw_rad + 0.15)
            return aside.reference(world)

    swerve, renderer = Swerve(), Renderer(Rig.from_yaml(rig_file))
    clip = list(FAMILIES).index("free curve")
    own = list(record_clip("train", clip, renderer, swerve))
    expert_own = list(record_clip("train", clip, renderer))
    renderer.close()
    assert swerve.begun == 1 and [round(10 * time) for time, _, _ in seen] == list(range(15, 25))
    for sample in own:
        _, history, frames = next(entry for entry in seen if entry[0] == sample.time_s)
        np.testing.assert_array_equal(history, sample.history)
        np.testing.assert_array_equal(frames, sample.frames["front"])
    world = restore(own[-1].world)
    assert world.ego_place()[1] - restore(expert_own[-1].world).ego_place()[1] > 0.1
    assert own[-1].future[-1, 1] < expert_own[-1].future[-1, 1] - 0.05


def test_a_checkpoint_at_the_wheel(tmp_path, monkeypatch, tiny_directory):
    """DAgger's clips: made in processes, named in the card, never mixed with the expert's."""
    path, out = tmp_path / "rig.yaml", tmp_path / "dagger"
    cameras = [CAMERA | {"name": "front_wide", "field_of_view_deg": 90.0}]
    path.write_text(yaml.dump({"cameras": cameras, "resolution": [96, 64]}))
    monkeypatch.setattr(clips, "CLIP_S", 2.5)
    card = data_set.make("train", 1, out, path, workers=1, first=15, model=tiny_directory)
    assert card["driver"] == str(tiny_directory) and card["samples"] == 2 and card["family"] == {"follow": 2}
    (sample, _) = read_shard(out / "train-000015-000015.tar")
    assert (sample.family, sample.seed) == clip_source(15) and meaning(restore(sample.world)) == sample.meaning
    with pytest.raises(ValueError, match="holds a data set with another driver"):
        data_set.make("train", 1, out, path, workers=1, first=15)

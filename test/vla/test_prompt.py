"""Prompts with the public tokenizer: every id and position of the real-size forms."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import DATA
from tokenizers import AddedToken, Tokenizer, normalizers
from transformers.convert_slow_tokenizer import TikTokenConverter

from rsd_planner.vla.backbone import rope_positions
from rsd_planner.vla.config import AlpamayoConfig, CheckpointError
from rsd_planner.vla.prompt import ImageSlot, Prompter, extend_tokenizer

# Qwen2's pre-tokenization and the tokens that Qwen3 adds to its 151,643 ranks, in order (public facts).
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ADDED = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
]
_TEXTS = json.loads((DATA / "alpamayo_reference" / "real_tokens.json").read_text())
_CAMERAS = (0, 1, 2, 6)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    spec = find_spec("dashscope")  # ships the ranks; the package itself is not imported
    assert spec is not None and spec.submodule_search_locations
    ranks = Path(spec.submodule_search_locations[0]) / "resources" / "qwen.tiktoken"
    base = TikTokenConverter(vocab_file=str(ranks), pattern=_PATTERN).converted()
    base.normalizer = normalizers.NFC()
    base.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in _ADDED])
    return extend_tokenizer(base, 4000)


@pytest.fixture(scope="module")
def public_config(tmp_path_factory):
    """The public configuration: that of the recorded tiny model with the public ids."""

    def make(labels: bool) -> AlpamayoConfig:
        source = DATA / "alpamayo_reference" / "checkpoint"
        config = json.loads((source / "config.json").read_text())
        backbone = json.loads((source / "vlm_config.json").read_text())
        config |= {
            "vocab_size": 155697,
            "traj_token_start_idx": 151669,
            "traj_token_ids": _TEXTS["traj_token_ids"],
            "model_type": "alpamayo1_5" if labels else "alpamayo_r1",
        }
        backbone |= {
            "image_token_id": 151655,
            "video_token_id": 151656,
            "vision_start_token_id": 151652,
            "vision_end_token_id": 151653,
        }
        directory = tmp_path_factory.mktemp("config")
        (directory / "config.json").write_text(json.dumps(config))
        (directory / "vlm_config.json").write_text(json.dumps(backbone))
        return AlpamayoConfig.from_directory(directory)

    return make


def test_the_vocabulary_is_the_public_one(tokenizer):
    assert tokenizer.get_vocab_size() == _TEXTS["len_tokenizer"]
    for name, token in _TEXTS["special_token_ids"].items():
        assert tokenizer.token_to_id(f"<|{name}|>") == token
    assert tokenizer.token_to_id("<i3999>") == _TEXTS["i3999"]
    sentences = json.loads((DATA / "alpamayo_reference" / "real_text_ids.json").read_text())
    for text, ids in sentences.items():
        assert tokenizer.encode(text).ids == ids
        assert tokenizer.decode(ids) == text


def _slots(cameras: tuple[int, ...]) -> list[ImageSlot]:
    return [ImageSlot(camera, frame, 180) for camera in cameras for frame in range(4)]


@pytest.mark.parametrize(
    ("form", "labels", "cameras", "route"),
    [
        ("r1", False, _CAMERAS, None),
        ("a15_cams", True, _CAMERAS, None),
        ("a15_nav", True, _CAMERAS, "Turn left onto De La Cruz Boulevard in 40m"),
        ("a15_two_cams", True, (1, 6), None),
        ("a15_vqa", True, _CAMERAS, None),
    ],
)
def test_prompt_ids_and_positions(form, labels, cameras, route, tokenizer, public_config, record, reference):
    recorded = record("real_prompt")
    config = public_config(labels)
    prompter = Prompter(config, tokenizer)
    if form == "a15_vqa":
        found = prompter.question(_slots(cameras), "What is the traffic light state?")[0]
        expected = recorded(f"{form}_input_ids").long()
    else:
        bins = torch.arange(48)
        found = prompter.planning(_slots(cameras), bins, route)[0]
        expected = recorded(f"{form}_input_ids").long().clone()
        expected[expected == config.history_token] = 154669 + bins
    assert torch.equal(found, expected)
    # Positions come from ids and grids alone: the recorded model's method with the public image id.
    vlm = SimpleNamespace(config=config.vlm, model=reference.vlm.model)
    positions, delta = rope_positions(vlm, found.unsqueeze(0), recorded(f"{form}_grid"))
    np.testing.assert_array_equal(positions[:, 0], recorded[f"{form}_position_ids"])
    assert delta == int(recorded[f"{form}_rope_delta"][0, 0])


def test_the_tiny_prompt(tiny, tiny_directory, tiny_record):
    prompter = Prompter.from_directory(tiny_directory, tiny.config)
    slots = [ImageSlot(camera, 0, 6) for camera in _CAMERAS]
    bins = tiny.config.history_tokenizer.encode(tiny_record("history_xyz")[0])
    assert torch.equal(prompter.planning(slots, bins), tiny_record("fused_ids"))
    assert prompter.planning_text(slots) == (tiny_directory / "prompt.txt").read_text()


def test_reading_the_answer(tokenizer, public_config):
    prompter = Prompter(public_config(False), tokenizer)
    sentence = "Stop for the red traffic light."
    ids = tokenizer.encode(sentence).ids
    for ending in ([155678, 155681], [155681], [151645], []):
        assert prompter.chain_of_causation(ids + ending) == sentence
    assert "".join(prompter.strings([*ids, 155678])) == sentence + "<|cot_end|>"


def test_misuse_is_named(tokenizer, public_config, tiny):
    prompter = Prompter(public_config(True), tokenizer)
    with pytest.raises(ValueError, match="camera index 9"):
        prompter.planning(_slots((9,)), torch.arange(48))
    with pytest.raises(ValueError, match="47"):
        prompter.planning(_slots((1,)), torch.arange(47))
    with pytest.raises(CheckpointError, match="traj_future_start"):
        Prompter(tiny.config, tokenizer)

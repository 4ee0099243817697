"""Text and token ids of the prompt, in the forms of the public models (R1 and 1.5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer
from torch import Tensor

from rsd_planner.vla.config import AlpamayoConfig, CheckpointError, base_model_file

CAMERA_NAMES = {
    0: "Front left camera",
    1: "Front camera",
    2: "Front right camera",
    3: "Rear left camera",
    4: "Rear camera",
    5: "Rear right camera",
    6: "Front telephoto camera",
}
"""Camera indices of the public model and their names in the prompt of version 1.5."""

# In the order in which they were added to the vocabulary. <|image_pad|> is in the base vocabulary already.
# fmt: off
_SPECIAL_TOKENS = (
    "prompt_start", "prompt_end", "image_start", "image_pre_tkn", "image_end", "traj_history_start",
    "traj_history_pre_tkn", "traj_history_end", "cot_start", "cot_end", "meta_action_start", "meta_action_end",
    "traj_future_start", "traj_future_pre_tkn", "traj_future_end", "traj_history", "traj_future", "vectorized_wm",
    "vectorized_wm_start", "vectorized_wm_end", "vectorized_wm_pre_tkn", "route_start", "route_pad", "route_end",
    "question_start", "question_end", "answer_start", "answer_end",
)
# fmt: on

_SYSTEM = "You are a driving assistant that generates safe and accurate actions."
_INSTRUCTION = "output the chain-of-thought reasoning of the driving process, then output the future trajectory."


def extend_tokenizer(base: Tokenizer, trajectory_vocab_size: int) -> Tokenizer:
    """Adds the trajectory bins and the special tokens to a base tokenizer, in place, in the public order."""
    bins = [f"<i{k}>" for k in range(trajectory_vocab_size)]
    names = bins + [f"<|{name}|>" for name in _SPECIAL_TOKENS]
    base.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    return base


@dataclass(frozen=True)
class ImageSlot:
    """One picture's place in the prompt: which camera, which of its frames, how many tokens."""

    camera: int
    frame: int
    tokens: int


class Prompter:
    """Writes prompts for one checkpoint and reads its answers."""

    def __init__(self, config: AlpamayoConfig, tokenizer: Tokenizer) -> None:
        self._config = config
        self._tokenizer = tokenizer
        for name, expected in (
            ("traj_future_start", config.future_start_token),
            ("traj_history_start", config.history_start_token),
            ("traj_history", config.history_token),
            ("image_pad", config.vlm.image_token_id),
        ):
            found = tokenizer.token_to_id(f"<|{name}|>")
            if found != expected:
                raise CheckpointError(f"the tokenizer's <|{name}|> is {found}, the checkpoint's is {expected}")
        self._encode = lru_cache(maxsize=16)(self._encode_text)

    @classmethod
    def from_directory(cls, directory: Path, config: AlpamayoConfig) -> Prompter:
        """With the checkpoint's own tokenizer.json, else its base model's with the public tokens added."""
        path = base_model_file(directory, config.vlm_name_or_path, "tokenizer.json", "tokenizer.json")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise CheckpointError(f"{path} is not a tokenizer: {error}") from error
        if tokenizer.token_to_id("<|traj_future_start|>") is None:
            extend_tokenizer(tokenizer, config.trajectory_vocab_size)
        return cls(config, tokenizer)

    def token_id(self, name: str) -> int:
        """Id of the special token <|name|>; CheckpointError if the vocabulary lacks it."""
        token = self._tokenizer.token_to_id(f"<|{name}|>")
        if token is None:
            raise CheckpointError(f"the tokenizer has no <|{name}|>")
        return int(token)

    def planning(self, images: Sequence[ImageSlot], history_bins: Tensor, route: str | None = None) -> Tensor:
        """Prompt [1, L] that asks for a chain of causation and a trajectory.

        images in prompt order (by camera, then time); history_bins [3 H] from the HistoryTokenizer;
        route is a navigation instruction (version 1.5).
        """
        tokens = self._encode(self.planning_text(images, route)).clone()
        places = tokens == self._config.history_token
        if int(places.sum()) != history_bins.numel():
            raise ValueError(f"the prompt has room for {int(places.sum())} history bins, got {history_bins.numel()}")
        tokens[places] = self._config.history_token_start + history_bins.cpu()
        return tokens.unsqueeze(0)

    def question(self, images: Sequence[ImageSlot], question: str) -> Tensor:
        """Prompt [1, L] of a visual question (version 1.5)."""
        return self._encode(self.question_text(images, question)).clone().unsqueeze(0)

    def planning_text(self, images: Sequence[ImageSlot], route: str | None = None) -> str:
        """The text behind `planning`, with history placeholders."""
        history = "<|traj_history|>" * self._config.tokens_per_history
        navigation = f"<|route_start|>{route}<|route_end|>" if route else ""
        user = (
            f"{self._images_text(images)}<|traj_history_start|>{history}<|traj_history_end|>{navigation}{_INSTRUCTION}"
        )
        return _chat(user, "<|cot_start|>")

    def question_text(self, images: Sequence[ImageSlot], question: str) -> str:
        """The text behind `question`."""
        return _chat(f"{self._images_text(images)}<|question_start|>{question}<|question_end|>", "<|answer_start|>")

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def strings(self, tokens: Iterable[int]) -> list[str]:
        """The text of each token by itself (a multi-byte character split over tokens shows as U+FFFD)."""
        return [self._tokenizer.decode([token], skip_special_tokens=False) for token in tokens]

    def chain_of_causation(self, tokens: Sequence[int]) -> str:
        """The text that generated tokens hold before <|cot_end|> (or the first other special end)."""
        ends = {self.token_id("cot_end"), self._config.future_start_token, self.token_id("im_end")}
        body: list[int] = []
        for token in tokens:
            if token in ends:
                break
            body.append(token)
        return str(self._tokenizer.decode(body, skip_special_tokens=True)).strip()

    def _images_text(self, images: Sequence[ImageSlot]) -> str:
        parts, last_camera = [], None
        for image in images:
            if self._config.camera_labels:
                if image.camera not in CAMERA_NAMES:
                    raise ValueError(f"camera index {image.camera} is not one of {sorted(CAMERA_NAMES)}")
                if image.camera != last_camera:
                    parts.append(f"{CAMERA_NAMES[image.camera]}: ")
                parts.append(f"frame {image.frame} ")
            last_camera = image.camera
            parts.append(f"<|vision_start|>{'<|image_pad|>' * image.tokens}<|vision_end|>")
        return "".join(parts)

    def _encode_text(self, text: str) -> Tensor:
        return torch.tensor(self.encode(text))


def _chat(user: str, opening: str) -> str:
    return (
        f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n{opening}"
    )

"""The configuration of a checkpoint of the public Alpamayo layout.

Class paths in the file (`_target_`) are data: their last part is compared with the classes this
package implements, and nothing named there is ever imported.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from transformers import Qwen3VLConfig
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig, Qwen3VLVisionConfig

from rsd_planner.vla.action_space import ActionSpace
from rsd_planner.vla.trajectory_tokens import HistoryTokenizer

# Bounds of the public base model's image processor, for a checkpoint that names none.
_DEFAULT_MIN_PIXELS = 65536
_DEFAULT_MAX_PIXELS = 16777216

_IMPLEMENTED = {
    "action_space_cfg": "UnicycleAccelCurvatureActionSpace",
    "action_in_proj_cfg": "PerWaypointActionInProjV2",
    "action_out_proj_cfg": "Linear",
    "diffusion_cfg": "FlowMatching",
    "hist_traj_tokenizer_cfg": "DeltaTrajectoryTokenizer",
    "traj_tokenizer_cfg": "DiscreteTrajectoryTokenizer",
}
_MODEL_TYPES = ("alpamayo_r1", "alpamayo1_5")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says what is wrong with which file."""


@dataclass(frozen=True)
class AlpamayoConfig:
    """What the files of a checkpoint say, checked and with the defaults filled in.

    vlm and expert are transformers' own configurations (vocabulary already resized); token ids are
    rows of the embedding; *_pixels bound the area of a resized image.
    """

    model_type: str
    vlm: Qwen3VLConfig
    expert: Qwen3VLTextConfig
    vlm_name_or_path: str
    vocab_size: int
    trajectory_token_start: int
    trajectory_vocab_size: int
    history_token_start: int
    history_start_token: int
    history_token: int
    history_end_token: int
    future_start_token: int
    history_tokenizer: HistoryTokenizer
    tokens_per_history: int
    max_new_tokens: int
    action_space: ActionSpace
    action_hidden_size: int
    action_encoder_layers: int
    fourier_features: int
    fourier_max_frequency: float
    flow_steps: int
    min_pixels: int
    max_pixels: int
    camera_labels: bool
    dtype: str

    @property
    def history_poses(self) -> int:
        """Number of poses in the ego history (16 for the public model)."""
        return self.tokens_per_history // 3

    @property
    def image_multiple(self) -> int:
        """Side (pixels) of the square that becomes one token."""
        return self.vlm.vision_config.patch_size * self.vlm.vision_config.spatial_merge_size

    @classmethod
    def from_directory(cls, directory: Path) -> AlpamayoConfig:
        """Reads config.json and the backbone's configuration.

        Raises CheckpointError that names the file and the key.
        """
        path = directory / "config.json"
        raw = read_json(path)
        model_type = raw.get("model_type")
        if model_type not in _MODEL_TYPES:
            raise CheckpointError(f"{path}: model_type is {model_type!r}; supported are {', '.join(_MODEL_TYPES)}")
        for key, name in _IMPLEMENTED.items():
            target = (raw.get(key) or {}).get("_target_", name)
            if target.rsplit(".", 1)[-1] != name:
                raise CheckpointError(f"{path}: {key} asks for {target!r}; only {name} is implemented")
        try:
            return cls._from_dict(raw, _backbone_dict(directory, raw))
        except KeyError as error:
            raise CheckpointError(f"{path}: key {error} is missing") from error
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: {error}") from error

    @classmethod
    def _from_dict(cls, raw: dict[str, Any], backbone: dict[str, Any]) -> AlpamayoConfig:
        text = _text_config(backbone["text_config"], vocab_size=raw["vocab_size"])
        vision = _known(Qwen3VLVisionConfig, backbone["vision_config"])
        ids = {key: backbone[key] for key in _TOKEN_KEYS if key in backbone}
        vlm = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **ids)
        expert = _text_config({**backbone["text_config"], **(raw.get("expert_cfg") or {})}, vocab_size=1)
        action = dict(raw.get("action_space_cfg") or {})
        history = raw.get("hist_traj_tokenizer_cfg") or {}
        future = raw.get("traj_tokenizer_cfg") or {}
        projection = raw.get("action_in_proj_cfg") or {}
        tokens = raw["traj_token_ids"]
        defaults = HistoryTokenizer()
        start = raw["traj_token_start_idx"]
        return cls(
            model_type=raw["model_type"],
            vlm=vlm,
            expert=Qwen3VLTextConfig(**expert),
            vlm_name_or_path=raw.get("vlm_name_or_path", ""),
            vocab_size=raw["vocab_size"],
            trajectory_token_start=start,
            trajectory_vocab_size=raw["traj_vocab_size"],
            # History bins follow the future bins, where the checkpoint has any of the latter.
            history_token_start=start + (future.get("num_bins", 3000) if future else 0),
            history_start_token=tokens["history_start"],
            history_token=tokens["history"],
            history_end_token=tokens["history_end"],
            future_start_token=tokens["future_start"],
            history_tokenizer=HistoryTokenizer(
                low_m=tuple(map(float, history.get("ego_xyz_min", defaults.low_m))),  # type: ignore[arg-type]
                high_m=tuple(map(float, history.get("ego_xyz_max", defaults.high_m))),  # type: ignore[arg-type]
                bins=history.get("num_bins", defaults.bins),
            ),
            tokens_per_history=raw.get("tokens_per_history_traj", 48),
            max_new_tokens=raw.get("tokens_per_future_traj", 128),
            action_space=_action_space(action),
            action_hidden_size=projection.get("hidden_size", 512),
            action_encoder_layers=projection.get("num_enc_layers", 2),
            fourier_features=projection.get("num_fourier_feats", 20),
            fourier_max_frequency=projection.get("max_freq", 100.0),
            flow_steps=(raw.get("diffusion_cfg") or {}).get("num_inference_steps", 10),
            min_pixels=raw.get("min_pixels") or _DEFAULT_MIN_PIXELS,
            max_pixels=raw.get("max_pixels") or _DEFAULT_MAX_PIXELS,
            camera_labels=bool(raw.get("include_camera_ids", raw["model_type"] == "alpamayo1_5")),
            dtype=str(raw.get("model_dtype") or "bfloat16").removeprefix("torch."),
        )


_TOKEN_KEYS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; CheckpointError where it is missing or is not one."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not an object")
    return content


def _backbone_dict(directory: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """The Qwen3-VL configuration: inside config.json, beside it, or from the base model it names."""
    if isinstance(raw.get("vlm_config"), dict):
        return raw["vlm_config"]
    if "text_config" in raw and "vision_config" in raw:
        return raw
    return read_json(base_model_file(directory, raw.get("vlm_name_or_path", ""), "config.json", "vlm_config.json"))


def base_model_file(directory: Path, base: str, name: str, local_name: str) -> Path:
    """A file that a public checkpoint leaves to its base model.

    Looked for as `local_name` in the checkpoint directory, then as `name` in the base model: a
    directory (relative to the checkpoint or not) or a Hugging Face repository, cached or on line.
    """
    candidates = [directory / local_name]
    if base not in ("", "."):
        candidates += [directory / base / name, Path(base) / name]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    if base.count("/") != 1 or base.startswith((".", "/")):
        raise CheckpointError(f"{directory / local_name} is missing")
    try:
        return Path(hf_hub_download(base, name))
    except Exception as error:  # the hub's errors have no common base class
        raise CheckpointError(
            f"{directory / local_name} is missing and {name} of the base model {base!r} could not be had "
            f"({type(error).__name__}); copy that file there"
        ) from error


def _known(config_class: type, raw: dict[str, Any]) -> dict[str, Any]:
    """The entries of a saved configuration that define the architecture (the rest is generation clutter)."""
    names = {field.name for field in dataclasses.fields(config_class)}
    own = {name for name in names if name in config_class.__annotations__}
    return {key: value for key, value in raw.items() if key in own}


def _text_config(raw: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    """Arguments of a Qwen3VLTextConfig from a configuration saved by transformers 4 or 5."""
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    rope.setdefault("rope_theta", raw.get("rope_theta", 5e6))
    rope.setdefault("rope_type", "default")
    known = {**_known(Qwen3VLTextConfig, raw), "rope_parameters": rope, "vocab_size": vocab_size}
    known.pop("pad_token_id", None)
    half = known["head_dim"] // 2
    section = rope.get("mrope_section") or []
    if sum(section) != half or not rope.get("mrope_interleaved", True):
        raise ValueError(f"mrope_section {section} must sum to half of head_dim ({half}) and be interleaved")
    return known


def _action_space(raw: dict[str, Any]) -> ActionSpace:
    default = ActionSpace()
    return ActionSpace(
        accel_mean=raw.get("accel_mean", default.accel_mean),
        accel_std=raw.get("accel_std", default.accel_std),
        curvature_mean=raw.get("curvature_mean", default.curvature_mean),
        curvature_std=raw.get("curvature_std", default.curvature_std),
        accel_bounds=tuple(raw.get("accel_bounds", default.accel_bounds)),
        curvature_bounds=tuple(raw.get("curvature_bounds", default.curvature_bounds)),
        dt_s=raw.get("dt", default.dt_s),
        waypoints=raw.get("n_waypoints", default.waypoints),
    )

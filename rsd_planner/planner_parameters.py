"""Parameters of the planner node."""

from __future__ import annotations

from dataclasses import dataclass

from rsd_planner.buffers import Camera
from rsd_planner.parameters import RELIABILITIES, parameter
from rsd_planner.planner import PlannerSettings
from rsd_planner.reasoning.sampling import Sampling


@dataclass(frozen=True)
class PlannerParameters:
    """Parameters of the planner node; config/planner.yaml lists them with their defaults."""

    model: str = parameter("", "Checkpoint directory of the public Alpamayo layout; empty: models/rsd-mini.")
    device: str = parameter("auto", "Torch device; auto takes CUDA where there is one.")
    dtype: str = parameter(
        "auto", "Type of the weights; auto takes the checkpoint's.", choices=("auto", "bfloat16", "float32")
    )
    rate_hz: float = parameter(
        10.0, "Most planning cycles a second; a slower model plans as fast as it can.", 0.1, 100.0
    )
    camera_names: list[str] = parameter(
        ["cross_left", "front_wide", "cross_right", "front_tele"],
        "Cameras; each is read from camera/<name>/image. The first one's stamps are the plans' t0.",
    )
    camera_indices: list[int] = parameter([0, 1, 2, 6], "Each camera's number in the public model.")
    camera_transport: str = parameter(
        "raw",
        "raw reads camera/<name>/image, compressed reads camera/<name>/image/compressed.",
        choices=("raw", "compressed"),
    )
    camera_reliability: str = parameter("best_effort", "QoS of the camera inputs.", choices=RELIABILITIES)
    odometry_reliability: str = parameter("best_effort", "QoS of the odometry input.", choices=RELIABILITIES)
    max_skew_s: float = parameter(0.05, "Largest distance (s) of another camera's newest frame from t0.", 0.0, 1.0)
    max_frame_offset_s: float = parameter(0.15, "Largest distance (s) of an older frame from its time.", 0.0, 1.0)
    max_odometry_gap_s: float = parameter(0.25, "Largest gap (s) between odometry messages.", 0.01, 2.0)
    max_input_age_s: float = parameter(1.0, "Largest age (s) of the newest frame that is still planned on.", 0.05, 60.0)
    greedy: bool = parameter(False, "Take the most probable token instead of sampling.")
    temperature: float = parameter(0.6, "Sampling temperature.", 0.01, 10.0)
    top_p: float = parameter(0.98, "Probability mass that is sampled from.", 0.001, 1.0)
    seed: int = parameter(0, "Seed of reasoning and trajectory; held over the cycles.", 0, 2**62)
    token_budget: int = parameter(
        0, "Tokens of a chain of causation before it is closed; 0: the checkpoint's.", 0, 4096
    )
    draft: str = parameter(
        "auto", "Routine reasoner's directory; auto: MODEL-routine if there is one; none: token by token."
    )
    block: int = parameter(0, "Tokens that one pass of the target judges; 0: as the draft was trained.", 0, 256)
    own_chains: bool = parameter(False, "Of several trajectories each follows a chain of causation of its own.")
    flow_steps: int = parameter(0, "Steps of the action flow; 0: the checkpoint's.", 0, 1000)
    flow_noise: float = parameter(
        0.0, "Scale of the noise that the plan starts from; 0: the flow's middle path, 1: a random one.", 0.0, 1.0
    )
    min_pixels: int = parameter(0, "Smallest area of a resized image; 0: the checkpoint's.", 0, 2**26)
    max_pixels: int = parameter(0, "Largest area of a resized image; 0: the checkpoint's.", 0, 2**26)
    v0_tolerance_mps: float = parameter(1.0, "Distance (m/s) of the fitted speed from the odometry's.", 0.0, 100.0)
    threads: int = parameter(0, "CPU threads of the model; 0: torch's choice.", 0, 1024)

    def cameras(self) -> list[Camera]:
        """Names and indices paired. Raises ValueError where the lists differ in length."""
        if len(self.camera_names) != len(self.camera_indices):
            raise ValueError(
                f"camera_names has {len(self.camera_names)} entries, camera_indices {len(self.camera_indices)}"
            )
        return [Camera(name, index) for name, index in zip(self.camera_names, self.camera_indices, strict=True)]

    def settings(self) -> PlannerSettings:
        """The planner's part."""
        return PlannerSettings(
            sampling=Sampling(self.greedy, self.temperature, self.top_p, self.seed),
            token_budget=self.token_budget or None,
            flow_steps=self.flow_steps or None,
            flow_noise=self.flow_noise,
            min_pixels=self.min_pixels or None,
            max_pixels=self.max_pixels or None,
            v0_tolerance_mps=self.v0_tolerance_mps,
            own_chains=self.own_chains,
            draft=self.draft,
            block=self.block or None,
        )

"""Parameters of the simulator node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rsd_planner.control.vehicle import Vehicle
from rsd_planner.parameters import parameter
from rsd_planner.ros.bringup import share_directory
from rsd_planner.simulation.cameras import Rig
from rsd_planner.simulation.scenarios import FAMILIES, SPLITS, build
from rsd_planner.simulation.world import World


@dataclass(frozen=True)
class SimulatorParameters:
    """Parameters of the simulator node; config/simulator.yaml lists them with their defaults."""

    scenario: str = parameter("all", "Scenario family, or all.")
    split: str = parameter("train", "Which worlds are drawn.", choices=SPLITS)
    first_seed: int = parameter(0, "First seed of each family.", 0, 2**31)
    seeds: int = parameter(1, "Seeds of each family.", 1, 100_000)
    seconds: float = parameter(20.0, "Length (s) of a drive.", 1.0, 3600.0)
    pace: str = parameter(
        "real_time",
        "real_time follows the wall clock; lock_step lets time go on only when plan and command are there.",
        choices=("real_time", "lock_step"),
    )
    real_time_factor: float = parameter(1.0, "Simulated seconds a second in real_time.", 0.01, 100.0)
    answer_timeout_s: float = parameter(30.0, "Wait (s) for one answer in lock_step.", 0.1, 3600.0)
    start_timeout_s: float = parameter(120.0, "Wait (s) for planner and controller at the start.", 0.0, 3600.0)
    hand_over_s: float = parameter(1.6, "Time (s) until which the simulator's own driver drives.", 0.1, 60.0)
    max_command_age_s: float = parameter(0.2, "Age (s) at which a command is not followed any more.", 0.02, 5.0)
    rig: str = parameter("", "YAML of the cameras; empty: config/cameras.yaml.")
    vehicle: str = parameter("", "YAML of the car; empty: config/vehicle.yaml.")
    cameras: bool = parameter(True, "Draw and publish pictures.")
    camera_transport: str = parameter("raw", "Image or CompressedImage.", choices=("raw", "compressed"))
    results: str = parameter("", "File that verdicts are appended to, a JSON object a line; drives in it are left out.")

    def camera_rig(self) -> Rig:
        """The cameras. Raises ValueError or OSError for an unusable file."""
        return Rig.from_yaml(Path(self.rig).expanduser() if self.rig else share_directory() / "config" / "cameras.yaml")

    @property
    def families(self) -> list[str]:
        """The families that are driven."""
        return list(FAMILIES) if self.scenario == "all" else [self.scenario]

    @property
    def drives(self) -> int:
        """How many drives there are."""
        return self.seeds * len(self.families)

    def worlds(self) -> Iterator[World]:
        """The worlds in order: all families of a seed, then the next seed.

        Raises ValueError for an unknown family, ValueError or OSError for an unusable vehicle file.
        """
        path = Path(self.vehicle).expanduser() if self.vehicle else share_directory() / "config" / "vehicle.yaml"
        vehicle = Vehicle.from_yaml(path)
        build(self.families[0], self.split, self.first_seed)
        seeds = range(self.first_seed, self.first_seed + self.seeds)
        return (self._world(family, seed, vehicle) for seed in seeds for family in self.families)

    def _world(self, family: str, seed: int, vehicle: Vehicle) -> World:
        world = build(family, self.split, seed)
        world.vehicle = vehicle
        return world

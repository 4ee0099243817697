"""The simulator node: a car's sensors out, commands in; one scenario after another.

Each scenario begins with a jump of /clock back to the same time. A drive runs in a thread of its own; the executor
only receives.
"""

from __future__ import annotations

import threading
from pathlib import Path

from rclpy.node import Node

from rsd_planner.ros.parameters import declare
from rsd_planner.ros.process import run_node
from rsd_planner.ros.simulated_drive import SimulatedDrive
from rsd_planner.ros.simulator_links import SimulatorLinks, Stopped
from rsd_planner.ros.simulator_parameters import SimulatorParameters
from rsd_planner.simulation.cameras import Renderer
from rsd_planner.simulation.verdict import read_verdicts, write_verdict

_SETTLE_S = 0.2  # between drives: what is still under way must not meet the next one


class SimulatorNode(Node):
    """See the module. Raises ValueError if it cannot be configured."""

    def __init__(self) -> None:
        super().__init__("simulator")
        self._parameters = declare(self, SimulatorParameters)
        try:
            self._rig = self._parameters.camera_rig()
            self._worlds = self._parameters.worlds()
        except OSError as error:
            raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from error
        self.fatal = ""
        self.finished = False
        self._links = SimulatorLinks(self, self._parameters, self._rig)
        self._worker = threading.Thread(target=self._work, name="driving", daemon=True)
        self._worker.start()

    def stop(self) -> None:
        """Ends the drive that is under way."""
        self._links.stop()
        self._worker.join(timeout=10.0)

    def _work(self) -> None:
        renderer = Renderer(self._rig) if self._parameters.cameras else None
        results = Path(self._parameters.results).expanduser() if self._parameters.results else None
        try:
            kept = read_verdicts(results) if results is not None else []
            driven = {(verdict.family, verdict.split, verdict.seed) for verdict in kept}
            self._links.wait_for_the_others()
            for number, world in enumerate(self._worlds):
                if world.scenario in driven:
                    continue
                verdict = SimulatedDrive(self._links, self._parameters, self._rig, world, renderer).run()
                if results is not None:
                    write_verdict(results, verdict)
                outcome = "success" if verdict.success else "; ".join(verdict.violations) or "too little progress"
                self.get_logger().info(
                    f"drive {number + 1} of {self._parameters.drives}: {verdict.family} {verdict.seed}: {outcome}"
                )
                self._links.pause(_SETTLE_S)
            self.finished = True
        except Stopped:
            pass
        except Exception as error:
            self.fatal = f"the simulation failed: {type(error).__name__}: {error}"
        finally:
            if renderer is not None:
                renderer.close()


def main() -> None:
    """Runs the node until its scenarios are driven, or SIGINT or SIGTERM."""
    run_node(SimulatorNode)


if __name__ == "__main__":
    main()

"""Quality of service of inputs and outputs (named in docs/ros.md)."""

from __future__ import annotations

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

RELIABILITIES = {"best_effort": ReliabilityPolicy.BEST_EFFORT, "reliable": ReliabilityPolicy.RELIABLE}


def sensor_qos(reliability: str, depth: int) -> QoSProfile:
    """For cameras and odometry. best_effort also receives from reliable publishers, not the other way round."""
    if reliability not in RELIABILITIES:
        raise ValueError(f"reliability {reliability!r} is not one of {', '.join(RELIABILITIES)}")
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=RELIABILITIES[reliability],
        durability=DurabilityPolicy.VOLATILE,
    )


PLAN_QOS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.VOLATILE,
)
"""For plans: reliable, and only the newest matters."""

STATUS_QOS = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=1,
    reliability=ReliabilityPolicy.RELIABLE,
    durability=DurabilityPolicy.TRANSIENT_LOCAL,
)
"""For status: a late subscriber gets the last one."""

"""The drive-by-wire: dead time, age, and what it refuses."""

from __future__ import annotations

import math

from rsd_planner.control.vehicle import Command, Vehicle
from rsd_planner.simulation.drive_by_wire import DriveByWire


def test_a_command_acts_after_the_dead_time():
    wire = DriveByWire(Vehicle(dead_time_s=0.04), 0.01)
    wire.accept(Command(0.1, 1.0), 0.0)
    assert [wire.act(k * 0.01).steering_rad for k in range(6)] == [0.0, 0.0, 0.0, 0.0, 0.1, 0.1]


def test_a_lost_command_brakes_with_the_steering_held():
    wire = DriveByWire(Vehicle(dead_time_s=0.0), 0.01, max_age_s=0.2)
    wire.accept(Command(0.1, 1.0), 1.0)
    assert wire.act(1.2) == Command(0.1, 1.0)
    assert wire.act(1.21) == Command(0.1, -3.0) and wire.lost_steps == 1
    wire.accept(Command(0.2, 0.5), 1.3)
    assert wire.act(1.3) == Command(0.2, 0.5)


def test_what_it_refuses():
    wire = DriveByWire(Vehicle(dead_time_s=0.0), 0.01)
    wire.accept(Command(0.1, 1.0), 1.0)
    for command, time_s in (
        (Command(math.nan, 0.0), 1.1),
        (Command(0.0, math.inf), 1.1),
        (Command(), 1.0),
        (Command(), 0.9),
    ):
        wire.accept(command, time_s)
    assert wire.refused == 4 and wire.act(1.05) == Command(0.1, 1.0)

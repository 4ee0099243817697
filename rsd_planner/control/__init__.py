"""Following a trajectory: vehicle model, tracking and the first safety layer."""

"""The command `rsd-planner convert`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rsd_planner.evaluation.convert.comma2k19 import read_segment
from rsd_planner.evaluation.convert.nuscenes import NuScenes
from rsd_planner.evaluation.convert.physical_ai import open_data_set, read_clip
from rsd_planner.evaluation.convert.recording import Recording, write_recording


def run(arguments: argparse.Namespace) -> int:
    """Converts one drive after another; exit code 1 if one could not be, the others are still made."""
    failed = 0
    for name, read in _drives(arguments):
        try:
            recording = read()
            out: Path = arguments.out / recording.name
            if out.exists():
                print(f"{out}: is there already")
                continue
            print(f"{out}: {write_recording(recording, out, arguments.storage)} messages")
        except ValueError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed += 1
    return int(failed > 0)


def _drives(arguments: argparse.Namespace) -> Iterator[tuple[str, partial[Recording]]]:
    if arguments.source == "comma2k19":
        yield from ((str(segment), partial(read_segment, segment)) for segment in arguments.segments)
    elif arguments.source == "nuscenes":
        tables = NuScenes(arguments.root, arguments.version)
        yield from ((scene, partial(tables.read_scene, scene)) for scene in arguments.scenes or tables.scenes)
    else:
        data_set = open_data_set(arguments.revision, arguments.cache_dir)
        yield from ((clip, partial(read_clip, data_set, clip)) for clip in arguments.clips)

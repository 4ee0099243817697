"""A driving planner for ROS 2 that writes why it drives so, and drives so."""

from pkgutil import extend_path

# Lets the source tree, imported from the project's root, find the generated rsd_planner.msg of the built package.
__path__ = extend_path(__path__, __name__)

"""The only door to ROS 2."""

"""Public data sets as rosbag2."""

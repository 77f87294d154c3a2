"""The criterion of CenterNet: for each task its targets and losses."""

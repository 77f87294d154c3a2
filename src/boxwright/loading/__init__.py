"""From a file or folder to a detector: runs, checkpoints, archives of the model zoo, exports of any format."""

"""Opening detectors from files and folders: runs, checkpoints, model zoo archives, exports of any format."""

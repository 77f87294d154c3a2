"""From a folder of images to a configuration: recognizing the data, choosing settings, writing files."""

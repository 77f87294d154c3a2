"""From a folder of pictures to a configuration: what the data are, what fits them, written down."""

"""From images of any size to the network's input: resizing and scaling."""

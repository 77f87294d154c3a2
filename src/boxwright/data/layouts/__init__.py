"""Layouts of other tools and data sets, each read as the content of a COCO file; `table` lists them."""

"""The evaluation report: why average precision is what it is.

`tables.py` reads truth and detections, the modules beside compute numbers from them, and `page.py` shows the numbers.
"""

"""Why fields of a configuration change nothing, or what to do where they are refused: what many have in common."""

from __future__ import annotations

OTHER_FAMILY = "only ssd, faster_rcnn, center_net, refinedet, srn, align_det and d_fine are supported yet"
PER_ANCHOR = "losses are per anchor always"
QUANTIZATION = "quantization-aware training is of TF1 only; the network is trained and run in floating point"
QUEUE = "tuning of TensorFlow's input queues"
SHUFFLED = "each epoch is shuffled as a whole"
TF1_EVALUATOR = "of TF1's separate evaluator"
TF1_SERVERS = "of TF1's training on parameter servers"

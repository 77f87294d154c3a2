#!/usr/bin/env bash
# All that is measured on a GPU, by one command; the figures go to benchmarks/results/*-cuda.json.
#
#   benchmarks/gpu.sh [FOLDER WITH BOXWRIGHT'S PYTHON]      (.venv/bin without)
set -euo pipefail
cd "$(dirname "$0")/.."
bin=${1:-.venv/bin}
"$bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available() and "there is no GPU that PyTorch can use")'
"$bin/python" -c 'import torch, torchvision; print(torch.cuda.get_device_name(), "torch", torch.__version__, "torchvision", torchvision.__version__, "CUDA", torch.version.cuda)'
"$bin/python" -m tests.cuda.table
"$bin/python" -m pytest -q tests/training/test_gpu.py
"$bin/python" benchmarks/step.py --device cuda
"$bin/python" benchmarks/detectors.py --device cuda
"$bin/python" benchmarks/two_stage.py --device cuda
"$bin/python" benchmarks/gpu_memory.py --json benchmarks/results/gpu-memory-cuda.json
for way in "" "--train"; do
  # shellcheck disable=SC2086  # the way may be nothing
  "$bin/boxwright" benchmark preset:torchvision_fasterrcnn_resnet50_fpn_coco \
    --compare torchvision:fasterrcnn_resnet50_fpn --device cuda --precision bfloat16 --batch 1 --batch 8 $way \
    --json "benchmarks/results/faster-rcnn${way}-cuda.json"
done

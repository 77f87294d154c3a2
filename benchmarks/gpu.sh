#!/usr/bin/env bash
# All that is measured on a GPU, by one command; the figures go to benchmarks/results/*-cuda.json, with a page of gpu.py's.
# What matters most comes first; each part has a time limit, and leaves what it has when it is cut off.
#
#   benchmarks/gpu.sh [FOLDER WITH BOXWRIGHT'S PYTHON]      (.venv/bin without)
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-.venv/bin}/python
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available() and "there is no GPU that PyTorch can use")'
"$python" -c 'import torch, torchvision; print(torch.cuda.get_device_name(), "torch", torch.__version__, "torchvision", torchvision.__version__, "CUDA", torch.version.cuda)'
timeout 360 "$python" benchmarks/gpu.py --seconds 0.5 || echo "gpu.py ended early: $?"
timeout 120 "$python" benchmarks/speed.py --device cuda || echo "speed.py ended early: $?"
# Beside others' code for the same networks, where it is installed.
for words in "transformers d_fine_n d_fine_s" "rfdetr rf_detr_nano rf_detr_small"; do
  read -ra words <<< "$words"
  "$python" -c "import ${words[0]}" 2> /dev/null || { echo "${words[0]} is not installed: nothing to compare with"; continue; }
  timeout 90 "$python" benchmarks/detrs.py --device cuda --batch 8 --pairs "${words[@]:1}" || echo "detrs.py ended early: $?"
done
"$python" -m pytest -q tests/training/test_gpu.py tests/nn/ops/test_triton_kernels.py tests/nn/postprocessing/test_nms.py

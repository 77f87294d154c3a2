# Training, evaluation and export on CPUs: docker build -f docker/cpu.Dockerfile -t boxwright .
FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /source
# The version is the tag's, which this image does not see: --build-arg VERSION=0.1.0.
ARG VERSION=0.1.0.dev0
ENV SETUPTOOLS_SCM_PRETEND_VERSION=${VERSION} PIP_NO_CACHE_DIR=1
# Compiles the native extension; the image that runs has no compiler.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY release release
# PyTorch without CUDA is in PyTorch's own index alone, and named by its version; all else by hashes.
RUN python -m venv /opt/boxwright \
 && awk '/^[^ ]/ {keep = !/^(torch|torchvision|triton|nvidia-[^ ]*|cuda-[^ ]*)==/} keep' release/image.txt > others.txt \
 && /opt/boxwright/bin/pip install --require-hashes --no-deps --requirement others.txt \
 && awk '/^(torch|torchvision)==/ {print $1}' release/image.txt > torch.txt \
 && /opt/boxwright/bin/pip install --no-deps --index-url https://download.pytorch.org/whl/cpu --requirement torch.txt
COPY pyproject.toml README.md LICENSE ./
COPY native native
COPY src src
RUN python -m venv /opt/builders \
 && /opt/builders/bin/pip install --require-hashes --no-deps --requirement release/build.txt \
 && /opt/builders/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /opt/boxwright/bin/pip install --no-deps /wheels/*.whl

FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea
RUN useradd --create-home --uid 1000 boxwright
COPY --from=build /opt/boxwright /opt/boxwright
ENV PATH=/opt/boxwright/bin:$PATH
USER 1000
WORKDIR /work
HEALTHCHECK --interval=5m --timeout=30s CMD ["boxwright", "--version"]
ENTRYPOINT ["boxwright"]
CMD ["--help"]

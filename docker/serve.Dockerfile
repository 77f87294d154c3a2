# Serves an exported .onnx, without PyTorch: docker build -f docker/serve.Dockerfile -t boxwright:serve .
# docker run -p 127.0.0.1:8501:8501 -v "$PWD/detector.onnx:/models/detector.onnx:ro" boxwright:serve
# Read-only and limited: add --read-only --tmpfs /tmp --memory 4g --cap-drop ALL --security-opt no-new-privileges.
FROM python:3.12-slim@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
WORKDIR /source
# The version is the tag's, which this image does not see: --build-arg VERSION=0.1.0.
ARG VERSION=0.1.0.dev0
ENV SETUPTOOLS_SCM_PRETEND_VERSION=${VERSION} PIP_NO_CACHE_DIR=1
COPY release release
RUN python -m venv /opt/boxwright \
 && /opt/boxwright/bin/pip install --require-hashes --no-deps --requirement release/serve.txt
COPY pyproject.toml README.md LICENSE ./
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
WORKDIR /models
EXPOSE 8501
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8501/readyz', timeout=4)"]
ENTRYPOINT ["boxwright", "serve", "--host", "0.0.0.0"]
CMD ["/models/detector.onnx"]

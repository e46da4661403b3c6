# `elmokit serve` in a container (docs/how-to/deploy.md):
#
#     docker build --tag elmokit .
#     docker run --rm --publish 127.0.0.1:8000:8000 elmokit

# A wheel with the compiled kernels, so that the image needs no compiler.
FROM python:3.12-slim AS wheel
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /source
COPY . .
RUN HATCH_BUILD_HOOK_ENABLE_CUSTOM=true pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
# serve,arrow adds Arrow answers, and 170 MB.
ARG EXTRAS=serve
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    pip install --no-cache-dir --no-compile --constraint /constraints.txt "$(echo /wheels/*.whl)[$EXTRAS]"
RUN useradd --create-home --uid 10001 elmokit
USER elmokit
WORKDIR /home/elmokit
# Downloaded models.
ENV ELMOKIT_CACHE=/home/elmokit/cache
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["elmokit", "serve", "--host", "0.0.0.0", "--port", "8000"]

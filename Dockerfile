# natsctl with its example controllers.
#
#   docker build --tag natsctl .
#   docker run --init --read-only natsctl run --server nats://… --controller controllers.greetings:Greetings
#
# The daemon serves /livez, /readyz and /metrics on port 8080. Docker's health check calls the first.
#
# Build argument EXTRAS: optional dependencies of pyproject.toml, for example --build-arg EXTRAS=otlp
#
# To run your own controllers, mount a folder over /app/controllers, or start an image with
# FROM natsctl. The module /app/controllers/fleet.py is imported as `controllers.fleet`.

ARG PYTHON=3.13-slim

FROM python:${PYTHON} AS build
WORKDIR /src
RUN python -m venv --without-pip /opt/natsctl
ENV PIP_PYTHON=/opt/natsctl PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml ./
ARG EXTRAS=
RUN python -c 'import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
        extras = [project["optional-dependencies"][name] for name in sys.argv[1:]]; \
        print(*sum(extras, project["dependencies"]), sep="\n")' $EXTRAS > requirements.txt \
    && pip install --no-compile --requirement requirements.txt
# The generated API of the kubernetes package is the largest part of the image. Bytecode without its
# source takes a third less space, and imports do not compile it.
RUN cd /opt/natsctl/lib/python*/site-packages \
    && python -m compileall -q -b kubernetes/client kubernetes/aio/client \
    && find kubernetes/client kubernetes/aio/client -name '*.py' -delete \
    && python -m compileall -q .
COPY README.md LICENSE ./
COPY natsctl_main.py ./
COPY natsctl natsctl
COPY controllers controllers
COPY examples examples
RUN pip wheel --no-deps --wheel-dir dist . && pip install --no-deps dist/*.whl

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="natsctl" \
      org.opencontainers.image.description="A controller runtime whose primary resources live in NATS JetStream KV" \
      org.opencontainers.image.licenses="Apache-2.0"
# The state directory notes which keys are being synced. Mount a volume here, so that it survives a
# restart of the container. A new named volume takes the owner of the directory.
RUN useradd --system --uid 65532 --user-group --create-home natsctl \
    && install --directory --owner=65532 --group=65532 --mode=0700 /var/lib/natsctl
COPY --from=build /opt/natsctl /opt/natsctl
COPY controllers /app/controllers
ENV PATH=/opt/natsctl/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NATSCTL_LISTEN=:8080 \
    NATSCTL_STATE_DIR=/var/lib/natsctl
EXPOSE 8080
WORKDIR /app
USER 65532:65532
# The container is unhealthy if only a restart can help, or if the daemon does not answer. A lost
# connection to NATS does not make it unhealthy. A daemon with another address needs that address in
# NATSCTL_LISTEN, not in --listen.
HEALTHCHECK --interval=10s --timeout=10s --start-period=30s --retries=3 \
    CMD natsctl health || exit 1
# Run the container with --init (`init: true` in Compose): an init process reaps the processes that
# credential plugins leave behind, and forwards signals that arrive before natsctl handles them.
ENTRYPOINT ["natsctl"]
CMD ["--help"]

# natsctl, with the controllers that are ready to run.
#
#   docker build --tag natsctl .
#   docker run --read-only natsctl run --server nats://… --controller controllers.greetings:Greetings
#
# It says how it is on port 8080: /livez, /readyz and /metrics. Docker asks for the first of them.
#
# With what pyproject.toml calls an optional dependency: --build-arg EXTRAS=otlp
#
# Your own: mount them over /app/controllers, or begin an image with FROM natsctl. What lies in
# /app/controllers/fleet.py is found as `controllers.fleet`.

ARG PYTHON=3.13-slim

FROM python:${PYTHON} AS build
RUN apt-get update && apt-get install --yes --no-install-recommends tini
WORKDIR /src
RUN python -m venv --without-pip /opt/natsctl
ENV PIP_PYTHON=/opt/natsctl PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml ./
ARG EXTRAS=
RUN python -c 'import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
        extras = [project["optional-dependencies"][name] for name in sys.argv[1:]]; \
        print(*sum(extras, project["dependencies"]), sep="\n")' $EXTRAS > requirements.txt \
    && pip install --requirement requirements.txt
COPY README.md LICENSE ./
COPY natsctl_main.py ./
COPY natsctl natsctl
COPY controllers controllers
RUN pip wheel --no-deps --wheel-dir dist . && pip install --no-deps dist/*.whl

FROM python:${PYTHON}
LABEL org.opencontainers.image.title="natsctl" \
      org.opencontainers.image.description="A controller runtime whose primary resources live in NATS JetStream KV" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --system --uid 65532 --user-group --create-home natsctl
COPY --from=build /usr/bin/tini-static /usr/local/bin/tini
COPY --from=build /opt/natsctl /opt/natsctl
COPY controllers /app/controllers
ENV PATH=/opt/natsctl/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NATSCTL_LISTEN=:8080
EXPOSE 8080
WORKDIR /app
USER 65532:65532
# Unhealthy is what only a new container can heal, and what cannot be asked: NATS that is away is
# waited for. A daemon that listens elsewhere says so by NATSCTL_LISTEN, not by --listen.
HEALTHCHECK --interval=10s --timeout=10s --start-period=30s --retries=3 \
    CMD natsctl health || exit 1
# Processes that a credential plugin leaves behind are tini's, and a signal that comes before
# natsctl listens for it ends it, as it would not if natsctl were the first process.
ENTRYPOINT ["tini", "--", "natsctl"]
CMD ["--help"]

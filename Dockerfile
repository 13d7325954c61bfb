# natsctl, with the controllers that are ready to run.
#
#   docker build --tag natsctl .
#   docker run --read-only natsctl run --server nats://… --controller controllers.greetings:Greetings
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
RUN python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
        print(*project["dependencies"], sep="\n")' > requirements.txt \
    && pip install --requirement requirements.txt
COPY README.md LICENSE ./
COPY natsctl natsctl
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
    PYTHONUNBUFFERED=1
WORKDIR /app
USER 65532:65532
# Processes that a credential plugin leaves behind are tini's, and a signal that comes before
# natsctl listens for it ends it, as it would not if natsctl were the first process.
ENTRYPOINT ["tini", "--", "natsctl"]
CMD ["--help"]

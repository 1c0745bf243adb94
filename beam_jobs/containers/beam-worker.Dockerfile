# Workers of Beam's portable runners: Flink, Spark, Dataflow, Prism with Docker. From a checkout:
#   docker build -f beam_jobs/containers/beam-worker.Dockerfile -t REGISTRY/pileshard-beam:TAG .
# As a worker pool (what stands beside a Flink task manager on Kubernetes): docker run IMAGE --worker_pool
ARG BEAM_VERSION=2.77.0
FROM apache/beam_python3.11_sdk:${BEAM_VERSION}
ARG BEAM_VERSION
COPY pyproject.toml README.md LICENSE /opt/pileshard/
COPY pileshard /opt/pileshard/pileshard
COPY beam_jobs /opt/pileshard/beam_jobs
# Beam must be of the same version as on the machine that submits, and pileshard and tokenizers too.
RUN pip install --no-cache-dir "apache-beam==${BEAM_VERSION}" "/opt/pileshard[beam,fast,s3,gcs,azure,http]" \
    && pip check \
    && python -c "import beam_jobs.pipeline, gigatoken"
# The base image's own entry point stays: /opt/apache/beam/boot.

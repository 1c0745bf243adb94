# Scheduler, workers and driver of a Dask cluster. From a checkout:
#   docker build -f beam_jobs/containers/dask-worker.Dockerfile -t REGISTRY/pileshard-dask:TAG .
#   docker run IMAGE dask scheduler
#   docker run IMAGE dask worker tcp://SCHEDULER:8786 --nthreads 1 --nworkers 4 --memory-limit 4GiB
#   docker run IMAGE pileshard build ... -- --runner=DaskRunner --dask_client_address=tcp://SCHEDULER:8786
FROM python:3.11-slim
COPY pyproject.toml README.md LICENSE /opt/pileshard/
COPY pileshard /opt/pileshard/pileshard
COPY beam_jobs /opt/pileshard/beam_jobs
RUN pip install --no-cache-dir "/opt/pileshard[dask,fast,s3,gcs,azure,http]" \
    && pip check \
    && python -c "import beam_jobs.pipeline, distributed, gigatoken" \
    && useradd --create-home --uid 1000 pileshard
USER pileshard
WORKDIR /home/pileshard
EXPOSE 8786 8787
CMD ["pileshard", "--help"]

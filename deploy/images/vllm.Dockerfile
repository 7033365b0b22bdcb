# vLLM with thaw in it: pods need no init container, and start sooner. From the top
# of the repository, after thaw.Dockerfile:
#
#   docker build -f deploy/images/vllm.Dockerfile --build-arg THAW=thaw-dev/thaw:VERSION -t team/vllm-thaw:VERSION .
#   thaw deploy -f model.yaml --to knative --image vllm=team/vllm-thaw:VERSION
#
# What the first start in a pod would have to find out is found out here: bytecode
# (without it each process of vLLM compiles 5,000 modules), and what vLLM asks its
# own model classes.
ARG THAW=thaw-dev/thaw:dev
ARG VLLM=vllm/vllm-openai:v0.32.0
FROM $THAW AS thaw

FROM $VLLM
COPY --from=thaw /thaw /opt/thaw/thaw
COPY deploy/images/modelinfos.py /opt/thaw/modelinfos.py
ENV VLLM_CACHE_ROOT=/opt/thaw/vllm
RUN python3 -m compileall -q "$(python3 -c 'import vllm, os; print(os.path.dirname(os.path.dirname(vllm.__file__)))')" || true
RUN python3 /opt/thaw/modelinfos.py
USER 65532:65532
ENTRYPOINT ["/opt/thaw/thaw"]
CMD ["runtime"]

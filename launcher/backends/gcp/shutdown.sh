#!/bin/bash
# Runs as the VM goes down: a preemption, host maintenance, a stop. The run's agent seals what there is and uploads it.
# Nobody else tells it: what startup.sh started gets no signal before the machine is at its end.
set -uo pipefail
metadata=http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1
name=$(curl -fsS --max-time 5 -H Metadata-Flavor:Google "$metadata/instance/name")
# A stop leaves 90 s, a preemption 30. Where no agent runs there is nothing to save.
docker kill -s TERM "$name" && timeout 80 docker wait "$name"

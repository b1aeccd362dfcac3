#!/bin/bash
# Every boot of a VM of `launch gcp` runs this file as it is: what a user asks for is data, never part of a command.
# boot.py, which comes with it in the VM's metadata, does the work; this keeps the log, and ends the VM in any case.
set -uo pipefail
metadata=http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1
storage=${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}
compute=${ROOFLAUNCH_COMPUTE_ENDPOINT:-https://compute.googleapis.com}
restarts=64 # boot.py's exit code for: the machine restarts, and this file runs again

fetch() { curl -fsSL --max-time 300 --retry 5 --retry-connrefused "$@"; }
get() { fetch -H Metadata-Flavor:Google "$metadata/$1"; }
token() { get instance/service-accounts/default/token | sed 's/.*"access_token" *: *"\([^"]*\)".*/\1/'; }
# Through a pipe: the token is in no list of arguments, and in no log.
authorized() { fetch -o /dev/null -K <(token | sed 's/.*/header = "Authorization: Bearer &"/') "$@"; }
finish() {
  object="launches/$name/startup.log"
  authorized --data-binary "@$home/startup.log" "$storage/upload/storage/v1/b/$bucket/o?uploadType=media&name=$object"
  vm="projects/$project/zones/$zone/instances/$name"
  while true; do authorized -X DELETE "$compute/compute/v1/$vm"; sleep 10; done
}

name=$(get instance/name) zone=$(get instance/zone) project=$(get project/project-id)
bucket=$(get instance/attributes/rooflaunch-bucket) zone=${zone##*/} home=/var/lib/rooflaunch/$name
mkdir -p "$home" && exec > >(exec tee -pa "$home/startup.log") 2>&1
trap finish EXIT
get instance/attributes/rooflaunch-boot >"$home/boot.py"
python3 "$home/boot.py" "$home" &
trap 'kill -TERM $!' TERM
while kill -0 $! 2>&-; do wait $!; done
wait $!; [[ $? -eq $restarts ]] && trap - EXIT

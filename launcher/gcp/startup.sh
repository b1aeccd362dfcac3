#!/bin/bash
# Every boot of a VM of `launch gcp` runs this file as it is: what the user asked for is data, and never part of a command.
set -uo pipefail; api=http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1 flavor=Metadata-Flavor:Google tries=0 pulls=0
compute=${ROOFLAUNCH_COMPUTE_ENDPOINT:-https://compute.googleapis.com} storage=${STORAGE_EMULATOR_HOST:-https://storage.googleapis.com}
fetch() { curl -fsSL -m 300 --retry 5 --retry-connrefused "$@"; }; get() { fetch -H "$flavor" "$api/$1"; }
token() { get instance/service-accounts/default/token | sed 's/.*"access_token" *: *"\([^"]*\)".*/\1/'; }
auth() { fetch -o /dev/null -K <(token | sed 's/.*/header = "Authorization: Bearer &"/') "$@"; } # a pipe: in no argv, in no log
phase() { at=$(date -u +%FT%T.%3NZ) && echo "rooflaunch: phase $1 $at" && echo "$1 $at" >>"$home/phases"
  fetch -X PUT -H "$flavor" -d "$at" "$api/instance/guest-attributes/rooflaunch/$1"; }
need() { command -v "$1" || { apt-get -qy update; DEBIAN_FRONTEND=noninteractive apt-get -qy -o DPkg::Lock::Timeout=300 install "$2"; }; }
finish() { auth --data-binary "@$home/startup.log" "$storage/upload/storage/v1/b/$bucket/o?uploadType=media&name=launches/$name/startup.log"
  while true; do auth -X DELETE "$compute/compute/v1/projects/$project/zones/${zone##*/}/instances/$name"; sleep 10; done; }
name=$(get instance/name) zone=$(get instance/zone) project=$(get project/project-id) bucket=$(get instance/attributes/rooflaunch-bucket)
image=$(get instance/attributes/rooflaunch-image) driver=$(get instance/attributes/rooflaunch-driver) home=/var/lib/rooflaunch/$name
mkdir -p "$home" && chown 1000:1000 "$home" && exec > >(exec tee -pa "$home/startup.log") 2>&1; trap finish EXIT; phase booted
if [[ $driver == install ]] && ! nvidia-smi; then trap - EXIT # the installer restarts the machine; this file then runs again
  fetch -o /opt/installer.pyz https://storage.googleapis.com/compute-gpu-installation-us/installer/latest/cuda_installer.pyz
  python3 /opt/installer.pyz install_driver --installation-mode binary --installation-branch lts || finish; sleep 300; trap finish EXIT; fi
until [[ $driver == none ]] || nvidia-smi; do ((++tries < 60)) || exit; sleep 5; done; phase driver_ready; need docker docker.io
if [[ $driver != none ]] && ! docker info | grep -i 'runtimes:.*nvidia'; then r=nvidia.github.io/libnvidia-container k=/etc/apt/nvidia.asc
  fetch -o $k https://$r/gpgkey; echo "deb [signed-by=$k] https://$r/stable/deb/\$(ARCH) /" >/etc/apt/sources.list.d/nvidia-toolkit.list
  need nvidia-ctk nvidia-container-toolkit; nvidia-ctk runtime configure --runtime=docker && systemctl restart docker; fi
docker info >/dev/null || exit; phase docker_ready; DOCKER_CONFIG=$(mktemp -d) s=/var/run/docker.sock; export DOCKER_CONFIG
case ${image%%/*} in *.pkg.dev | *gcr.io) token | docker login -u oauth2accesstoken --password-stdin "https://${image%%/*}" ;; esac
until docker pull -q "$image"; do ((++pulls < 3)) || exit; sleep 10; done; rm -r "$DOCKER_CONFIG"; phase image_pulled
agent=(docker run --rm --name "$name" -u 1000:1000 --group-add "$(stat -c %g $s)" -v "$s:$s" -v /:/host:ro -v "$home:$home" --network host
  --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges --stop-timeout 25 -e GCE_METADATA_HOST -e STORAGE_EMULATOR_HOST
  -e ROOFLAUNCH_COMPUTE_ENDPOINT --entrypoint python "$image" -m launcher.gcp.vm "$home")
trap 'docker kill -s TERM "$name"' TERM; for _ in 1 2; do docker ps -aqf "volume=$home" -f "volume=$home/results" | xargs -r docker rm -f
  "${agent[@]}" & while kill -0 $! 2>&-; do wait $!; done; wait $! && exit; done # the second try saves what the first has left

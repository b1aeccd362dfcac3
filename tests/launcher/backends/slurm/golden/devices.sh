#!/bin/bash
# rooflaunch: one launch.
# To submit it by hand, as SCRIPT in your home folder on the login node, once `launch slurm` was used there:
#   mkdir -p /home/me/.rooflaunch/arrays/rooflaunch-slurm-20261121-120000-abcdef && sbatch SCRIPT
#SBATCH --job-name=rooflaunch-slurm-20261121-120000-abcdef
#SBATCH --array=1-1
#SBATCH --output=/home/me/.rooflaunch/arrays/rooflaunch-slurm-20261121-120000-abcdef/%a.log
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --time=1:00:00
#SBATCH --gres=gpu:2
#SBATCH --requeue
set -eu
umask 077
root=/home/me/.rooflaunch array=rooflaunch-slurm-20261121-120000-abcdef index=$SLURM_ARRAY_TASK_ID

# Requests, one line for each element.
mapfile -t elements <<'ELEMENTS'
{"schema_version":1,"name":"rooflaunch-slurm-20261121-120000-abcdef","backend":"slurm","launched_at":"2026-11-21T12:00:00.000+00:00","store":"/home/me/.rooflaunch","place":"slurm","runtime":"process","limit_s":3600,"spec":{"model":"resnet18","device":"cuda","batch_size":null,"precision":"fp32","dataset":"synthetic","data_dir":"~/.cache/rooflaunch","download":false,"subset":null,"image_size":null,"warmup":null,"iterations":null,"min_seconds":null,"devices":2,"machines":1,"repeats":1,"profile":"none","profile_steps":1,"profile_step_bytes":false,"profile_throughput":false,"ncu_metrics":null,"channels_last":false,"compile":false,"deterministic":false,"no_augment":false,"grad_accumulation":1,"workers":null,"prefetch_factor":null,"pin_memory":null,"persistent_workers":null,"optimizer":"sgd","seed":0,"ceilings":true,"fresh_ceilings":false,"samples_per_step":null,"samples":null,"change":null,"script":[]},"spec_origin":{"model":"option","device":"option","devices":"option"},"image":"","gpu":"","gpu_count":0,"machine_type":"","zones":[],"spot":false,"prices":{},"attempt":1,"options":{"container":"auto","requeue":true,"exclusive":false,"partition":[],"constraint":[],"gres":[]},"task":{},"script":{},"tuning":{}}
ELEMENTS
request=${elements[index - 1]}
name=${request#*'"name":"'} name=${name%%'"'*}
home=$root/jobs/$name

# Files for the agent; and files for `launch status` that a script submitted by hand would lack.
mkdir -p "$home" "$root/launches/$name"
printf '%s\n' "$request" >"$home/request.json"
cp "$root/guests/slurm-x.py" "$home/guest.py"
[ -e "$root/launches/$name/request.json" ] || cp "$home/request.json" "$root/launches/$name/request.json"
[ -e "$root/launches/$name/startup.log" ] || ln "$root/arrays/$array/$index.log" "$root/launches/$name/startup.log"
[ -e "$home/element" ] || printf '%s %s\n' "$array" "$index" >"$home/element"
[ -e "$root/arrays/$array/elements" ] ||
  printf '%s\n' "${elements[@]}" | sed 's/^[^,]*,"name":"\([^"]*\)".*/\1/' >"$root/arrays/$array/elements"
echo "booted $(date -u +%Y-%m-%dT%H:%M:%SZ)" >>"$home/phases"

# Time at which Slurm ends the job; older versions of Slurm tell it only through squeue.
export ROOFLAUNCH_END_S=${SLURM_JOB_END_TIME:-$(SLURM_TIME_FORMAT=%s squeue -h -j "$SLURM_JOB_ID" -o %e || true)}
cd "$home"
export PYTHONPATH="$root/code/0123456789abcdef" PYTHONDONTWRITEBYTECODE=1
exec python3 -u -m launcher.agent "$home"

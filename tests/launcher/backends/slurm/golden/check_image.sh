#!/bin/bash
#SBATCH --job-name=rooflaunch-check
#SBATCH --output=/home/me/.rooflaunch/checks/check-1.log
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=0:05:00
#SBATCH --no-requeue
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --qos=short
#SBATCH --constraint=t4|l4
#SBATCH --gres=gpu:1
folder=/home/me/.rooflaunch/checks
[ "$(cat "$folder/check-1.token")" = check-1 ] || exit 3
{
  echo "node $(hostname -s)"
  if [ -r /shared/it.sif ]; then echo "image ok"; else echo "image unreadable"; fi
  command -v apptainer >/dev/null && echo apptainer ok || echo apptainer missing
} >"$folder/check-1.new"
mv "$folder/check-1.new" "$folder/check-1.answer"

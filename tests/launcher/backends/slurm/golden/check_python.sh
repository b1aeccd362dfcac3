#!/bin/bash
#SBATCH --job-name=rooflaunch-check
#SBATCH --output=/home/me/.rooflaunch/checks/check-1.log
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=0:05:00
#SBATCH --no-requeue
folder=/home/me/.rooflaunch/checks
[ "$(cat "$folder/check-1.token")" = check-1 ] || exit 3
{
  echo "node $(hostname -s)"
  echo "python $(python3 -c 'import importlib.metadata as m, sys; has = {d.metadata['"'"'Name'"'"'].lower() for d in m.distributions() if d.metadata['"'"'Name'"'"']}; lacks = [n for n in ('"'"'torch'"'"', '"'"'torchvision'"'"', '"'"'numpy'"'"', '"'"'psutil'"'"') if n not in has]; old = sys.version_info < (3, 11); print('"'"'is Python %d.%d'"'"' % sys.version_info[:2] if old else '"'"'lacks '"'"' + '"'"', '"'"'.join(lacks) if lacks else '"'"'ok'"'"')' 2>&1 | tail -n 1)"
} >"$folder/check-1.new"
mv "$folder/check-1.new" "$folder/check-1.answer"

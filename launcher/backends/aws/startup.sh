#!/bin/bash
# systemd runs this at every boot of an instance of `launch aws`, with the launch's folder as its argument.
# boot.py beside it does the work. This script keeps the log, and powers the instance off in any case: EC2 then deletes it.
set -uo pipefail
home=$1
exec > >(exec tee -pa "$home/startup.log") 2>&1
finish() {
  trap - TERM
  python3 "$home/boot.py" "$home" upload-log
  until poweroff || [[ $(systemctl is-system-running) == stopping ]]; do sleep 10; done
}
trap finish EXIT
# A restart has deleted the timer of the user data: set it again, with the minutes that are left.
left=$((($(<"$home/ends") - $(date +%s)) / 60))
shutdown -P "+$((left > 1 ? left : 1))"
python3 "$home/boot.py" "$home" &
trap 'kill -TERM $!' TERM
while kill -0 $! 2>&-; do wait $!; done

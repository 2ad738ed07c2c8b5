#!/usr/bin/env bash
# In a bare root: the packages that lie in /opt, by doc/cli.md. Of the checkout only the job is here.
# Usage: in_package.sh RELEASE
set -uo pipefail
. /opt/steps.sh
cd /opt
apt-get update -qq
apt-get install -y -qq --no-install-recommends python3-venv ca-certificates >/dev/null 2>&1
python=$HOME/venv/bin/python
job=($HOME/venv/bin/torchrun --standalone --nproc-per-node=2 tests/fsdp/train_llama.py --steps 5)

venv() { python3 -m venv $HOME/venv && $HOME/venv/bin/pip install -q torch==2.13.0 numpy; }
# A line of each section, and exit status 1 exactly where one says fail.
doctor() {
  local status=0 section
  "$@" >/tmp/doctor || status=$?
  cat /tmp/doctor
  for section in Tide "Python, torch and NCCL" GPUs NICs "GPUDirect RDMA" Limits; do
    grep -A 1 "^$section\$" /tmp/doctor | grep -E '^  (ok|warn|fail|skip) ' || return 1
  done
  [ "$status" = "$(grep -c '^  fail ' /tmp/doctor | sed 's/[1-9].*/1/')" ]
}
# reports TIDE: a job, and its reports as text, JSON and a page.
reports() {
  rm -rf reports report.html
  "$1" run --report reports -- "${job[@]}" && "$1" report reports/*.json &&
    "$1" report reports/*.json --json | "$python" -c '
import json, sys
report = json.load(sys.stdin)
assert report["world_size"] == 2 and {tier["tier"] for tier in report["tiers"]} == {"layout"}, report' &&
    "$1" report reports/*.json --html report.html && grep -q '</html>' report.html
}
profiles() {
  tide profile list && tide profile show && tide profile show h200-8x400g &&
    tide profile check /usr/share/tide/configs/*.yaml
}

step "torch into a venv" venv
step "dpkg -i, its dependencies by apt" bash -c 'dpkg -i tide_*.deb || apt-get install -y -qq --no-install-recommends -f'
step "tide --version" tide --version
step "tide doctor, nothing installed beside it" doctor tide doctor --python "$python"
step "tide profile" profiles
step "tide run" tide run -- true
step "tide run: a job without libtide-torch runs stock, and says so" says 'tide build-torch --python' tide run -- "${job[@]}"
step "dpkg --purge" dpkg --purge tide
step "apt-get install, with what is recommended" apt-get install -y -qq ./tide_*.deb
step "apt-get purge" apt-get purge -y -qq tide  # what was recommended stays
everything >/tmp/before
step "apt-get install, a second time" apt-get install -y -qq ./tide_*.deb
step "tide build-torch" tide build-torch --python "$python"
step "tide doctor has nothing against it" tide doctor --python "$python"
step "job and reports" reports tide

mkdir archive && tar -C archive -xzf tide-*.tar.gz
unpacked=$(echo archive/*/bin/tide)
step ".tar.gz: tide build-torch" "$unpacked" build-torch --python "$python"
step ".tar.gz: job and reports" reports "$unpacked"

step "apt-get purge, after jobs" apt-get purge -y -qq tide
step "nothing is left" nothing_new /tmp/before
finish

#!/usr/bin/env bash
# Installs what the build and the tests need and this machine lacks.
# Usage: deps.sh BUILD PYTHON APT_PACKAGE...
# Packages come from apt; torch from pip, into BUILD/venv, only when PYTHON has none.
set -euo pipefail
build=$1 python=$2
shift 2

if command -v apt-get >/dev/null; then
  missing=()
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    sudo=; [ "$(id -u)" = 0 ] || sudo=sudo
    echo "installing: ${missing[*]}"
    $sudo apt-get update -qq
    known=()
    for package in "${missing[@]}"; do
      if apt-cache show "$package" >/dev/null 2>&1; then known+=("$package"); else
        echo "this distribution has no package $package: what needs it is skipped"
      fi
    done
    [ ${#known[@]} = 0 ] || DEBIAN_FRONTEND=noninteractive \
      $sudo apt-get install -y -qq --no-install-recommends "${known[@]}" >/dev/null
  fi
else
  echo "no apt-get here: these must be installed by hand where they are missing: $*"
fi

found=$("$python" shim/torch/probe.py --field version "$python" "$build/venv/bin/python" build/venv/bin/python)
if [ "$found" = none ]; then
  echo "no torch in $python: installing torch==2.13.0 into $build/venv (5 GB with CUDA's libraries; minutes)"
  "$python" -m venv "$build/venv"
  "$build/venv/bin/pip" install -q torch==2.13.0 numpy
fi

#!/usr/bin/env bash
# In a bare root: a checkout in /opt/tide, by README.md. Leaves its packages in build/package.
# Usage: in_checkout.sh RELEASE
set -uo pipefail
. /opt/steps.sh
cd /opt/tide
apt-get update -qq
apt-get install -y -qq --no-install-recommends make >/dev/null 2>&1

deps() { make deps 2>&1 | tee /tmp/deps && ! grep 'this distribution has no package' /tmp/deps; }
step "make deps: every package exists" deps
step "make demo" make demo
step "tide of the build tree" build/bin/tide --version

everything >/tmp/before
step "make install" make install
step "the command is on PATH, with its manual" says 'tide doctor' bash -c 'tide --help && zcat /usr/local/share/man/man1/tide.1.gz'
step "make uninstall" make uninstall
step "make uninstall leaves nothing" nothing_new /tmp/before
step "staged: make install" make install DESTDIR=/tmp/stage PREFIX=/opt/other
step "staged: files are there" test -x /tmp/stage/opt/other/bin/tide
step "staged: make uninstall" make uninstall DESTDIR=/tmp/stage PREFIX=/opt/other
step "staged: nothing is left, its prefix neither" test ! -e /tmp/stage/opt/other
step "make package" make package
finish

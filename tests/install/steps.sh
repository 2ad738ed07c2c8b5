# Steps of a test, read by the other scripts here: what fails prints the end of its output, and the next
# step is tried all the same. `finish` prints the count.
release=$1 passed=0 failed=0
step() {  # step NAME COMMAND...
  local name="$release: $1" begin=$SECONDS status=0
  shift
  "$@" >/tmp/step.log 2>&1 || status=$?
  if [ "$status" = 0 ]; then
    passed=$((passed + 1))
    echo "ok      $name ($((SECONDS - begin)) s)"
  else
    failed=$((failed + 1))
    echo "NOT OK  $name: exit status $status"
    tail -n 25 /tmp/step.log
  fi
}
says() {  # says TEXT COMMAND...: its output, which is printed, has TEXT
  local text=$1
  shift
  "$@" 2>&1 | tee /tmp/said
  grep -qF -- "$text" /tmp/said
}
# Every file, link and folder of the machine but those that come and go by themselves.
everything() {
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /var/log -o -path /var/cache \
    -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /opt -o -path /root \
    -o -name __pycache__ \) -prune -o -print | sort
}
# nothing_new BEFORE: what is there is what the list BEFORE has.
nothing_new() { everything | diff "$1" -; }
# Exit status 3: all was tried, and something failed.
finish() { echo "$passed passed, $failed failed"; exit $((failed > 0 ? 3 : 0)); }

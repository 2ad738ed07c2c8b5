# Sourced by the suites that run other tests instrumented.

# sanitized RUN TEST...: builds these of $BUILD/test with ASan+UBSan in $BUILD/asan and with TSan in
# $BUILD/tsan, and calls RUN with each folder. A build that fails is one failure. No suppressions.
sanitized() {
  local run=$1 kind folder status=0
  shift
  unset MAKEFLAGS MFLAGS
  for kind in asan:address,undefined tsan:thread; do
    folder=${BUILD:-build}/${kind%%:*}
    if make -s -j"$(nproc)" BUILD="$folder" SANITIZE="${kind#*:}" EXTRA="-O1 -g1" \
      "${@/#/$folder/test/}"; then
      "$run" "$folder" || status=1
    else
      echo "cannot build with -fsanitize=${kind#*:}"
      echo "0 passed, 1 failed"
      status=1
    fi
  done
  return "$status"
}

#!/bin/sh
# skips_exist.sh PATTERNS PROGRAM...
#
# Every one of PATTERNS, which are separated by colons as in a gtest filter, names a test of one of the programs: a test that was
# renamed would otherwise run, or not run, without anyone's notice.
patterns=$1
shift
status=0
IFS=:
set -f
for pattern in $patterns; do
  found=0
  for program in "$@"; do
    if "$program" --gtest_list_tests --gtest_filter="$pattern" | grep -q '^  '; then found=1; fi
  done
  if [ "$found" = 0 ]; then
    echo "no test has the name $pattern, which the thread sanitizer is to leave out (tests/CMakeLists.txt)"
    status=1
  fi
done
exit $status

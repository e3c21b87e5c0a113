#!/bin/sh
# isa_symbols.sh OBJECT...
#
# Kernel files for newer processors (*_avx*.o) may define no weak function: the linker keeps one copy of each for the whole program, and it
# could be theirs.
status=0
found=0
for object in "$@"; do
  case "$object" in
    *_avx*) found=1 ;;
    *) continue ;;
  esac
  leaks=$(nm -C "$object" | grep -E ' [Wu] ')
  if [ -n "$leaks" ]; then
    echo "$object defines what the whole program shares:"
    echo "$leaks"
    status=1
  fi
done
[ "$found" = 1 ] || { echo "no kernel object among: $*"; exit 1; }
exit $status

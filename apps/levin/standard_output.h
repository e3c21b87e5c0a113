// Standard output that may fail: a full disk, a closed descriptor. Commands print with fmt::print(); main() flushes at
// the end, so that no failed write goes unnoticed.
#pragma once

#include "base/result.h"

namespace levin::app {

// Takes the places of standard streams that were closed, so that no file of ours gets their numbers: reading from or
// writing to them fails as before, messages for standard error are dropped.
void occupy_closed_streams();

// Hands to the system what was printed. The error (kRuntime) says why that is not possible; once it has been, it stays.
Status flush_standard_output();

}  // namespace levin::app

#include "base/recovery.h"

namespace levin {
namespace {

thread_local int n_recoveries = 0;

}  // namespace

Recovery::Recovery() { ++n_recoveries; }
Recovery::~Recovery() { --n_recoveries; }
bool Recovery::active() { return n_recoveries > 0; }

}  // namespace levin

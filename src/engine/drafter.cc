#include "engine/drafter.h"

#include "engine/block_drafter.h"
#include "engine/mtp_drafter.h"

namespace levin {

std::unique_ptr<Drafter> make_drafter(Runner& runner, int n_drafts) {
  if (n_drafts == 0 || !runner.model().has_mtp()) return std::make_unique<NoDrafter>();
  if (runner.model().block_drafting() != nullptr) return std::make_unique<BlockDrafter>(runner);
  return std::make_unique<MtpDrafter>(runner);
}

}  // namespace levin

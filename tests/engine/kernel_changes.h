// Where the tuned kernels of a model change with the number of rows: the counts at which a test of batch invariance has to look.
#pragma once

#include <cstdint>
#include <set>

#include "model/model.h"

namespace levin::test {

// Rows at which a plan of one of the model's kernels changes, and those before and after, up to most_rows. The selection is among
// n_visible slots; on the calling thread's device, which has n_sms processors.
std::set<int64_t> rows_where_kernels_change(const Model& model, int64_t most_rows, int64_t n_visible, int n_sms);

}  // namespace levin::test

// The tokens of an MTP step whose output somebody asks for (MtpInput::wanted), and the pass over them alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "model/pass.h"

namespace levin {

class WantedRows {
 public:
  // `rows` of the tokens of `all`, ascending; nullopt: all of them. The rows of all tokens are in the caches.
  WantedRows(Pass& all, std::optional<std::span<const int32_t>> rows)
      : all_(all),
        rows_(rows),
        step_(rows ? step_of_rows(*all.ctx().arena, all.step(), *rows) : all.step()),
        pass_(rows ? all.of_rows(step_, *rows) : all) {}
  WantedRows(const WantedRows&) = delete;  // the pass refers to the step
  WantedRows& operator=(const WantedRows&) = delete;

  bool are_all() const { return !rows_; }
  const Step& step() const { return step_; }
  Pass& pass() { return pass_; }
  View of(View x) { return rows_ ? all_.rows_of(x, *rows_) : x; }  // [T, D] -> [N, D]

 private:
  Pass& all_;
  std::optional<std::span<const int32_t>> rows_;
  Step step_;
  Pass pass_;
};

}  // namespace levin
